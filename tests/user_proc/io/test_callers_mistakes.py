"""What a caller gets wrong is a ValueError or TypeError in one sentence, and nothing is sent."""

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_DEVICE,
    noop_code,
)
from user_proc.errors import ConnectionClosed, KernelRefused
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes
CODE = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("code", [1 << 40, 1 << 32, -1, -(1 << 70)])
def test_a_control_code_that_is_none(process: UserProcess, overlapped: bool, code: int):
    with process.open_device(NOOP_DEVICE, overlapped=overlapped) as device:
        words = f"the control code must lie between 0 and 0xffffffff, not {code:#x}"
        with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
            device.device_io_control(code, b"x")
        answer = bytearray(1)
        assert device.device_io_control(CODE, b"x", answer) == 1
        assert answer == b"x"


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input_length", 1 << 32, "the length of the input must lie"),
        ("output_length", -1, "the length of the output must lie"),
        ("input_address", 1 << 64, "the address of the input must lie"),
        ("output_address", -4096, "the address of the output must lie"),
        ("apc_context", -1, "the ApcContext or key must lie"),
    ],
)
def test_raw_arguments_out_of_range(
    process: UserProcess, overlapped: bool, field: str, value: int, words: str
):
    with process.open_device(NOOP_DEVICE, overlapped=overlapped) as device:
        apcs = process.channel.port().apcs
        arguments: Any = {field: value}
        with pytest.raises(ValueError, match=words):
            device.nt_device_io_control(CODE, IoStatusBlock(), apc=lambda *_: None, **arguments)
        assert not apcs.run_due()
        assert device.device_io_control(CODE, b"x") == 1


def test_keys_and_packets_out_of_range(process: UserProcess):
    with (
        process.create_completion_port() as port,
        process.open_device(NOOP_DEVICE, overlapped=True) as device,
    ):
        with pytest.raises(ValueError, match="key must lie between 0 and 0xffffffffffffffff"):
            port.associate(device, 1 << 64)
        with pytest.raises(ValueError, match="key must lie"):
            port.post(-1)
        with pytest.raises(ValueError, match="status must lie between 0 and 0xffffffff"):
            port.post(status=1 << 32)
        with pytest.raises(TypeError, match="key must be an int, not str"):
            port.post("7")  # type: ignore[arg-type]  # the mistake in question
        port.post(7)
        packet = port.get(5)
        assert packet is not None
        assert packet.key == 7


def test_timeouts_that_are_no_numbers(process: UserProcess):
    with process.create_event(signaled=True) as event:
        assert event.wait(math.inf)
        with pytest.raises(ValueError, match="not NaN"):
            event.wait(math.nan)


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER])
@pytest.mark.parametrize("make", [bytes, lambda n: memoryview(bytes(n))])
def test_a_read_only_output_is_one_kind_of_error(
    process: UserProcess, method: int, make: Callable[[int], Any]
):
    with process.open_device(NOOP_DEVICE) as device:
        output = make(8)
        kind = type(output).__name__
        words = f"^the output buffer must be writable, this {kind} is not$"
        with pytest.raises(TypeError, match=words):
            device.device_io_control(noop_code(method, COMPLETION_INLINE), b"x" * 8, output)


def test_a_buffer_with_gaps_is_a_sentence(process: UserProcess):
    with process.open_device(NOOP_DEVICE) as device:
        gaps = memoryview(bytearray(16))[::2]
        with pytest.raises(TypeError, match="the buffer cannot be passed by its address: "):
            device.device_io_control(noop_code(METHOD_NEITHER, COMPLETION_INLINE), gaps, None)


def test_a_closed_connection_hands_out_no_memory(kernel: Any):
    process = UserProcess.connect(kernel.name)
    kept = process.allocate(100)
    kept.view[:3] = b"abc"
    process.close()
    with pytest.raises(ConnectionClosed, match="is closed: connect again"):
        process.allocate(10)
    kept.release()


def test_close_does_not_wait_for_a_thread_that_allocates(kernel: Any):
    process = UserProcess.connect(kernel.name)
    with process._arenas._lock:  # as inside an allocation of this very thread
        closer = threading.Thread(target=process.close)
        closer.start()
        closer.join(10)
        assert not closer.is_alive()


def test_a_quota_is_refused_in_words(process: UserProcess):
    with pytest.raises(KernelRefused) as refused:
        process.allocate(300 << 20)
    assert str(refused.value) == (
        "the kernel refused: this process may hold 256 MiB of arenas and 0 MiB are held: "
        "300 MiB more are too many [STATUS_QUOTA_EXCEEDED]"
    )


def test_an_overlapped_request_shows_how_it_is(process: UserProcess):
    with process.open_device(NOOP_DEVICE, overlapped=True) as device:
        request = device.start(noop_code(METHOD_BUFFERED, COMPLETION_DEVICE), b"abcd")
        assert repr(request).startswith(f"<overlapped request {request.request_id:#x}, ")
        request.wait(10)
        assert repr(request).endswith(", STATUS_SUCCESS, information=4>")
