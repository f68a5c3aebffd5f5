"""Lanes: blocking work on behalf of kernel threads."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.os_lane import InlineLane, Lane, OsLane
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_PROCESS_IS_TERMINATING


@pytest.fixture
def lane(real: Processor) -> Iterator[OsLane]:
    lane = OsLane(real, "test lane")
    yield lane
    lane.close()


def test_it_returns_the_result_of_work_in_another_os_thread(real: Processor, lane: OsLane):
    def body() -> tuple[str, int]:
        name = lane.run(lambda: threading.current_thread().name)
        return name, lane.run(divmod, 17, 5)

    assert real.run_thread(body) == ("test lane", (3, 2))


def test_it_raises_the_exception_of_the_work(real: Processor, lane: OsLane):
    def body() -> str:
        with pytest.raises(ZeroDivisionError):
            lane.run(divmod, 1, 0)
        with pytest.raises(OSError, match="No such file"):
            lane.run(os.stat, "/there/is/no/such/file")
        return lane.run(str, "and goes on")

    assert real.run_thread(body) == "and goes on"


def test_other_kernel_threads_run_while_one_waits_for_its_lane(real: Processor, lane: OsLane):
    gate = threading.Event()
    order: list[str] = []

    def stuck() -> None:
        assert lane.run(gate.wait, 10) is True
        order.append("stuck")

    def other() -> None:
        order.append("other")
        gate.set()

    thread = create_system_thread(real, stuck)
    create_system_thread(real, other)
    real.run_until(lambda: thread.ended)
    assert order == ["other", "stuck"]


def test_many_kernel_threads_use_one_lane_at_once_in_order(real: Processor, lane: OsLane):
    started: list[int] = []
    results: dict[int, int] = {}

    def work(number: int) -> int:
        started.append(number)
        return number * number

    def body(number: int) -> None:
        results[number] = lane.run(work, number)

    for number in range(50):
        create_system_thread(real, body, number)
    real.run_until(lambda: len(results) == 50)
    assert started == list(range(50))
    assert results == {number: number * number for number in range(50)}


def test_many_lanes_work_at_the_same_time(real: Processor):
    lanes = [OsLane(real, f"lane {number}") for number in range(4)]
    barrier = threading.Barrier(4, timeout=10)
    met: list[int] = []
    for lane in lanes:
        create_system_thread(real, lambda lane=lane: met.append(lane.run(barrier.wait)))
    real.run_until(lambda: len(met) == 4)
    assert sorted(met) == [0, 1, 2, 3]
    for lane in lanes:
        lane.close()


def test_closed_it_finishes_its_work_ends_its_os_thread_and_takes_no_more(real: Processor):
    lane = OsLane(real, "closing lane")
    gate = threading.Event()
    os_threads: list[threading.Thread] = []
    results: list[str] = []

    def work() -> str:
        os_threads.append(threading.current_thread())
        gate.wait(10)
        return "done"

    thread = create_system_thread(real, lambda: results.append(lane.run(work)))
    real.run_until(lambda: thread.is_waiting)
    lane.close()
    lane.close()
    with pytest.raises(RaisedStatus, match="closing lane is closed"):
        real.run_thread(lane.run, print)
    gate.set()
    real.run_until(lambda: thread.ended)
    assert results == ["done"]
    os_threads[0].join(10)
    assert not os_threads[0].is_alive()


def test_a_lane_never_used_starts_no_os_thread(real: Processor):
    before = threading.active_count()
    lane = OsLane(real, "idle lane")
    assert threading.active_count() == before
    lane.close()
    with pytest.raises(RaisedStatus, match="closed"):
        real.run_thread(lane.run, print)


def test_inline_work_is_done_at_once_in_the_same_os_thread(processor: Processor):
    lane: Lane = InlineLane(processor)

    def body() -> None:
        switches = processor.thread_switches
        assert lane.run(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            lane.run(divmod, 1, 0)
        assert processor.thread_switches == switches

    processor.run_thread(body)
    lane.close()


@pytest.mark.parametrize("kind", [InlineLane, OsLane])
def test_work_above_apc_level_is_a_bug_check(processor: Processor, stops: Any, kind: Any):
    lane = InlineLane(processor) if kind is InlineLane else OsLane(processor, "lane")

    def body() -> None:
        processor.raise_irql(APC_LEVEL)
        if kind is InlineLane:
            assert lane.run(str, 5) == "5"
        processor.raise_irql(DISPATCH_LEVEL)
        lane.run(str, 5)
        processor.lower_irql(PASSIVE_LEVEL)

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DISPATCH_LEVEL):
        processor.run_thread(body)


def test_abandoned_work_frees_its_thread_and_its_late_result_is_discarded(real: Processor):
    lane = OsLane(real, "stuck lane")
    gate = threading.Event()
    discarded: list[str] = []
    statuses: list[int] = []

    def stuck() -> str:
        gate.wait(10)
        return "late"

    def body(routine: Callable[[], str]) -> None:
        with pytest.raises(RaisedStatus) as raised:
            lane.run(routine, discard=discarded.append)
        statuses.append(raised.value.status)

    threads = [create_system_thread(real, body, routine) for routine in (stuck, lambda: "queued")]
    real.run_until(lambda: all(thread.is_waiting for thread in threads))
    lane.abandon()
    real.run_until(lambda: all(thread.ended for thread in threads))
    assert statuses == [STATUS_PROCESS_IS_TERMINATING] * 2
    assert discarded == []
    gate.set()
    real.run_until(lambda: len(discarded) == 2)
    assert discarded == ["late", "queued"]
    lane.close()


def test_work_that_ended_before_the_lane_was_abandoned_keeps_its_result(real: Processor):
    lane = OsLane(real, "abandoned lane")
    results: list[int] = []
    ended = threading.Event()

    def work() -> int:
        ended.set()
        return 7

    thread = create_system_thread(real, lambda: results.append(lane.run(work)))
    real.run_until(lambda: ended.is_set() and thread.ended)
    lane.abandon()
    assert results == [7]
    lane.close()


def test_errands_are_done_after_the_work_even_of_an_abandoned_lane(real: Processor):
    lane = OsLane(real, "lane with errands")
    gate = threading.Event()
    done: list[str] = []
    told: list[int] = []

    def stuck() -> None:
        gate.wait(10)
        done.append("stuck")

    def body() -> None:
        with pytest.raises(RaisedStatus):
            lane.run(stuck)

    def fail() -> None:
        done.append("failing")
        raise OSError("nobody wants to know")

    thread = create_system_thread(real, body)
    real.run_until(lambda: thread.is_waiting)
    lane.abandon()
    lane.later(fail, lambda: told.append(threading.get_ident()))
    lane.later(lambda: done.append(threading.current_thread().name), lambda: None)
    lane.close()
    real.run_until(lambda: thread.ended)
    assert done == []
    gate.set()
    real.run_until(lambda: len(done) == 3 and bool(told))
    assert done == ["stuck", "failing", "lane with errands"]
    assert told == [threading.get_ident()]


@pytest.mark.parametrize("what", ["thread", "descriptor"])
def test_without_an_os_thread_work_is_refused_and_errands_are_done_here(
    real: Processor, monkeypatch: pytest.MonkeyPatch, what: str
):
    def fail(*_: Any) -> Any:
        raise (RuntimeError("can't start new thread") if what == "thread" else OSError(24, "none"))

    lane = OsLane(real, "poor lane")
    gc.collect()  # what former tests left
    descriptors = len(os.listdir("/proc/self/fd"))
    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(*((threading.Thread, "start") if what == "thread" else (os, "eventfd")), fail)
        for _ in range(3):
            with pytest.raises(RaisedStatus) as raised:
                real.run_thread(lane.run, print)
            assert raised.value.status == STATUS_INSUFFICIENT_RESOURCES
        lane.later(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert real.run_thread(lane.run, str, "there is one again") == "there is one again"
    lane.close()


def test_inline_errands_are_done_at_once(processor: Processor):
    lane: Lane = InlineLane(processor)
    done: list[str] = []
    lane.later(lambda: done.append("errand"), lambda: done.append("then"))
    assert done == ["errand"]
    processor.run_thread(print)
    assert done == ["errand", "then"]
