"""Guarded mutexes, as Server 2003 and as Windows 8 have them: state, levels, APCs, order."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.scheduling.apc import NormalKernelApc, SpecialKernelApc
from kernel_proc.scheduling.bugcheck import (
    ATTEMPTED_SWITCH_FROM_DPC,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.owned_lock import OwnedLock
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.wait import delay_execution

AS_2003 = False
AS_WINDOWS_8 = True


def new_processor(at_apc_level: bool, verifier: bool, seed: int | None = None) -> Processor:
    return Processor(
        VirtualClock(), verifier=verifier, seed=seed, guarded_mutexes_at_apc_level=at_apc_level
    )


@pytest.fixture(
    params=itertools.product((AS_2003, AS_WINDOWS_8), (False, True)),
    ids=["2003 free", "2003 verifier", "win8 free", "win8 verifier"],
)
def processor(request: pytest.FixtureRequest) -> Processor:
    return new_processor(*request.param)


@pytest.fixture(params=[AS_2003, AS_WINDOWS_8], ids=["2003", "win8"])
def checked(request: pytest.FixtureRequest) -> Processor:
    return new_processor(request.param, verifier=True)


@pytest.fixture(params=[AS_2003, AS_WINDOWS_8], ids=["2003", "win8"])
def free(request: pytest.FixtureRequest) -> Processor:
    return new_processor(request.param, verifier=False)


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def state(mutex: OwnedLock) -> tuple[int, KThread | None, int]:
    return mutex.count, mutex.owner, mutex.contention


def test_a_new_guarded_mutex(processor: Processor):
    assert state(GuardedMutex(processor)) == (1, None, 0)


def test_server_2003_is_the_behaviour_of_a_machine_that_chose_none():
    assert Processor(VirtualClock()).guarded_mutexes_at_apc_level is False


@pytest.mark.parametrize("level", [PASSIVE_LEVEL, APC_LEVEL])
@pytest.mark.parametrize("how", ["acquire", "try_acquire"])
def test_acquire_and_release(processor: Processor, level: int, how: str):
    mutex = GuardedMutex(processor)
    at_apc_level = processor.guarded_mutexes_at_apc_level

    def body() -> None:
        thread = current(processor)
        processor.raise_irql(level)
        assert getattr(mutex, how)() in (None, True)
        assert state(mutex) == (0, thread, 0)
        assert processor.irql == (APC_LEVEL if at_apc_level else level)
        assert thread.special_apc_disable == (0 if at_apc_level else -1)
        assert thread.are_apcs_disabled() is not at_apc_level  # which counts regions, not levels
        assert thread.are_all_apcs_disabled()
        mutex.release()
        assert state(mutex) == (1, None, 0)
        assert (processor.irql, thread.special_apc_disable) == (level, 0)
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_try_to_acquire_one_that_is_held_changes_nothing(processor: Processor):
    mutex = GuardedMutex(processor)

    def body() -> None:
        thread = current(processor)
        mutex.acquire()
        before = (state(mutex), processor.irql, thread.special_apc_disable)
        assert mutex.try_acquire() is False
        assert (state(mutex), processor.irql, thread.special_apc_disable) == before
        mutex.release()
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)


def test_unsafe_forms_leave_level_and_region_alone(processor: Processor):
    mutex = GuardedMutex(processor)

    def body() -> None:
        thread = current(processor)
        thread.enter_guarded_region()
        mutex.acquire_unsafe()
        assert state(mutex) == (0, thread, 0)
        assert (processor.irql, thread.special_apc_disable) == (PASSIVE_LEVEL, -1)
        mutex.release_unsafe()
        assert state(mutex) == (1, None, 0)
        assert (processor.irql, thread.special_apc_disable) == (PASSIVE_LEVEL, -1)
        thread.leave_guarded_region()
        processor.raise_irql(APC_LEVEL)
        mutex.acquire_unsafe()
        assert (processor.irql, thread.special_apc_disable) == (APC_LEVEL, 0)
        mutex.release_unsafe()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


@pytest.mark.parametrize("kind", [SpecialKernelApc, NormalKernelApc])
def test_apcs_are_held_back_until_it_is_released(processor: Processor, kind: Any):
    mutex = GuardedMutex(processor)
    ran: list[str] = []

    def body() -> None:
        mutex.acquire()
        kind(current(processor), lambda apc: ran.append("apc")).insert()
        delay_execution(processor, 10)
        ran.append("release")
        mutex.release()
        ran.append("released")

    processor.run_thread(body)
    assert ran == ["release", "apc", "released"]


def test_one_inside_another_needs_both_released_before_apcs_come(processor: Processor):
    outer, inner = GuardedMutex(processor), GuardedMutex(processor)
    ran: list[str] = []

    def body() -> None:
        outer.acquire()
        inner.acquire()
        SpecialKernelApc(current(processor), lambda apc: ran.append("apc")).insert()
        inner.release()
        ran.append("inner released")
        outer.release()
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)
    assert ran == ["inner released", "apc"]


def acquire(processor: Processor, mutex: GuardedMutex) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.acquire()


def try_to_acquire(processor: Processor, mutex: GuardedMutex) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.try_acquire()


def release(processor: Processor, mutex: GuardedMutex) -> None:
    mutex.acquire()
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.release()


def acquire_unsafe(processor: Processor, mutex: GuardedMutex) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.acquire_unsafe()


def release_unsafe(processor: Processor, mutex: GuardedMutex) -> None:
    mutex.acquire()
    processor.raise_irql(DISPATCH_LEVEL)
    mutex.release_unsafe()


ABOVE = [acquire, try_to_acquire, release, acquire_unsafe, release_unsafe]


@pytest.mark.parametrize("act", ABOVE)
def test_above_apc_level_is_0x2000f_under_the_verifier(checked: Processor, stops: Any, act: Any):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x2000F, DISPATCH_LEVEL):
        checked.run_thread(act, checked, GuardedMutex(checked))


@pytest.mark.parametrize("act", ABOVE)
def test_above_apc_level_is_0x0a_in_a_free_build(free: Processor, stops: Any, act: Any):
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DISPATCH_LEVEL):
        free.run_thread(act, free, GuardedMutex(free))


@pytest.mark.parametrize("act", ["enter_guarded_region", "leave_guarded_region"])
def test_guarded_regions_above_apc_level_are_0x20010(checked: Processor, stops: Any, act: str):
    def body() -> None:
        checked.raise_irql(DISPATCH_LEVEL)
        getattr(current(checked), act)()

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x20010):
        checked.run_thread(body)


def test_verifier_lowered_before_the_release_as_in_windows_8(stops: Any):
    processor = new_processor(AS_WINDOWS_8, verifier=True)
    mutex = GuardedMutex(processor)

    def body() -> None:
        mutex.acquire()
        processor.lower_irql(PASSIVE_LEVEL)
        mutex.release()

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x34, PASSIVE_LEVEL, id(mutex)):
        processor.run_thread(body)


@pytest.mark.parametrize(("how", "code"), [("acquire_unsafe", 0x39), ("release_unsafe", 0x3A)])
def test_verifier_unsafe_form_with_apcs_on(checked: Processor, stops: Any, how: str, code: int):
    mutex = GuardedMutex(checked)

    def body() -> None:
        current(checked).enter_critical_region()  # not enough: special ones still come
        getattr(mutex, how)()

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, code):
        checked.run_thread(body)


@pytest.mark.parametrize("kind", [FastMutex, GuardedMutex])
def test_verifier_released_by_another_thread(checked: Processor, stops: Any, kind: Any):
    mutex = kind(checked)

    def holder() -> None:
        mutex.acquire()
        delay_execution(checked, 100)

    def thief() -> None:
        delay_execution(checked, 1)
        checked.raise_irql(APC_LEVEL)
        mutex.release()

    create_system_thread(checked, holder)
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x1004, id(mutex)):
        checked.run_thread(thief)


@pytest.mark.parametrize("kind", [FastMutex, GuardedMutex])
def test_verifier_released_though_never_acquired(checked: Processor, stops: Any, kind: Any):
    def body() -> None:
        checked.raise_irql(APC_LEVEL)
        kind(checked).release()

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x1007):
        checked.run_thread(body)


def test_without_a_thread_it_cannot_be_taken(stops: Any):
    processor = new_processor(AS_2003, verifier=False)
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        GuardedMutex(processor).acquire()


def test_acquiring_it_twice_is_a_deadlock_that_names_it(free: Processor):
    mutex = GuardedMutex(free, "command lock")

    def greedy() -> None:
        mutex.acquire()
        mutex.acquire()

    with pytest.raises(Deadlock) as caught:
        free.run_thread(greedy)
    (line,) = caught.value.threads
    assert "'greedy' waiting for Event(state 0) of guarded mutex 'command lock'" in line
    assert line.endswith(f"held by {mutex.owner}")


def test_it_is_handed_over_in_order_of_arrival(processor: Processor):
    mutex = GuardedMutex(processor)
    order: list[str] = []

    def body(name: str) -> None:
        mutex.acquire()
        delay_execution(processor, 100)
        order.append(name)
        mutex.release()

    threads = [
        create_system_thread(processor, body, name, priority=priority)
        for name, priority in [("a", 8), ("b", 4), ("c", 12), ("d", 8)]
    ]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    assert order == ["c", "a", "d", "b"]
    assert state(mutex) == (1, None, 3)


# Threads that do as they like

Visit = tuple[int, int, int]  # which lock, pause before, stay

visits = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5
)


class Club:
    """Three locks, who is inside, who waits in which order, and what visitors leave behind."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.locks: list[Any] = [
            GuardedMutex(processor),
            FastMutex(processor),
            GuardedMutex(processor),
        ]
        self.inside: dict[OwnedLock, KThread] = {}
        self.waiting: dict[OwnedLock, list[KThread]] = {lock: [] for lock in self.locks}
        self.contended = 0
        self.apcs_inside: list[str] = []

    def visit(self, script: list[Visit]) -> None:
        processor = self.processor
        thread = current(processor)
        for which, pause, stay in script:
            lock = self.locks[which]
            delay_execution(processor, pause)
            self.enter(lock, thread)
            apc = SpecialKernelApc(thread, lambda apc, lock=lock: self.apc_ran(lock, thread))
            apc.insert()
            delay_execution(processor, stay)
            assert self.inside.pop(lock) is thread
            lock.release()
            assert not apc.inserted
            assert (processor.irql, thread.special_apc_disable) == (PASSIVE_LEVEL, 0)

    def enter(self, lock: Any, thread: KThread) -> None:
        waiting = self.waiting[lock]
        if lock.count == 1 and not waiting:
            assert lock.try_acquire()
        else:
            self.contended += 1
            waiting.append(thread)
            lock.acquire()
            assert waiting.pop(0) is thread  # first come, first served
        assert lock.owner is thread
        assert thread.are_all_apcs_disabled()
        assert lock not in self.inside
        self.inside[lock] = thread

    def apc_ran(self, lock: OwnedLock, thread: KThread) -> None:
        if self.inside.get(lock) is thread:
            self.apcs_inside.append(str(lock))


@settings(max_examples=60, deadline=None)
@given(
    scripts=st.lists(visits, min_size=2, max_size=5),
    at_apc_level=st.booleans(),
    verifier=st.booleans(),
    seed=st.none() | st.integers(0, 3),
)
def test_whatever_threads_do_one_is_inside_and_arrival_counts(
    scripts: list[list[Visit]], at_apc_level: bool, verifier: bool, seed: int | None
):
    processor = new_processor(at_apc_level, verifier, seed)
    club = Club(processor)
    visit: Callable[..., None] = club.visit
    threads = [
        create_system_thread(processor, visit, script, priority=priority)
        for priority, script in enumerate(scripts, 6)
    ]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    assert [state(lock)[:2] for lock in club.locks] == [(1, None)] * 3
    assert sum(lock.contention for lock in club.locks) == club.contended
    assert club.apcs_inside == []


def test_a_thread_of_higher_priority_may_come_in_between_only_by_waiting(processor: Processor):
    mutex = GuardedMutex(processor)
    event = Event(processor, notification=False)
    order: list[str] = []

    def high() -> None:
        event.wait()
        mutex.acquire()
        order.append("high")
        mutex.release()

    def low() -> None:
        mutex.acquire()
        event.set()  # `high` takes the processor here, and has to wait
        order.append("low")
        mutex.release()
        order.append("low released")

    create_system_thread(processor, high, priority=12)
    processor.run_thread(low)
    assert order == ["low", "high", "low released"]
