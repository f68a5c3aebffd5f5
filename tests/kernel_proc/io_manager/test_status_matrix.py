"""W1 to W8 in process: the status matrix, by arena and inline, with events, APCs and a port."""

from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.io_manager.completion_port import CompletionPort
from kernel_proc.io_manager.irp_flags import io_size_of_irp
from kernel_proc.io_manager.system_services import DeviceControlRequest, create_event
from kernel_proc.io_manager.user_apc import take_user_apcs
from shared.ioctl_codes import METHOD_BUFFERED
from shared.nt_status import STATUS_PENDING, STATUS_SUCCESS, nt_error
from tests.drivers.status_matrix import (
    COMBINATIONS,
    METHODS,
    WORDS,
    code,
    expected_data,
    is_delivered,
    return_status,
)

ARENA = 0x7000_0000_0000
OUTPUT = ARENA + 0x100


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
            code(method),
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
        queued = len(self.file.completion_port or "") + len(self.machine.thread.user_apcs)
        assert self.machine.process.pool_charged == queued * io_size_of_irp(1)
        return returned, request

    def data(self, request: Any) -> bytes:
        """What the caller's six bytes are afterwards."""
        if self.inline:
            output = request.output or b""
            return output + b"abcdef"[len(output) :]
        return bytes(self.machine.memory[0x100:0x106])


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
            delivered = is_delivered(iosb, pending)
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
            delivered = is_delivered(iosb, pending)
            assert [apc.context for apc in apcs] == ([request] if delivered else [])
            assert take_user_apcs(machine.thread, 9) == ([request] if delivered else [])
            assert machine.process.pool_charged == 0


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
            delivered = is_delivered(iosb, pending)
            assert len(port) == int(delivered)
            if delivered:
                status, packet = machine.in_process(port.remove, 0)
                assert status == STATUS_SUCCESS
                assert packet == (77, 0x1234, iosb, 3)
