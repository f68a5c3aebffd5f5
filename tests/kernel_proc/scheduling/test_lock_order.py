"""Deadlock detection: locks taken in two orders, and locks given back wrongly."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION, BugCheck
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.wait import delay_execution

Body = Callable[[], object]


class Locks:
    """Locks of each kind by name, and what threads do with them."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.spin = {name: SpinLock(processor, name) for name in "abc"}
        self.fast = {name: FastMutex(processor, name) for name in "abc"}

    def nest_spin(self, *names: str) -> None:
        levels = [self.spin[name].acquire() for name in names]
        for name, level in zip(reversed(names), reversed(levels), strict=True):
            self.spin[name].release(level)

    def nest_fast(self, *names: str) -> None:
        for name in names:
            self.fast[name].acquire()
        for name in reversed(names):
            self.fast[name].release()


@pytest.fixture
def locks(checked: Processor) -> Locks:
    return Locks(checked)


@pytest.fixture
def wrong(checked: Processor, stops: Any) -> Callable[..., BugCheck]:
    """Run a body in a thread; it ends in 0xC4 with that code."""

    def run(code: int, body: Callable[..., object], *args: Any) -> BugCheck:
        with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, code) as caught:
            checked.run_thread(body, *args)
        stop: BugCheck = caught.value
        return stop

    return run


@pytest.mark.parametrize("kind", ["spin", "fast"])
def test_c4_1001_two_orders(checked: Processor, locks: Locks, wrong: Any, kind: str):
    nest = locks.nest_spin if kind == "spin" else locks.nest_fast
    checked.run_thread(nest, "a", "b")
    checked.run_thread(nest, "a", "b")
    stop = wrong(0x1001, nest, "b", "a")
    what = "spin lock" if kind == "spin" else "fast mutex"
    assert f"{what} 'a' taken at Locks.nest_{kind}" in stop.headline()
    assert f"under {what} 'b', but {what} 'b' was taken at" in stop.headline()
    assert stop.parameters[1:3] == (id(getattr(locks, kind)["a"]), id(getattr(locks, kind)["b"]))


def test_c4_1001_by_way_of_a_third_lock(checked: Processor, locks: Locks, wrong: Any):
    checked.run_thread(locks.nest_spin, "a", "b")
    checked.run_thread(locks.nest_spin, "b", "c")
    headline = wrong(0x1001, locks.nest_spin, "c", "a").headline()
    assert headline.count("was taken at") == 2


def test_c4_1001_between_kinds(checked: Processor, locks: Locks, wrong: Any):
    guarded = GuardedMutex(checked, "guarded")

    def one() -> None:
        guarded.acquire()
        locks.nest_fast("a")
        guarded.release()

    def other() -> None:
        locks.fast["a"].acquire()
        guarded.acquire()

    checked.run_thread(one)
    assert "guarded mutex 'guarded' taken at" in wrong(0x1001, other).headline()


def test_a_lock_that_is_tried_for_may_come_in_any_order(checked: Processor, locks: Locks):
    def try_backwards() -> None:
        locks.fast["b"].acquire()
        assert locks.fast["a"].try_acquire()
        locks.fast["a"].release()
        locks.fast["b"].release()

    checked.run_thread(locks.nest_fast, "a", "b")
    checked.run_thread(try_backwards)


def test_c4_1001_a_lock_taken_under_one_that_was_tried_for(
    checked: Processor, locks: Locks, wrong: Any
):
    def try_then_take() -> None:
        assert locks.fast["b"].try_acquire()
        locks.nest_fast("a")

    checked.run_thread(locks.nest_fast, "a", "b")
    wrong(0x1001, try_then_take)


def test_a_dpc_holds_nothing_of_the_thread_it_interrupts(checked: Processor, locks: Locks):
    def in_dpc(*_: Any) -> None:
        locks.spin["a"].acquire_at_dpc_level()
        locks.spin["a"].release_from_dpc_level()

    def holder() -> None:
        locks.fast["a"].acquire()
        Dpc(checked, in_dpc).insert()
        locks.fast["a"].release()

    def spin_first() -> None:
        old = checked.raise_irql(APC_LEVEL)
        locks.nest_spin("a", "b")
        checked.lower_irql(old)

    checked.run_thread(holder)
    checked.run_thread(spin_first)
    assert checked.lock_order is not None
    assert not checked.lock_order.held


def test_threads_that_hold_different_locks_make_no_order(checked: Processor, locks: Locks):
    def body(first: str, second: str) -> None:
        locks.fast[first].acquire()
        delay_execution(checked, 100)
        locks.fast[first].release()
        locks.nest_fast(second)

    threads = [create_system_thread(checked, body, *names) for names in ("ab", "ba")]
    checked.run_until(lambda: all(thread.ended for thread in threads))


def test_locks_that_are_gone_leave_the_record(checked: Processor, locks: Locks):
    checked.run_thread(locks.nest_spin, "a", "b")
    order = checked.lock_order
    assert order is not None
    assert len(order._after) == 1
    locks.spin.clear()
    gc.collect()
    assert len(order._after) == 0


@pytest.mark.parametrize("kind", [FastMutex, GuardedMutex])
def test_c4_1000_a_lock_taken_once_more(checked: Processor, wrong: Any, kind: Any):
    lock = kind(checked, "greedy")

    def twice() -> None:
        lock.acquire()
        lock.acquire()

    assert "'greedy', taken at" in wrong(0x1000, twice).headline()


def test_c4_1003_released_before_a_later_one(locks: Locks, wrong: Any):
    def hand_over_hand() -> None:
        old = locks.spin["a"].acquire()
        locks.spin["b"].acquire()
        locks.spin["a"].release(old)

    stop = wrong(0x1003, hand_over_hand)
    assert "'a' is released before spin lock 'b'" in stop.headline()
    assert stop.parameters[1:3] == (id(locks.spin["a"]), id(locks.spin["b"]))


def test_c4_1004_a_spin_lock_released_by_another_thread(
    checked: Processor, locks: Locks, wrong: Any
):
    lock = locks.spin["a"]

    def careless() -> None:
        lock.acquire()
        checked.lower_irql(PASSIVE_LEVEL)
        delay_execution(checked, 100)

    def other() -> None:
        checked.raise_irql(DISPATCH_LEVEL)
        lock.release(PASSIVE_LEVEL)

    create_system_thread(checked, careless)
    checked.run_until(lambda: lock.held)
    wrong(0x1004, other)


def spin_taken_plainly(locks: Locks) -> None:
    locks.spin["a"].acquire()
    locks.spin["a"].release_from_dpc_level()


def spin_taken_at_dpc_level(locks: Locks) -> None:
    locks.processor.raise_irql(DISPATCH_LEVEL)
    locks.spin["a"].acquire_at_dpc_level()
    locks.spin["a"].release(PASSIVE_LEVEL)


def mutex_taken_plainly(locks: Locks) -> None:
    locks.fast["a"].acquire()
    locks.fast["a"].release_unsafe()


def mutex_taken_unsafely(locks: Locks) -> None:
    locks.processor.raise_irql(APC_LEVEL)
    locks.fast["a"].acquire_unsafe()
    locks.fast["a"].release()


@pytest.mark.parametrize(
    "body",
    [spin_taken_plainly, spin_taken_at_dpc_level, mutex_taken_plainly, mutex_taken_unsafely],
)
def test_c4_1009_released_by_the_routine_of_the_other_pair(locks: Locks, wrong: Any, body: Any):
    wrong(0x1009, body, locks)


def left_spin_lock(locks: Locks) -> None:
    locks.spin["a"].acquire()
    locks.processor.lower_irql(PASSIVE_LEVEL)


def left_fast_mutex(locks: Locks) -> None:
    locks.fast["a"].acquire()
    locks.processor.lower_irql(PASSIVE_LEVEL)


@pytest.mark.parametrize("body", [left_spin_lock, left_fast_mutex])
def test_c4_100a_a_thread_ends_with_a_lock(locks: Locks, wrong: Any, body: Any):
    assert f"ended with {'spin lock' if 'spin' in body.__name__ else 'fast mutex'} 'a'" in (
        wrong(0x100A, body, locks).headline()
    )


def test_c4_20015_another_irql_handed_back(checked: Processor, locks: Locks, wrong: Any):
    def body() -> None:
        checked.raise_irql(APC_LEVEL)
        locks.spin["a"].acquire()
        locks.spin["a"].release(PASSIVE_LEVEL)

    assert "IRQL 1 was saved at" in wrong(0x20015, body).headline()


def test_the_free_build_keeps_no_record(free: Processor):
    locks = Locks(free)
    assert free.lock_order is None
    for names in ("ab", "ba"):
        free.run_thread(locks.nest_spin, *names)
        free.run_thread(locks.nest_fast, *names)


Pairs = st.lists(st.permutations("abc").map(lambda names: tuple(names[:2])), max_size=6)


@given(nestings=Pairs)
def test_a_cycle_is_found_exactly_when_there_is_one(nestings: list[tuple[str, str]]):
    processor = Processor(VirtualClock(), verifier=True)
    locks = Locks(processor)
    under: set[tuple[str, str]] = set()

    def closes_a_cycle(first: str, second: str) -> bool:
        reached, waiting = {second}, [second]
        while waiting:
            name = waiting.pop()
            waiting += [b for a, b in under if a == name and b not in reached]
            reached |= {b for a, b in under if a == name}
        return first in reached

    for first, second in nestings:
        if closes_a_cycle(first, second):
            with pytest.raises(BugCheck) as caught:
                processor.run_thread(locks.nest_spin, first, second)
            assert caught.value.parameters[0] == 0x1001
            return
        processor.run_thread(locks.nest_spin, first, second)
        under.add((first, second))
