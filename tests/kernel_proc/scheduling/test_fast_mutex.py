"""Fast mutexes: count, owner, levels, contention, and the deadlock with one's own APC."""

from typing import Any

import pytest

from kernel_proc.scheduling.apc import SpecialKernelApc
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.wait import delay_execution


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def state(mutex: FastMutex) -> tuple[int, KThread | None, int]:
    return mutex.count, mutex.owner, mutex.contention


def test_k9_a_new_fast_mutex(processor: Processor):
    assert state(FastMutex(processor)) == (1, None, 0)


@pytest.mark.parametrize("level", [PASSIVE_LEVEL, APC_LEVEL])
def test_k10_k12_acquire_and_release(processor: Processor, level: int):
    mutex = FastMutex(processor)

    def body() -> None:
        thread = current(processor)
        processor.raise_irql(level)
        mutex.acquire()
        assert state(mutex) == (0, thread, 0)
        assert mutex.old_irql == level
        assert processor.irql == APC_LEVEL
        assert not thread.are_apcs_disabled()
        assert thread.are_all_apcs_disabled()
        mutex.release()
        assert state(mutex) == (1, None, 0)
        assert processor.irql == level
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_k11_try_to_acquire(processor: Processor):
    mutex = FastMutex(processor)

    def body() -> None:
        thread = current(processor)
        assert mutex.try_acquire() is True
        assert processor.irql == APC_LEVEL
        assert mutex.try_acquire() is False
        assert state(mutex) == (0, thread, 0)
        assert mutex.old_irql == PASSIVE_LEVEL
        assert processor.irql == APC_LEVEL
        mutex.release()
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)


def test_k13_unsafe_forms_leave_the_level_alone(processor: Processor):
    mutex = FastMutex(processor)

    def body() -> None:
        thread = current(processor)
        mutex.old_irql = 7  # so that a change would show
        thread.enter_critical_region()
        mutex.acquire_unsafe()
        assert state(mutex) == (0, thread, 0)
        assert (processor.irql, mutex.old_irql) == (PASSIVE_LEVEL, 7)
        mutex.release_unsafe()
        assert state(mutex) == (1, None, 0)
        assert (processor.irql, mutex.old_irql) == (PASSIVE_LEVEL, 7)
        thread.leave_critical_region()

    processor.run_thread(body)


def test_k14_acquire_and_release_unsafe_stays_at_apc_level(free: Processor):
    mutex = FastMutex(free)

    def body() -> None:
        mutex.acquire()
        mutex.release_unsafe()
        assert free.irql == APC_LEVEL
        assert state(mutex) == (1, None, 0)
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


@pytest.mark.parametrize("left_behind", [PASSIVE_LEVEL, APC_LEVEL])
def test_k14_acquire_unsafe_and_release_takes_the_level_of_the_field(
    free: Processor, left_behind: int
):
    mutex = FastMutex(free)

    def body() -> None:
        mutex.old_irql = left_behind
        free.raise_irql(APC_LEVEL)
        mutex.acquire_unsafe()
        mutex.release()
        assert free.irql == left_behind
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


@pytest.mark.parametrize("level", [DISPATCH_LEVEL, HIGH_LEVEL])
@pytest.mark.parametrize("how", ["acquire", "try_acquire"])
def test_k16_free_build_does_not_check_the_level(free: Processor, level: int, how: str):
    mutex = FastMutex(free)

    def body() -> None:
        free.raise_irql(level)
        getattr(mutex, how)()
        assert (free.irql, mutex.old_irql) == (APC_LEVEL, level)
        mutex.release()
        assert free.irql == level
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


def test_k16_the_level_really_falls(free: Processor):
    ran: list[int] = []
    mutex = FastMutex(free)

    def body() -> None:
        free.raise_irql(DISPATCH_LEVEL)
        Dpc(free, lambda *_: ran.append(free.irql)).insert()
        assert mutex.try_acquire()
        assert ran == [DISPATCH_LEVEL]
        mutex.release()
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


def acquire_at_dispatch(processor: Processor, mutex: FastMutex) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.acquire()


def try_at_dispatch(processor: Processor, mutex: FastMutex) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.try_acquire()


def release_at_passive(processor: Processor, mutex: FastMutex) -> None:
    mutex.acquire()
    processor.lower_irql(PASSIVE_LEVEL)
    mutex.release()


def acquire_unsafe_at_passive(processor: Processor, mutex: FastMutex) -> None:
    mutex.acquire_unsafe()


def release_unsafe_at_passive(processor: Processor, mutex: FastMutex) -> None:
    mutex.acquire()
    processor.lower_irql(PASSIVE_LEVEL)
    mutex.release_unsafe()


@pytest.mark.parametrize(
    ("act", "sub_code"),
    [
        (acquire_at_dispatch, 0x33),
        (try_at_dispatch, 0x33),
        (release_at_passive, 0x34),
        (acquire_unsafe_at_passive, 0x39),
        (release_unsafe_at_passive, 0x3A),
    ],
)
def test_verifier_sub_codes(checked: Processor, stops: Any, act: Any, sub_code: int):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, sub_code):
        checked.run_thread(act, checked, FastMutex(checked))


def test_it_is_handed_over_in_order_of_arrival(processor: Processor):
    mutex = FastMutex(processor)
    inside: list[str] = []
    order: list[str] = []

    def body(name: str) -> None:
        mutex.acquire()
        assert not inside
        inside.append(name)
        delay_execution(processor, 100)
        inside.remove(name)
        order.append(name)
        mutex.release()
        assert processor.irql == PASSIVE_LEVEL

    threads = [
        create_system_thread(processor, body, name, name=name, priority=priority)
        for name, priority in [("a", 8), ("b", 4), ("c", 12), ("d", 8)]
    ]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    # "c" has the higher priority, so it ran first; those that had to wait keep their order.
    assert order == ["c", "a", "d", "b"]
    assert state(mutex) == (1, None, 3)
    assert processor.clock.now_ns() == 400


def test_the_one_it_was_handed_to_keeps_it_though_the_last_owner_asks_again(processor: Processor):
    mutex = FastMutex(processor)
    order: list[str] = []

    def low() -> None:
        mutex.acquire()
        order.append("low")
        mutex.release()

    def body() -> None:
        create_system_thread(processor, low, priority=2)
        mutex.acquire()
        delay_execution(processor, 1)
        mutex.release()
        assert mutex.owner is None  # handed over, and `low` has not run yet
        assert mutex.try_acquire() is False
        mutex.acquire()
        order.append("again")
        mutex.release()

    processor.run_thread(body)
    assert order == ["low", "again"]
    assert state(mutex) == (1, None, 2)


def test_each_owner_gets_its_own_level_back(processor: Processor):
    mutex = FastMutex(processor)
    levels: list[tuple[str, int]] = []

    def high() -> None:
        processor.raise_irql(APC_LEVEL)
        mutex.acquire()  # handed over, and it runs inside the release of the owner before
        levels.append(("high", mutex.old_irql))
        mutex.release()
        levels.append(("high", processor.irql))
        processor.lower_irql(PASSIVE_LEVEL)

    def body() -> None:
        mutex.acquire()
        processor.lower_irql(PASSIVE_LEVEL)  # for the creation only
        create_system_thread(processor, high, priority=12)
        processor.raise_irql(APC_LEVEL)
        mutex.release()
        levels.append(("body", processor.irql))

    processor.run_thread(body)
    assert levels == [("high", APC_LEVEL), ("high", APC_LEVEL), ("body", PASSIVE_LEVEL)]


def test_acquiring_it_twice_is_a_deadlock(free: Processor):
    mutex = FastMutex(free)

    def greedy() -> None:
        mutex.acquire()
        mutex.acquire()

    with pytest.raises(Deadlock, match="'greedy' waiting for Event"):
        free.run_thread(greedy)


def test_waiting_inside_for_what_ones_own_apc_would_signal_is_a_deadlock_that_names_it(
    processor: Processor,
):
    finished = Event(processor, notification=True)

    def holder(lock: Any) -> None:
        lock.acquire()
        apc = SpecialKernelApc(current(processor), lambda apc: finished.set())
        processor.schedule_hardware(apc.insert)
        finished.wait()

    with pytest.raises(Deadlock) as caught:
        processor.run_thread(holder, FastMutex(processor))
    (line,) = caught.value.threads
    assert "'holder' waiting for Event(state 0)" in line
    assert "at APC_LEVEL, which holds back 1 kernel APC of its own" in line
