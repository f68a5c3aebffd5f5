"""W1 to W8: 459 combinations of returned status, completed status, pending mark and method.

The driver does what the caller's three words say, completes inside its dispatch routine with
Information 3, and has written `ghijkl` over the caller's `abcdef`.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.completion_port import CompletionPort
from kernel_proc.io_manager.irp import get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.system_services import DeviceControlRequest, create_event
from kernel_proc.memory.mdl import map_locked_pages
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_BUFFER_OVERFLOW,
    STATUS_NOT_IMPLEMENTED,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    nt_error,
)

STATUSES = (
    STATUS_SUCCESS,
    STATUS_PENDING,
    STATUS_TIMEOUT,
    0x0EADBEEF,
    0x4EADBEEF,
    STATUS_BUFFER_OVERFLOW,
    0x8EADBEEF,
    STATUS_NOT_IMPLEMENTED,
    0xCEADBEEF,
)
METHODS = (METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER)
COMBINATIONS = [
    (ret, iosb, pending)
    for ret in STATUSES
    for iosb in STATUSES
    for pending in (0, 1)
    if not (ret == STATUS_PENDING and not pending)
]
WORDS = struct.Struct("<III")

ARENA = 0x7000_0000_0000
OUTPUT = ARENA + 0x100


def return_status(device: Any, irp: Any) -> int:
    """Do as the input says."""
    location = get_current_irp_stack_location(irp)
    space = irp.thread.process.address_space
    method = location.io_control_code & 3
    if method == METHOD_NEITHER:
        data = space.read(location.type3_input_buffer, WORDS.size)
    else:
        data = bytes(irp.system_buffer[: WORDS.size])
    ret, iosb, pending = WORDS.unpack(data)
    if pending:
        mark_irp_pending(irp)
    if method == METHOD_BUFFERED:
        irp.system_buffer[:6] = b"ghijkl"
    elif method == METHOD_OUT_DIRECT:
        map_locked_pages(irp.mdl_address).write(0, b"ghijkl")
    else:
        space.write(irp.user_buffer, b"ghijkl")
    irp.information = 3
    irp.status = iosb
    complete_request(irp)
    return ret


class Matrix:
    """The scripted device opened once, asked for each combination."""

    def __init__(self, machine: Any, *, synchronous: bool, inline: bool = False) -> None:
        self.machine = machine
        machine.scripted.on_control = return_status
        self.handle = machine.open(synchronous=synchronous)
        self.file = machine.file_of(self.handle)
        status, self.event_handle = machine.call(create_event, True, False)
        assert status == STATUS_SUCCESS
        self.event = machine.file_of(self.event_handle)
        self.inline = inline

    def ask(self, method: int, ret: int, iosb: int, pending: int, **more: Any) -> tuple[int, Any]:
        self.machine.memory[:12] = WORDS.pack(ret, iosb, pending)
        self.machine.memory[0x100:0x106] = b"abcdef"
        self.event.set()
        request = DeviceControlRequest(
            self.handle,
            ctl_code(0x8003, 0x800, method, 0),
            input=WORDS.pack(ret, iosb, pending) if self.inline else None,
            input_address=0 if self.inline else ARENA,
            input_length=WORDS.size,
            output_address=0 if self.inline else OUTPUT,
            output_length=6,
            output_inline=self.inline,
            event_handle=self.event_handle,
            **more,
        )
        returned, request = self.machine.control(request)
        assert request.finished
        assert not self.machine.thread.irps
        assert self.machine.process.pool_charged == 0
        return returned, request

    def data(self, request: Any) -> bytes:
        """What the caller's six bytes are afterwards."""
        if self.inline:
            output = request.output or b""
            return output + b"abcdef"[len(output) :]
        return bytes(self.machine.memory[0x100:0x106])


def expected_data(method: int, iosb: int) -> bytes:
    if method != METHOD_BUFFERED:
        return b"ghijkl"
    return b"abcdef" if nt_error(iosb) else b"ghidef"


def test_the_matrix_has_459_combinations():
    assert len(COMBINATIONS) * len(METHODS) == 459


@pytest.fixture(params=["arena", "inline"])
def ways(request: Any) -> Iterator[str]:
    return request.param


def methods_of(way: str) -> tuple[int, ...]:
    return METHODS if way == "arena" else (METHOD_BUFFERED,)


@pytest.mark.parametrize("synchronous", [True, False])
def test_w1_w2_what_the_caller_sees_in_its_buffer(machine: Any, ways: str, synchronous: bool):
    matrix = Matrix(machine, synchronous=synchronous, inline=ways == "inline")
    for method in methods_of(ways):
        for combination in COMBINATIONS:
            _, request = matrix.ask(method, *combination)
            assert matrix.data(request) == expected_data(method, combination[1]), combination


def test_w3_w4_synchronous_handle(machine: Any, ways: str):
    matrix = Matrix(machine, synchronous=True, inline=ways == "inline")
    for method in methods_of(ways):
        for ret, iosb, pending in COMBINATIONS:
            returned, request = matrix.ask(method, ret, iosb, pending)
            assert returned == (iosb if ret == STATUS_PENDING else ret)
            assert request.iosb_written == (not nt_error(iosb))
            if request.iosb_written:
                assert (request.iosb_status, request.information) == (iosb, 3)


def test_w5_w6_overlapped_handle(machine: Any, ways: str):
    matrix = Matrix(machine, synchronous=False, inline=ways == "inline")
    for method in methods_of(ways):
        for ret, iosb, pending in COMBINATIONS:
            returned, request = matrix.ask(method, ret, iosb, pending)
            delivered = bool(pending) or not nt_error(iosb)
            assert returned == ret
            assert request.iosb_written == delivered
            assert matrix.event.read_state() == int(delivered)
            if delivered:
                assert (request.iosb_status, request.information) == (iosb, 3)


def test_w5_user_apc(machine: Any):
    matrix = Matrix(machine, synchronous=False)
    apcs = machine.thread.user_apcs
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            _, request = matrix.ask(method, ret, iosb, pending, user_apc=True)
            delivered = bool(pending) or not nt_error(iosb)
            assert [apc.context for apc in apcs] == ([request] if delivered else [])
            apcs.clear()


def test_w8_completion_port(machine: Any):
    matrix = Matrix(machine, synchronous=False)
    port = matrix.file.completion_port = CompletionPort(machine.processor)
    matrix.file.completion_key = 77
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            returned, _ = matrix.ask(method, ret, iosb, pending, apc_context=0)
            assert returned == ret
            assert len(port) == 0
            matrix.ask(method, ret, iosb, pending, apc_context=0x1234)
            delivered = bool(pending) or not nt_error(iosb)
            assert len(port) == int(delivered)
            if delivered:
                status, packet = machine.in_process(port.remove, 0)
                assert status == STATUS_SUCCESS
                assert packet == (77, 0x1234, iosb, 3)
