"""Whole requests across processes: every method, every way to complete, both kinds of file."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    noop_code,
    noop_fail_code,
)
from shared.nt_status import (
    STATUS_BUFFER_OVERFLOW,
    STATUS_CANCELLED,
    STATUS_DEVICE_BUSY,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_IO_DEVICE_ERROR,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_SUCCESS,
    STATUS_TOO_MANY_THREADS,
)
from tests.end_to_end.conftest import wait_until
from tests.holder_driver import HOLD
from user_proc.errors import ConnectionLost, NtStatusError
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

METHODS = {
    "buffered": METHOD_BUFFERED,
    "in_direct": METHOD_IN_DIRECT,
    "out_direct": METHOD_OUT_DIRECT,
    "neither": METHOD_NEITHER,
}
COMPLETIONS = {"inline": COMPLETION_INLINE, "dpc": COMPLETION_DPC, "device": COMPLETION_DEVICE}


@pytest.mark.parametrize("overlapped", [False, True])
def test_every_method_and_completion(shared_kernel: Any, overlapped: bool):
    kernel = shared_kernel
    with (
        UserProcess.connect(kernel.name) as process,
        process.open_device("noop", overlapped=overlapped) as device,
    ):
        for method in METHODS.values():
            for completion in COMPLETIONS.values():
                for data in (b"", b"x" * 64, bytes(range(256)) * 20):
                    check(process, device, method, completion, data)
    state = kernel.wait_for_sessions(0)
    assert state["server"]["dropped"] == {}
    assert state["server"]["refused"] == {}
    assert state["server"]["lost_answers"] == {}


def check(process: Any, device: Any, method: int, completion: int, data: bytes) -> None:
    code = noop_code(method, completion)
    private = bytearray(len(data))
    assert device.device_io_control(code, data, private) == len(data)
    if method != METHOD_IN_DIRECT:
        assert private == data
    if not data:
        return
    source, target = process.allocate(len(data)), process.allocate(len(data))
    source.view[:] = data
    assert device.device_io_control(code, source, target) == len(data)
    if method != METHOD_IN_DIRECT:
        assert target.view == data


@pytest.mark.parametrize("completion", COMPLETIONS.values(), ids=list(COMPLETIONS))
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    "status", [STATUS_IO_DEVICE_ERROR, STATUS_BUFFER_OVERFLOW, STATUS_DEVICE_BUSY]
)
def test_a_drivers_failure_reaches_the_caller(
    shared_kernel: Any, completion: int, overlapped: bool, status: int
):
    with (
        UserProcess.connect(shared_kernel.name) as process,
        process.open_device("noop", overlapped=overlapped) as device,
    ):
        code = noop_fail_code(METHOD_BUFFERED, completion)
        with pytest.raises(NtStatusError) as caught:
            device.device_io_control(code, status.to_bytes(4, "little"), bytearray(4))
        assert caught.value.status == status


def test_what_does_not_exist_is_a_status(shared_kernel: Any):
    with UserProcess.connect(shared_kernel.name) as process:
        with pytest.raises(NtStatusError) as caught:
            process.open_device("nobody")
        assert caught.value.status == STATUS_OBJECT_NAME_NOT_FOUND
        with process.open_device("noop") as device, pytest.raises(NtStatusError) as caught:
            device.device_io_control(0x80010000)
        assert caught.value.status == STATUS_INVALID_DEVICE_REQUEST


def test_a_session_is_bounded(start: Any):
    kernel = start("--max-requests-per-session", "4", holder=True)
    with (
        UserProcess.connect(kernel.name) as process,
        process.open_device("holder", overlapped=True) as device,
    ):
        held = [device.start(HOLD) for _ in range(4)]
        with pytest.raises(NtStatusError) as caught:
            device.start(HOLD)
        assert caught.value.status == STATUS_INSUFFICIENT_RESOURCES
        assert not any(request.done for request in held)
        device.cancel()  # what makes room is admitted all the same
        assert {status_after(request) for request in held} == {STATUS_CANCELLED}
        assert not device.start(HOLD).done
    kernel.wait_for_sessions(0)


def test_threads_beyond_all_that_is_allowed_are_told_and_nobody_waits_for_ever(start: Any):
    kernel = start("--max-threads-per-session", "2")
    with UserProcess.connect(kernel.name) as process, ThreadPoolExecutor(24) as pool:
        everybody = threading.Barrier(24)

        def call() -> object:
            try:
                process.open_device("noop").close()
            except NtStatusError as error:
                return error.status
            except ConnectionLost:
                return ConnectionLost
            finally:
                everybody.wait(20)  # all have their sockets until then
            return STATUS_SUCCESS

        outcomes = Counter(call.result() for call in [pool.submit(call) for _ in range(24)])
        assert outcomes[STATUS_SUCCESS] == 2
        assert set(outcomes) <= {STATUS_SUCCESS, STATUS_TOO_MANY_THREADS, ConnectionLost}
        pool.shutdown()
        wait_until(lambda: call_succeeds(process))


def call_succeeds(process: UserProcess) -> bool:
    try:
        process.open_device("noop").close()
    except NtStatusError as error:
        if error.status != STATUS_TOO_MANY_THREADS:  # else it has not heard of all ends yet
            raise
        return False
    return True


def status_after(request: Any) -> int:
    with pytest.raises(NtStatusError) as caught:
        request.wait(10)
    return caught.value.status


def test_arena_quotas_hold_across_processes(start: Any):
    kernel = start("--arena-bytes-per-process", str(4 << 20), "--arena-bytes-total", str(6 << 20))
    with UserProcess.connect(kernel.name) as first, UserProcess.connect(kernel.name) as second:
        held = first.allocate(3 << 20)
        with pytest.raises(NtStatusError, match="QUOTA_EXCEEDED"):
            held = first.allocate(3 << 20)
        with pytest.raises(NtStatusError, match="INSUFFICIENT_RESOURCES"):
            second.allocate(4 << 20)
        assert len(held.view) == 3 << 20
    assert kernel.wait_for_sessions(0)["arena_total"]["used"] == 0
    with UserProcess.connect(kernel.name) as third:
        third.allocate(4 << 20)
