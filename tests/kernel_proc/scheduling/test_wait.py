"""Waits: any and all, time, order, priorities, and what breaks them off."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.apc import UserApc
from kernel_proc.scheduling.bugcheck import (
    ATTEMPTED_SWITCH_FROM_DPC,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import (
    KERNEL_MODE,
    USER_MODE,
    delay_execution,
    wait_for_multiple,
)
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
    STATUS_USER_APC,
)


def settle(processor: Processor) -> None:
    """Run until every thread waits."""
    with pytest.raises(Deadlock):
        processor.run_until(lambda: False)


def start(processor: Processor, wait: Callable[[], int], **options: Any) -> list[int]:
    """Start a thread that waits; the list gets its status."""
    statuses: list[int] = []
    create_system_thread(processor, lambda: statuses.append(wait()), **options)
    settle(processor)
    return statuses


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


# Any and all


def test_any_is_satisfied_by_the_first_signalled_and_takes_only_that(processor: Processor):
    events = [Event(processor, notification=False) for _ in range(3)]

    def body() -> None:
        events[2].set()
        events[1].set()
        assert wait_for_multiple(events, wait_all=False) == 1
        assert [event.read_state() for event in events] == [0, 0, 1]
        assert wait_for_multiple(events, wait_all=False) == 2
        assert wait_for_multiple(events, wait_all=False, timeout_ns=0) == STATUS_TIMEOUT

    processor.run_thread(body)


def test_any_that_sleeps_gets_the_index_of_what_woke_it(processor: Processor):
    events = [Event(processor, notification=True) for _ in range(3)]
    statuses = start(processor, lambda: wait_for_multiple(events, wait_all=False))
    events[2].set()
    processor.run_until(lambda: statuses == [2])
    assert all(not event.waits for event in events)


def test_all_takes_nothing_before_all_are_signalled(processor: Processor):
    first, second = (Event(processor, notification=False) for _ in range(2))
    semaphore = Semaphore(processor, 0, 5)
    objects = [first, semaphore, second]
    statuses = start(processor, lambda: wait_for_multiple(objects, wait_all=True))
    first.set()
    semaphore.release(2)
    settle(processor)
    assert [entry.signal_state for entry in objects] == [1, 2, 0]
    second.set()
    processor.run_until(lambda: statuses == [STATUS_SUCCESS])
    assert [entry.signal_state for entry in objects] == [0, 1, 0]


def test_all_that_cannot_be_satisfied_lets_later_waits_have_the_object(processor: Processor):
    first, second = (Event(processor, notification=False) for _ in range(2))
    both = start(processor, lambda: wait_for_multiple([first, second], wait_all=True))
    one = start(processor, first.wait)
    first.set()
    processor.run_until(lambda: one == [STATUS_SUCCESS])
    second.set()
    settle(processor)
    assert not both
    first.set()
    processor.run_until(lambda: both == [STATUS_SUCCESS])


def test_all_with_everything_signalled_does_not_sleep(processor: Processor):
    mutex, semaphore = Mutex(processor), Semaphore(processor, 1, 1)

    def body() -> None:
        switches = processor.thread_switches
        assert wait_for_multiple([mutex, semaphore], wait_all=True) == STATUS_SUCCESS
        assert processor.thread_switches == switches
        assert (mutex.owner, semaphore.signal_state) == (current(processor), 0)
        mutex.release()

    processor.run_thread(body)


def test_all_with_a_mutex_of_ones_own_takes_it_once_more(processor: Processor):
    mutex, event = Mutex(processor), Event(processor, notification=True)

    def body() -> None:
        mutex.wait()
        processor.schedule_hardware(event.set)
        assert wait_for_multiple([mutex, event], wait_all=True) == STATUS_SUCCESS
        assert mutex.signal_state == -1
        mutex.release()
        mutex.release()

    processor.run_thread(body)


def test_the_same_object_twice_in_one_wait(processor: Processor):
    event = Event(processor, notification=False)
    statuses = start(processor, lambda: wait_for_multiple([event, event], wait_all=False))
    event.set()
    processor.run_until(lambda: statuses == [0])
    assert not event.waits


# Time


def test_timeouts_are_in_virtual_time(processor: Processor):
    never = Event(processor, notification=True)

    def body() -> None:
        for timeout, when in [(100, 100), (1, 101), (10**12, 101 + 10**12)]:
            assert never.wait(timeout) == STATUS_TIMEOUT
            assert processor.clock.now_ns() == when
        assert wait_for_multiple([never, never], wait_all=True, timeout_ns=5) == STATUS_TIMEOUT
        assert delay_execution(processor, 7) == STATUS_SUCCESS
        assert processor.clock.now_ns() == 113 + 10**12

    processor.run_thread(body)
    assert len(processor.dispatcher.timers) == 0
    assert not never.waits


def test_timeouts_end_in_order_of_time(processor: Processor):
    order: list[int] = []
    never = Event(processor, notification=True)
    for timeout in (300, 100, 200, 100):
        create_system_thread(
            processor, lambda timeout=timeout: (never.wait(timeout), order.append(timeout))
        )
    processor.run_until(lambda: len(order) == 4)
    assert order == [100, 100, 200, 300]


def test_a_satisfied_wait_leaves_no_deadline(processor: Processor):
    event = Event(processor, notification=False)

    def body() -> None:
        for _ in range(3):
            processor.schedule_hardware(event.set)
            assert event.wait(10**9) == STATUS_SUCCESS
        assert len(processor.dispatcher.timers) == 0
        assert processor.clock.now_ns() == 0

    processor.run_thread(body)


def test_signalled_in_the_same_instant_as_the_timeout_the_earlier_entry_wins(
    processor: Processor,
):
    def body() -> None:
        timer = Timer(processor)
        timer.set(100)
        assert timer.wait(100) == STATUS_SUCCESS
        assert Event(processor, notification=True).wait(100) == STATUS_TIMEOUT

    processor.run_thread(body)


def test_a_look_never_sleeps(processor: Processor):
    def body() -> None:
        event = Event(processor, notification=False)
        switches = processor.thread_switches
        assert event.wait(0) == STATUS_TIMEOUT
        event.set()
        assert event.wait(0) == STATUS_SUCCESS
        assert processor.thread_switches == switches

    processor.run_thread(body)


# Order and priority


def test_a_higher_thread_runs_at_once_below_dispatch_level(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def waiter() -> None:
        event.wait()
        order.append("high")

    def body(level: int) -> None:
        create_system_thread(processor, waiter, priority=9)
        processor.raise_irql(level)
        order.append("sets")
        event.set()
        order.append("goes on")
        assert processor.irql == level
        processor.lower_irql(PASSIVE_LEVEL)

    for level in (PASSIVE_LEVEL, APC_LEVEL):
        processor.run_thread(body, level)
    assert order == ["sets", "high", "goes on"] * 2


def test_an_equal_thread_waits_its_turn(free: Processor):
    order: list[str] = []
    event = Event(free, notification=False)

    def waiter() -> None:
        event.wait()
        order.append("equal")

    def body() -> None:
        event.set()
        order.append("goes on")

    create_system_thread(free, waiter)
    settle(free)
    free.run_thread(body)
    free.run_until(lambda: len(order) == 2)
    assert order == ["goes on", "equal"]


def test_a_pre_empted_thread_goes_on_before_its_equals(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def high() -> None:
        event.wait()
        order.append("high")

    def pre_empted() -> None:
        create_system_thread(processor, order.append, "equal")
        event.set()
        order.append("pre-empted")

    create_system_thread(processor, high, priority=12)
    create_system_thread(processor, pre_empted)
    processor.run_until(lambda: len(order) == 3)
    assert order == ["high", "pre-empted", "equal"]


@pytest.mark.parametrize(
    ("base", "increment", "expected"),
    [(8, 2, 10), (14, 6, 15), (16, 6, 16), (31, 1, 31), (1, 0, 1)],
)
def test_a_boost_lasts_until_the_next_wait(
    processor: Processor, base: int, increment: int, expected: int
):
    event = Event(processor, notification=False)
    seen: list[int] = []

    def body() -> None:
        event.wait()
        seen.append(current(processor).priority)
        event.wait()
        seen.append(current(processor).priority)

    create_system_thread(processor, body, priority=base)
    settle(processor)
    event.set(increment)
    settle(processor)
    event.set()
    processor.run_until(lambda: len(seen) == 2)
    assert seen == [expected, base]


def test_a_boost_decides_who_runs(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def boosted() -> None:
        event.wait()
        order.append("boosted")

    create_system_thread(processor, boosted, priority=8)
    settle(processor)
    processor.run_thread(lambda: (event.set(1), order.append("setter")))
    assert order == ["boosted", "setter"]


def test_each_thread_keeps_its_own_level(processor: Processor):
    event = Event(processor, notification=True)
    levels: list[tuple[str, int]] = []

    def at_apc_level() -> None:
        processor.raise_irql(APC_LEVEL)
        event.wait()
        levels.append(("apc", processor.irql))
        processor.lower_irql(PASSIVE_LEVEL)

    def at_passive_level() -> None:
        levels.append(("passive", processor.irql))
        event.wait()
        levels.append(("passive", processor.irql))

    create_system_thread(processor, at_apc_level)
    create_system_thread(processor, at_passive_level)
    settle(processor)
    event.set()
    processor.run_until(lambda: len(levels) == 3)
    assert levels == [
        ("passive", PASSIVE_LEVEL),
        ("apc", APC_LEVEL),
        ("passive", PASSIVE_LEVEL),
    ]


# Alerts, termination, user APCs


def user_thread(processor: Processor) -> KThread:
    return create_user_thread(processor, KProcess(processor, "user"), "user")


def enter(processor: Processor, thread: KThread, wait: Callable[[], int]) -> list[int]:
    """Have a user thread wait in a system service; the list gets its status."""
    statuses: list[int] = []
    thread.enter_kernel(lambda: statuses.append(wait()))
    processor.run_until(lambda: thread.is_waiting or bool(statuses))
    return statuses


@pytest.mark.parametrize("early", [True, False], ids=["pending alert", "alert while waiting"])
def test_an_alert_ends_an_alertable_wait_once(processor: Processor, early: bool):
    never, thread = Event(processor, notification=True), user_thread(processor)
    if early:
        thread.alert()
    statuses = enter(processor, thread, lambda: never.wait(alertable=True))
    if not early:
        assert not statuses
        thread.alert()
    processor.run_until(lambda: statuses == [STATUS_ALERTED])
    assert not thread.alerted
    assert not never.waits
    assert enter(processor, thread, lambda: never.wait(5, alertable=True)) == []
    processor.run_until(lambda: thread.in_user_mode)


def test_an_alert_does_not_end_other_waits(processor: Processor):
    event, thread = Event(processor, notification=False), user_thread(processor)
    statuses = enter(processor, thread, event.wait)
    thread.alert()
    settle(processor)
    assert not statuses
    event.set()
    processor.run_until(lambda: statuses == [STATUS_SUCCESS])
    assert thread.alerted


def test_a_signalled_object_comes_before_an_alert_and_an_alert_before_the_time(
    processor: Processor,
):
    event, thread = Event(processor, notification=False, signaled=True), user_thread(processor)
    thread.alert()
    look = [enter(processor, thread, lambda: event.wait(0, alertable=True))[0] for _ in range(3)]
    assert look == [STATUS_SUCCESS, STATUS_ALERTED, STATUS_TIMEOUT]


@pytest.mark.parametrize("alertable", [True, False])
def test_a_user_apc_ends_only_an_alertable_user_mode_wait(processor: Processor, alertable: bool):
    event, thread = Event(processor, notification=False), user_thread(processor)
    statuses = enter(processor, thread, lambda: event.wait(alertable=alertable, mode=USER_MODE))
    apc = UserApc(thread)
    assert apc.insert() is True
    assert apc.insert() is False
    if not alertable:
        settle(processor)
        assert not statuses
        event.set()
    expected = STATUS_USER_APC if alertable else STATUS_SUCCESS
    processor.run_until(lambda: statuses == [expected])
    # It stays queued until user mode takes it, and ends the next such wait too.
    later = enter(processor, thread, lambda: event.wait(alertable=True, mode=USER_MODE))
    assert later == [STATUS_USER_APC]
    assert apc.remove() is True
    assert enter(processor, thread, lambda: event.wait(0, alertable=True)) == [STATUS_TIMEOUT]


def test_a_user_apc_does_not_end_a_kernel_mode_wait(processor: Processor):
    event, thread = Event(processor, notification=False), user_thread(processor)
    statuses = enter(processor, thread, lambda: event.wait(alertable=True, mode=KERNEL_MODE))
    UserApc(thread).insert()
    settle(processor)
    assert not statuses
    event.set()
    processor.run_until(lambda: statuses == [STATUS_SUCCESS])


def test_termination_breaks_user_mode_waits_now_and_from_now_on(processor: Processor):
    never, thread = Event(processor, notification=True), user_thread(processor)
    statuses = enter(processor, thread, lambda: never.wait(10**9, mode=USER_MODE))
    thread.terminate()
    processor.run_until(lambda: statuses == [STATUS_THREAD_IS_TERMINATING])
    assert processor.clock.now_ns() == 0
    for wait in (
        lambda: never.wait(mode=USER_MODE),
        lambda: never.wait(0, mode=USER_MODE),
        lambda: delay_execution(processor, 10**9, mode=USER_MODE),
    ):
        assert enter(processor, thread, wait) == [STATUS_THREAD_IS_TERMINATING]
    assert len(processor.dispatcher.timers) == 0
    assert not never.waits


def test_termination_does_not_break_a_kernel_mode_wait(processor: Processor):
    event, thread = Event(processor, notification=False), user_thread(processor)
    statuses = enter(processor, thread, event.wait)
    thread.terminate()
    settle(processor)
    assert not statuses
    event.set()
    processor.run_until(lambda: statuses == [STATUS_SUCCESS])


# Where waiting is forbidden


def wait_single(processor: Processor, timeout: int | None) -> None:
    Event(processor, notification=True).wait(timeout)


def wait_multiple(processor: Processor, timeout: int | None) -> None:
    wait_for_multiple([Event(processor, notification=True)], True, timeout)


def at_level(processor: Processor, level: int, act: Any, timeout: int | None) -> None:
    processor.raise_irql(level)
    act(processor, timeout)


@pytest.mark.parametrize("act", [wait_single, wait_multiple])
@pytest.mark.parametrize("timeout", [None, 5])
def test_a_wait_at_dispatch_level_is_a_bug_check(
    free: Processor, stops: Any, act: Any, timeout: Any
):
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DISPATCH_LEVEL):
        free.run_thread(at_level, free, DISPATCH_LEVEL, act, timeout)


@pytest.mark.parametrize("act", [wait_single, wait_multiple])
@pytest.mark.parametrize(
    ("level", "timeout", "sub_code"),
    [(DISPATCH_LEVEL, None, 0x121), (DISPATCH_LEVEL, 5, 0x122), (HIGH_LEVEL, 0, 0x120)],
)
def test_verifier_names_the_wait(
    checked: Processor, stops: Any, act: Any, level: int, timeout: int | None, sub_code: int
):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, sub_code, level):
        checked.run_thread(at_level, checked, level, act, timeout)


def test_a_delay_at_dispatch_level_is_a_bug_check(free: Processor, stops: Any):
    def body() -> None:
        free.raise_irql(DISPATCH_LEVEL)
        delay_execution(free, 0)

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DISPATCH_LEVEL):
        free.run_thread(body)


def test_the_dispatcher_itself_cannot_wait(processor: Processor, stops: Any):
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        Event(processor, notification=True).wait()
