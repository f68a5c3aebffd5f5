"""Events through the door, and waits for one of several objects, for all, and for the time."""

import threading
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    noop_code,
)
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_INVALID_PARAMETER_1,
    STATUS_INVALID_PARAMETER_MIX,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_TIMEOUT,
)
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

SYNCHRONIZE = 0x0010_0000


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


def refused(call: Any, *arguments: Any, **more: Any) -> int:
    with pytest.raises(NtStatusError) as caught:
        call(*arguments, **more)
    return caught.value.status


@pytest.mark.parametrize("manual", [True, False])
def test_set_reset_pulse_query(process: UserProcess, manual: bool):
    with process.create_event(manual_reset=manual) as event:
        assert not event.is_set
        event.set()
        assert event.is_set
        assert event.is_set  # looking takes nothing
        assert event.wait(0)
        assert event.is_set == manual
        event.set()
        event.reset()
        assert not event.wait(0)
        event.set()
        event.pulse()
        assert not event.is_set


def test_a_duplicate_is_the_same_event_with_the_rights_asked_for(process: UserProcess):
    with process.create_event() as event, event.duplicate(SYNCHRONIZE) as waiter:
        event.set()
        assert waiter.wait(0)
        assert refused(waiter.set) == STATUS_ACCESS_DENIED
        assert refused(waiter.reset) == STATUS_ACCESS_DENIED
        assert refused(waiter.pulse) == STATUS_ACCESS_DENIED
        assert refused(lambda: waiter.is_set) == STATUS_ACCESS_DENIED
        assert refused(waiter.duplicate, 0x001F_0003) == STATUS_ACCESS_DENIED
        event.close()
        assert waiter.wait(0)
    assert refused(event.set) == STATUS_INVALID_HANDLE


def test_what_is_no_event_is_not_changed(process: UserProcess):
    with process.open_device("noop") as device:
        answer, _ = process.channel.port().call(13, 0, device.handle, 1)
        assert answer[6] == STATUS_OBJECT_TYPE_MISMATCH
    with process.create_event() as event:
        answer, _ = process.channel.port().call(13, 0, event.handle, 99)
        assert answer[6] == STATUS_INVALID_PARAMETER


def test_one_of_several(process: UserProcess):
    events = [process.create_event(manual_reset=False) for _ in range(64)]
    assert process.wait_for_multiple(events, timeout=0.001) == STATUS_TIMEOUT
    events[63].set()
    events[5].set()
    assert process.wait_for_multiple(events, timeout=1) == 5
    assert process.wait_for_multiple(events) == 63
    assert process.wait_for_multiple(events, timeout=0) == STATUS_TIMEOUT
    assert process.wait_for_multiple([events[0], events[0]], timeout=0) == STATUS_TIMEOUT
    for event in events:
        event.close()


def test_all_at_the_same_time(process: UserProcess):
    events = [process.create_event(manual_reset=False) for _ in range(3)]
    events[0].set()
    events[2].set()
    assert process.wait_for_multiple(events, wait_all=True, timeout=0.001) == STATUS_TIMEOUT
    assert events[0].is_set  # nothing was taken
    events[1].set()
    assert process.wait_for_multiple(events, wait_all=True) == 0
    assert not any(event.is_set for event in events)


def test_a_file_among_the_objects(process: UserProcess):
    with (
        process.create_event() as event,
        process.open_device("noop", overlapped=True) as device,
    ):
        request = device.start(noop_code(METHOD_BUFFERED, COMPLETION_DEVICE), b"x")
        assert process.wait_for_multiple([event, device], timeout=10) == 1
        assert request.done


def test_wrong_waits(process: UserProcess):
    event = process.create_event()
    for count in (0, 65):
        with pytest.raises(ValueError, match="1 to 64 objects"):
            process.wait_for_multiple([event] * count)
    twice = {"wait_all": True, "timeout": 0}
    status = refused(process.wait_for_multiple, [event, event], **twice)
    assert status == STATUS_INVALID_PARAMETER_MIX
    other = process.create_event()
    other.close()
    assert refused(process.wait_for_multiple, [event, other], timeout=0) == STATUS_INVALID_HANDLE
    port = process.channel.port()
    for payload in (b"", bytes(3), bytes(65 * 4)):
        answer, _ = port.call(6, 1, input_length=len(payload), payload=payload)
        assert answer[6] == STATUS_INVALID_PARAMETER_1
    event.close()


def test_a_sleep_lasts_as_long_as_asked(inside: Any):
    kernel = inside()
    with kernel.connect() as process:
        clock = kernel.machine.processor.clock
        before = clock.now_ns()
        assert not process.sleep_alertable(1.5)
        assert clock.now_ns() - before == 1_500_000_000
        assert not process.sleep_alertable(0)
        event = process.create_event()
        assert not event.wait(0.25)
        assert clock.now_ns() - before == 1_750_000_000


def test_w6_an_event_given_is_reset_when_the_request_begins(process: UserProcess):
    code = noop_code(METHOD_BUFFERED, COMPLETION_DPC)
    with (
        process.create_event(signaled=True) as event,
        process.open_device("gate", overlapped=True) as gate,
        process.open_device("noop", overlapped=True) as device,
    ):
        held = gate.start(0x80212000, b"x", None, 0, event)
        assert not event.is_set
        assert gate.cancel_ex(held)
        assert event.wait(10)
        with pytest.raises(NtStatusError):
            held.wait(0)
        assert device.start(code, b"x", None, 0, event).wait(10) == 1
        assert event.is_set


@pytest.mark.processes
@pytest.mark.parametrize("completion", [COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE])
def test_an_event_that_is_set_means_that_the_result_is_there(
    kernel: Any, threads: Any, completion: int
):
    """Also for a thread other than the one whose call the request ended in."""
    rounds, code = 60, noop_code(METHOD_BUFFERED, completion)
    outputs: list[bytearray] = []
    begin = threading.Barrier(2)

    def watch(event: Any) -> list[bytes]:
        seen = []
        for _ in range(rounds):
            begin.wait()
            assert event.wait(10)
            seen.append(bytes(outputs[-1]))
            begin.wait()
        return seen

    with (
        UserProcess.connect(kernel.name) as process,
        process.create_event(manual_reset=False) as event,
        process.open_device("noop", overlapped=True) as device,
    ):
        watcher = threads(watch, event)
        for number in range(rounds):
            outputs.append(bytearray(1))
            begin.wait()
            device.start(code, bytes([number]), outputs[-1], 0, event)
            begin.wait()
        assert watcher.join() == [bytes([number]) for number in range(rounds)]


@pytest.mark.processes
@pytest.mark.parametrize("manual", [True, False])
def test_a_pulse_lets_go_who_waits(kernel: Any, threads: Any, manual: bool):
    with (
        UserProcess.connect(kernel.name) as process,
        process.create_event(manual_reset=manual) as event,
    ):
        waiters = [threads(event.wait, 10) for _ in range(2)]
        for _ in range(10_000):  # a pulse before the wait has begun lets nobody go
            event.pulse()
            if not any(waiter.thread.is_alive() for waiter in waiters):
                break
        assert all(waiter.join() for waiter in waiters)
        assert not event.is_set
