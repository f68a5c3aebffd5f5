"""Fast I/O and requests that wait in the driver, as a user program reaches them."""

import ctypes
from typing import Any

import pytest

from shared.ioctl_codes import (
    BENCHMARK_DEVICE,
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    IOCTL_QUERY_COUNTERS,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_DEVICE,
    NOOP_FAST_DEVICE,
    noop_blocking_code,
    noop_fast_code,
)
from shared.message_codec import decode_as
from shared.messages import COUNTERS_MAX_LENGTH, Counters
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_SUCCESS,
)
from user_proc.errors import NtStatusError
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess

DATA = bytes(range(256)) * 8


class IrpCount:
    """How many IRPs the kernel made since the last look, those of looking left out."""

    def __init__(self, process: UserProcess) -> None:
        self._device = process.open_device(BENCHMARK_DEVICE)
        self._last = 0
        self.look()

    def look(self) -> int:
        room = bytearray(COUNTERS_MAX_LENGTH)
        length = self._device.device_io_control(IOCTL_QUERY_COUNTERS, None, room)
        total = decode_as(Counters, room[:length]).irps
        made, self._last = total - self._last - 1, total
        return made


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


@pytest.fixture
def fast(process: UserProcess):
    with process.open_device(NOOP_FAST_DEVICE) as opened:
        yield opened


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
@pytest.mark.parametrize("memory", ["arena", "private"])
def test_k30_no_irp_is_made(process: UserProcess, fast: Any, memory: str, method: int):
    source: Any = DATA
    target: Any = bytearray(len(DATA))
    if memory == "arena":
        source, target = process.allocate(len(DATA)), process.allocate(len(DATA))
        source.view[:] = DATA
    irps = IrpCount(process)
    for _ in range(3):
        code = noop_fast_code(method)
        assert fast.device_io_control(code, source, target, raw=True) == len(DATA)
    assert irps.look() == 0
    assert bytes(target.view if memory == "arena" else target) == DATA


@pytest.mark.parametrize("output_length", [0, 5, 3000])
def test_k30_information_is_that_of_the_irp(fast: Any, output_length: int):
    output = bytearray(b"#" * output_length)
    code = noop_fast_code(METHOD_BUFFERED)
    moved = min(len(DATA), output_length) if output_length else len(DATA)
    assert fast.device_io_control(code, DATA, output, raw=True) == moved
    assert output == DATA[:output_length] + b"#" * (output_length - len(DATA))
    again = bytearray(b"#" * output_length)
    assert fast.device_io_control(code, DATA, again) == moved
    assert again == output


@pytest.mark.parametrize(
    ("method", "completion", "raw"),
    [
        (METHOD_BUFFERED, COMPLETION_INLINE, False),  # the bytes travel in the message
        (METHOD_IN_DIRECT, COMPLETION_INLINE, True),
        (METHOD_OUT_DIRECT, COMPLETION_INLINE, True),
        (METHOD_NEITHER, COMPLETION_DPC, True),
        (METHOD_BUFFERED, COMPLETION_DEVICE, True),
    ],
)
def test_k30b_what_is_declined_becomes_an_irp(
    process: UserProcess, fast: Any, method: int, completion: int, raw: bool
):
    irps = IrpCount(process)
    output = bytearray(len(DATA))
    code = noop_fast_code(method, completion)
    assert fast.device_io_control(code, DATA, output, raw=raw) == len(DATA)
    assert irps.look() == 1
    assert output == (bytes(len(DATA)) if method == METHOD_IN_DIRECT else DATA)


def test_a_bad_address_is_a_status_and_the_status_block_is_written(fast: Any):
    target = ctypes.create_string_buffer(16)
    iosb = IoStatusBlock()
    for method in (METHOD_BUFFERED, METHOD_NEITHER):
        returned = fast.nt_device_io_control(
            noop_fast_code(method),
            iosb,
            input_address=0x1000,
            input_length=16,
            output_address=ctypes.addressof(target),
            output_length=16,
        )
        assert returned == STATUS_ACCESS_VIOLATION
    assert (iosb.status, iosb.information) == (STATUS_ACCESS_VIOLATION, 0)  # from fast I/O


def test_long_private_buffers_go_in_pieces(fast: Any):
    data = bytes(range(251)) * 9000  # over two pieces
    output = bytearray(len(data) - 5)
    code = noop_fast_code(METHOD_NEITHER)
    assert fast.device_io_control(code, data, output) == len(output)
    assert output == data[:-5]


def test_fast_codes_are_those_of_the_device_with_fast_io(process: UserProcess):
    with process.open_device(NOOP_DEVICE) as device, pytest.raises(NtStatusError) as caught:
        device.device_io_control(noop_fast_code(METHOD_NEITHER), DATA, bytearray(3))
    assert caught.value.status == STATUS_INVALID_DEVICE_REQUEST


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
@pytest.mark.parametrize("method", range(4))
def test_a_blocking_request_waits_in_the_driver(
    process: UserProcess, method: int, completion: int, overlapped: bool
):
    output = bytearray(len(DATA))
    with process.open_device(NOOP_DEVICE, overlapped) as device:
        code = noop_blocking_code(method, completion)
        assert device.device_io_control(code, DATA, output) == len(DATA)
        assert output == (bytes(len(DATA)) if method == METHOD_IN_DIRECT else DATA)
        iosb = IoStatusBlock()
        assert device.nt_device_io_control(code, iosb) == STATUS_SUCCESS  # never pending


def test_a_blocking_request_with_a_bad_address(process: UserProcess):
    iosb = IoStatusBlock()
    with process.open_device(NOOP_DEVICE) as device:
        returned = device.nt_device_io_control(
            noop_blocking_code(METHOD_NEITHER, COMPLETION_DPC),
            iosb,
            input_address=0x1000,
            input_length=16,
        )
    assert returned == STATUS_ACCESS_VIOLATION


def test_there_is_nothing_to_wait_for_inline():
    with pytest.raises(ValueError, match="DPC"):
        noop_blocking_code(METHOD_BUFFERED, COMPLETION_INLINE)
