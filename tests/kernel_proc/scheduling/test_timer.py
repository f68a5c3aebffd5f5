"""Timers and the queue of deadlines, in virtual time."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, Dpc
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, HIGH_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.timer_queue import TimerQueue
from kernel_proc.scheduling.wait import delay_execution
from shared.nt_status import STATUS_SUCCESS, STATUS_TIMEOUT


def now(processor: Processor) -> int:
    return processor.clock.now_ns()


def clock_of(processor: Processor) -> VirtualClock:
    assert isinstance(processor.clock, VirtualClock)
    return processor.clock


def test_it_is_signalled_at_its_time(processor: Processor):
    timer = Timer(processor)

    def body() -> None:
        assert timer.set(250) is False
        assert timer.is_set
        assert timer.wait(100) == STATUS_TIMEOUT
        assert timer.wait() == STATUS_SUCCESS
        assert now(processor) == 250
        assert not timer.is_set

    processor.run_thread(body)


def test_a_notification_timer_stays_signalled_and_a_synchronization_timer_does_not(
    processor: Processor,
):
    for notification, second in [(True, STATUS_SUCCESS), (False, STATUS_TIMEOUT)]:
        timer = Timer(processor, notification)

        def body(timer: Timer = timer, second: int = second) -> None:
            timer.set(10)
            assert timer.wait() == STATUS_SUCCESS
            assert timer.wait(0) == second
            timer.set(10)
            assert timer.wait(0) == STATUS_TIMEOUT

        processor.run_thread(body)


def test_setting_it_again_replaces_the_deadline(processor: Processor):
    timer = Timer(processor)

    def body() -> None:
        timer.set(10)
        assert timer.set(300) is True
        timer.wait()
        assert now(processor) == 300

    processor.run_thread(body)


def test_cancelled_it_is_not_signalled(processor: Processor):
    timer = Timer(processor)

    def body() -> None:
        assert timer.cancel() is False
        timer.set(10)
        assert timer.cancel() is True
        assert timer.cancel() is False
        assert timer.wait(1_000) == STATUS_TIMEOUT

    processor.run_thread(body)


def test_a_time_that_has_come_already_expires_at_the_next_pass(processor: Processor):
    timer = Timer(processor)

    def body() -> None:
        timer.set(0)
        assert timer.wait(0) == STATUS_TIMEOUT
        assert timer.wait() == STATUS_SUCCESS
        assert now(processor) == 0

    processor.run_thread(body)


def test_periods_do_not_drift_and_missed_ones_are_not_made_up(processor: Processor):
    timer = Timer(processor, notification=False)
    times: list[int] = []
    dpc = Dpc(processor, lambda *_: times.append(now(processor)))

    def body() -> None:
        timer.set(100, period_ns=100, dpc=dpc)
        timer.wait()
        clock_of(processor).advance_to(130)  # work that takes time delays no later period
        timer.wait()
        clock_of(processor).advance_to(455)  # two periods missed, a third is late
        timer.wait()
        timer.wait()
        timer.cancel()

    processor.run_thread(body)
    assert times == [100, 200, 455, 500]


class HurriedClock(VirtualClock):
    """Time passes with every look at it, as it does for a real processor."""

    def now_ns(self) -> int:
        self.advance_to(super().now_ns() + 10)
        assert super().now_ns() < 100_000
        return super().now_ns()


def test_a_period_shorter_than_its_own_work_leaves_room_for_threads():
    processor = Processor(HurriedClock())
    timer = Timer(processor, notification=False)
    timer.set(1, period_ns=1)
    assert processor.run_thread(timer.wait) == STATUS_SUCCESS
    processor.run_thread(delay_execution, processor, 100)
    timer.cancel()


@pytest.mark.parametrize("importance", [LOW_IMPORTANCE, 1])
def test_its_dpc_runs_at_dispatch_level(processor: Processor, importance: int):
    levels: list[tuple[int, int]] = []
    dpc = Dpc(processor, lambda *_: levels.append((processor.irql, now(processor))))
    dpc.importance = importance
    timer = Timer(processor)
    timer.set(70, dpc=dpc)
    processor.run_until(lambda: bool(levels))
    assert levels == [(DISPATCH_LEVEL, 70)]


def test_a_low_dpc_of_a_timer_gives_way_to_the_thread_it_wakes(processor: Processor):
    order: list[str] = []
    processor.minimum_dpc_rate = 0  # else it is asked for at once: DPCs are rare here
    timer = Timer(processor)
    dpc = Dpc(processor, lambda *_: order.append("dpc"))
    dpc.importance = LOW_IMPORTANCE

    def body() -> None:
        timer.set(10, dpc=dpc)
        timer.wait()
        order.append("thread")
        delay_execution(processor, 1)

    processor.run_thread(body)
    assert order == ["thread", "dpc"]


def test_it_wakes_all_who_wait(processor: Processor):
    timer = Timer(processor)
    woken: list[str] = []
    for name in "abc":
        create_system_thread(processor, lambda name=name: (timer.wait(), woken.append(name)))
    timer.set(10)
    processor.run_until(lambda: len(woken) == 3)
    assert woken == ["a", "b", "c"]


@pytest.mark.parametrize("act", ["set", "cancel"])
def test_above_dispatch_level_is_a_bug_check(free: Processor, stops: Any, act: str):
    timer = Timer(free)

    def body() -> None:
        free.raise_irql(HIGH_LEVEL)
        timer.set(5) if act == "set" else timer.cancel()

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        free.run_thread(body)


class Target:
    def expire(self) -> None:
        raise AssertionError("only popped here")


def test_the_queue_gives_deadlines_in_order_and_equals_in_order_of_entry():
    queue = TimerQueue()
    targets = [Target() for _ in range(5)]
    for when, target in zip((30, 10, 20, 10, 40), targets, strict=True):
        queue.add(when, target)
    assert queue.next_ns() == 10
    assert queue.pop_due(9) is None
    popped = [queue.pop_due(30) for _ in range(5)]
    assert popped == [targets[1], targets[3], targets[2], targets[0], None]
    assert (len(queue), queue.next_ns()) == (1, 40)


def test_cancelled_deadlines_do_not_pile_up():
    queue = TimerQueue()
    kept = queue.add(10**9, Target())
    for when in range(10_000):
        deadline = queue.add(when, Target())
        assert queue.cancel(deadline) is True
        assert queue.cancel(deadline) is False
        assert len(queue.heap) < 200
    assert len(queue) == 1
    assert queue.next_ns() == 10**9
    assert queue.cancel(kept) is True
    assert (len(queue), queue.next_ns()) == (0, None)
    assert queue.pop_due(10**10) is None
