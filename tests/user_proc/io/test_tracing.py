"""Trace points of one request in both processes, switched on and fetched by device controls."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.ioctl_codes import (
    BENCHMARK_DEVICE,
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    IOCTL_TRACE_CONTROL,
    IOCTL_TRACE_FETCH,
    METHOD_BUFFERED,
    METHOD_NEITHER,
    noop_code,
    noop_fast_code,
)
from shared.nt_status import STATUS_INVALID_PARAMETER
from shared.trace_points import (
    ANSWER_SENT,
    BUFFERS_READY,
    COMPLETING,
    COMPLETION_SENT,
    COPIED_BACK,
    COPYING_BACK,
    DEVICE_QUEUED,
    DPC_ENTERED,
    DRIVER_CALLED,
    DRIVER_RETURNED,
    FAST_IO,
    FINISHED,
    INTERRUPT,
    KERNEL_RECEIVED,
    POINT_SIZE,
    SERVICE_ENTERED,
    USER_ANSWERED,
    USER_CALL,
    USER_COMPLETION,
    USER_COPIED,
    USER_SENDING,
    USER_SENT,
    by_request,
    trace,
    unpack_points,
)
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

SENT = [USER_CALL, USER_SENDING, USER_SENT]
SERVED = [KERNEL_RECEIVED, SERVICE_ENTERED]
ANSWERED = [USER_ANSWERED, USER_COPIED]
IRP = [BUFFERS_READY, DRIVER_CALLED]
END = [COMPLETING, COPYING_BACK, COPIED_BACK, FINISHED]


class Tracing:
    """Both rings on, around what is to be looked at."""

    def __init__(self, process: UserProcess) -> None:
        self.device = process.open_device(BENCHMARK_DEVICE)

    def __enter__(self) -> "Tracing":
        self.switch(1)
        trace.clear()
        trace.enabled = True
        return self

    def __exit__(self, *_: object) -> None:
        trace.enabled = False
        self.switch(0)

    def switch(self, state: int) -> None:
        self.device.device_io_control(IOCTL_TRACE_CONTROL, state.to_bytes(4, "little"))

    def requests(self) -> list[list[str]]:
        """The names of each request's points, in order of time."""
        room = bytearray(POINT_SIZE * trace.capacity)
        length = self.device.device_io_control(IOCTL_TRACE_FETCH, None, room)
        points = {*trace.last(), *unpack_points(room[:length])}
        assert all(point.ns > 0 for point in points)
        # Looking costs a request or two of its own, which has left only its beginning.
        whole = [list(names) for names in by_request(points).values()]
        names = [[point.point for point in request] for request in whole]
        return [request for request in names if USER_CALL in request and USER_COPIED in request]


@pytest.fixture(autouse=True)
def ring_off() -> Iterator[None]:
    yield
    trace.enabled = False
    trace.clear()


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


def ordered(names: list[str], *runs: list[str]) -> None:
    """Each run appears in `names` in its order.

    What a sender notes after sending may come after what the other process notes.
    """
    for run in runs:
        positions = [names.index(name) for name in run]
        assert positions == sorted(positions), names


def test_the_way_of_a_request_that_ends_at_once(process: UserProcess):
    with process.open_device("noop") as device, Tracing(process) as tracing:
        device.device_io_control(noop_code(METHOD_BUFFERED, COMPLETION_INLINE), b"ab", bytearray(2))
    (names,) = tracing.requests()
    way = [USER_CALL, USER_SENDING, *SERVED, *IRP, *END, DRIVER_RETURNED]
    ordered(names, [*way, *ANSWERED], [*way, ANSWER_SENT], SENT)
    assert set(names) == {*way, ANSWER_SENT, *ANSWERED, USER_SENT}


def test_dpc_and_interrupt_have_points(process: UserProcess):
    with process.open_device("noop") as device, Tracing(process) as tracing:
        for completion in (COMPLETION_DPC, COMPLETION_DEVICE):
            device.device_io_control(noop_code(METHOD_BUFFERED, completion), b"ab", bytearray(2))
    by_dpc, by_device = tracing.requests()
    queue = [DRIVER_CALLED, DEVICE_QUEUED]
    ordered(by_dpc, [*queue, DPC_ENTERED, *END, ANSWER_SENT])
    ordered(by_device, [*queue, DRIVER_RETURNED, INTERRUPT, DPC_ENTERED, *END, *ANSWERED])
    assert INTERRUPT not in by_dpc


def test_an_overlapped_request_ends_with_the_listener(process: UserProcess):
    with process.open_device("noop", overlapped=True) as device, Tracing(process) as tracing:
        device.device_io_control(noop_code(METHOD_BUFFERED, COMPLETION_DEVICE), b"ab", bytearray(2))
    (names,) = tracing.requests()
    served = [*SERVED, *IRP, DRIVER_RETURNED]
    ordered(names, [*served, ANSWER_SENT], [*served, USER_ANSWERED])
    ordered(names, [*END[:-1], COMPLETION_SENT], [*END[:-1], USER_COMPLETION, USER_COPIED])


def test_fast_io_has_no_irp(process: UserProcess):
    with process.open_device("noop_fast") as device, Tracing(process) as tracing:
        device.device_io_control(noop_fast_code(METHOD_NEITHER), b"ab", bytearray(2))
    (names,) = tracing.requests()
    ordered(names, [*SERVED, FAST_IO, *ANSWERED])
    assert not {*IRP, *END} & set(names)


def test_nothing_is_noted_while_it_is_off(process: UserProcess):
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    with process.open_device("noop") as device:
        with Tracing(process) as tracing:
            pass
        before = tracing.requests()
        device.device_io_control(code, b"ab", bytearray(2))
        assert tracing.requests() == before == []


def test_fetching_takes_the_latest_that_fit(process: UserProcess):
    with process.open_device("noop") as device, Tracing(process) as tracing:
        for _ in range(3):
            device.device_io_control(noop_code(METHOD_BUFFERED, 0), b"ab", bytearray(2))
    fetch = tracing.device.device_io_control
    whole = bytearray(POINT_SIZE * trace.capacity)
    length = fetch(IOCTL_TRACE_FETCH, None, whole)
    some = bytearray(POINT_SIZE * 5 + 7)
    assert fetch(IOCTL_TRACE_FETCH, None, some) == POINT_SIZE * 5
    assert some[: POINT_SIZE * 5] == whole[length - POINT_SIZE * 5 : length]
    assert fetch(IOCTL_TRACE_FETCH) == 0


@pytest.mark.parametrize("wrong", [b"", b"\1", (2).to_bytes(4, "little"), bytes(8)])
def test_a_switch_has_two_positions(process: UserProcess, wrong: bytes):
    with process.open_device(BENCHMARK_DEVICE) as device, pytest.raises(NtStatusError) as caught:
        device.device_io_control(IOCTL_TRACE_CONTROL, wrong)
    assert caught.value.status == STATUS_INVALID_PARAMETER
    assert not trace.enabled


def test_the_users_ring_alone(process: UserProcess):
    trace.enabled = True
    request: Any = None
    with process.open_device("noop", overlapped=True) as device:
        request = device.start(noop_code(METHOD_BUFFERED, COMPLETION_INLINE), b"x")
    trace.enabled = False
    names = [point.point for point in trace.last() if point.id == request.request_id]
    ordered(names, [*SENT, USER_ANSWERED, USER_COPIED])
