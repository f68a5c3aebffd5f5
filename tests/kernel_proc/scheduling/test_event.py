"""Events: states, who is woken, pulse."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.processor import Deadlock, Processor


def start_waiters(
    processor: Processor, event: Event, woken: list[int], count: int
) -> list[KThread]:
    def waiter(number: int) -> None:
        event.wait()
        woken.append(number)

    threads = [create_system_thread(processor, waiter, number) for number in range(count)]
    processor.run_until(lambda: all(thread.is_waiting for thread in threads))
    return threads


def settle(processor: Processor) -> None:
    """Run until every thread waits."""
    with pytest.raises(Deadlock):
        processor.run_until(lambda: False)


@pytest.mark.parametrize("notification", [True, False])
@pytest.mark.parametrize("level", [PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL])
def test_k24_set_reset_clear_pulse(processor: Processor, notification: bool, level: int):
    event = Event(processor, notification)

    def body() -> None:
        processor.raise_irql(level)
        assert event.read_state() == 0
        for previous in (0, 1):
            assert event.set() == previous
            assert event.read_state() == 1
        for previous in (1, 0):
            assert event.reset() == previous
            assert event.read_state() == 0
        event.set()
        event.clear()
        assert event.read_state() == 0
        event.set()
        for previous in (1, 0):
            assert event.pulse() == previous
            assert event.read_state() == 0
        assert processor.irql == level
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_k24_initial_state(processor: Processor):
    assert Event(processor, notification=True, signaled=True).read_state() == 1
    assert Event(processor, notification=False).read_state() == 0


@pytest.mark.parametrize("act", ["set", "reset", "clear", "pulse", "read_state"])
def test_above_dispatch_level_is_a_bug_check(free: Processor, stops: Any, act: str):
    event = Event(free, notification=True)

    def body() -> None:
        free.raise_irql(HIGH_LEVEL)
        getattr(event, act)()

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        free.run_thread(body)


def test_verifier_names_a_set_above_dispatch_level(checked: Processor, stops: Any):
    def body() -> None:
        checked.raise_irql(HIGH_LEVEL)
        Event(checked, notification=True).set()

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x80, HIGH_LEVEL):
        checked.run_thread(body)


def test_a_notification_event_wakes_all_and_stays_set(processor: Processor):
    event = Event(processor, notification=True)
    woken: list[int] = []
    start_waiters(processor, event, woken, 3)
    event.set()
    processor.run_until(lambda: len(woken) == 3)
    assert woken == [0, 1, 2]
    assert event.read_state() == 1


def test_a_synchronization_event_wakes_one_in_order_of_arrival(processor: Processor):
    event = Event(processor, notification=False)
    woken: list[int] = []
    start_waiters(processor, event, woken, 3)
    for count in (1, 2, 3):
        event.set()
        assert event.read_state() == 0
        processor.run_until(lambda count=count: len(woken) == count)
    assert woken == [0, 1, 2]
    event.set()
    assert event.read_state() == 1


def test_a_set_of_a_notification_event_reaches_all_though_the_first_woken_clears_it(
    processor: Processor,
):
    event = Event(processor, notification=True)
    order: list[str] = []

    def waiter(name: str) -> None:
        event.wait()
        order.append(name)
        event.clear()

    create_system_thread(processor, waiter, "high", priority=12)
    create_system_thread(processor, waiter, "low", priority=4)
    settle(processor)
    processor.run_thread(lambda: (order.append("set"), event.set(), order.append("after")))
    processor.run_until(lambda: len(order) == 4)
    assert order == ["set", "high", "after", "low"]


@pytest.mark.parametrize(("notification", "expected"), [(True, [0, 1, 2]), (False, [0])])
def test_pulse_wakes_who_waits_now_and_leaves_it_cleared(
    processor: Processor, notification: bool, expected: list[int]
):
    event = Event(processor, notification)
    woken: list[int] = []
    start_waiters(processor, event, woken, 3)
    assert processor.run_thread(event.pulse) == 0
    settle(processor)
    assert woken == expected
    assert event.read_state() == 0


def test_pulse_is_over_before_a_higher_thread_runs(processor: Processor):
    event = Event(processor, notification=True)
    states: list[int] = []

    def waiter() -> None:
        event.wait()
        states.append(event.read_state())

    create_system_thread(processor, waiter, priority=15)
    processor.run_thread(event.pulse)
    assert states == [0]
