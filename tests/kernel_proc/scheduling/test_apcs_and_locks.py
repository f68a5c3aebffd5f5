"""Every lock against every kind of APC: which come while it is held, and who hangs.

The table of docs/apcs-and-locks.md, row by row. "Own request" stands for an IRP of the thread: what
it waits for is signalled by a special kernel APC in the same thread.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kernel_proc.scheduling.apc import NormalKernelApc, SpecialKernelApc, UserApc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.wait import delay_execution
from shared.nt_status import STATUS_SUCCESS

# Called with the processor and its thread: take the lock, and return what gives it back.
Lock = Callable[[Processor, KThread], Callable[[], object]]


def nothing(processor: Processor, thread: KThread) -> Callable[[], object]:
    return lambda: None


def critical_region(processor: Processor, thread: KThread) -> Callable[[], object]:
    thread.enter_critical_region()
    return thread.leave_critical_region


def kmutex(processor: Processor, thread: KThread) -> Callable[[], object]:
    mutex = Mutex(processor)
    mutex.wait()
    return mutex.release


def unsafe_fast_mutex(processor: Processor, thread: KThread) -> Callable[[], object]:
    mutex = FastMutex(processor)
    thread.enter_critical_region()
    mutex.acquire_unsafe()
    return lambda: (mutex.release_unsafe(), thread.leave_critical_region())


def event_as_lock(processor: Processor, thread: KThread) -> Callable[[], object]:
    event = Event(processor, notification=False, signaled=True)
    event.wait()
    return event.set


def guarded_region(processor: Processor, thread: KThread) -> Callable[[], object]:
    thread.enter_guarded_region()
    return thread.leave_guarded_region


def guarded_mutex(processor: Processor, thread: KThread) -> Callable[[], object]:
    mutex = GuardedMutex(processor)
    mutex.acquire()
    return mutex.release


def fast_mutex(processor: Processor, thread: KThread) -> Callable[[], object]:
    mutex = FastMutex(processor)
    mutex.acquire()
    return mutex.release


def apc_level(processor: Processor, thread: KThread) -> Callable[[], object]:
    old = processor.raise_irql(APC_LEVEL)
    return lambda: processor.lower_irql(old)


def spin_lock(processor: Processor, thread: KThread) -> Callable[[], object]:
    lock = SpinLock(processor)
    old = lock.acquire()
    return lambda: lock.release(old)


class Row(NamedTuple):
    lock: Lock
    irql: int
    normal: bool
    special: bool
    since_windows_8: bool = False

    def machine(self, verifier: bool) -> Processor:
        at_apc = self.since_windows_8
        return Processor(VirtualClock(), verifier=verifier, guarded_mutexes_at_apc_level=at_apc)

    def name(self) -> str:
        return self.lock.__name__ + (" since Windows 8" if self.since_windows_8 else "")


TABLE = [
    Row(nothing, PASSIVE_LEVEL, normal=True, special=True),
    Row(event_as_lock, PASSIVE_LEVEL, normal=True, special=True),
    Row(critical_region, PASSIVE_LEVEL, normal=False, special=True),
    Row(kmutex, PASSIVE_LEVEL, normal=False, special=True),
    Row(unsafe_fast_mutex, PASSIVE_LEVEL, normal=False, special=True),
    Row(guarded_region, PASSIVE_LEVEL, normal=False, special=False),
    Row(guarded_mutex, PASSIVE_LEVEL, normal=False, special=False),
    Row(guarded_mutex, APC_LEVEL, normal=False, special=False, since_windows_8=True),
    Row(fast_mutex, APC_LEVEL, normal=False, special=False),
    Row(apc_level, APC_LEVEL, normal=False, special=False),
    Row(spin_lock, DISPATCH_LEVEL, normal=False, special=False),
]
WAITABLE = [row for row in TABLE if row.irql < DISPATCH_LEVEL]

both_builds = pytest.mark.parametrize("verifier", [False, True], ids=["free", "verifier"])
every_lock = pytest.mark.parametrize("row", TABLE, ids=[row.name() for row in TABLE])
every_waitable_lock = pytest.mark.parametrize("row", WAITABLE, ids=[row.name() for row in WAITABLE])


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


@both_builds
@every_lock
def test_which_apcs_come_while_it_is_held_and_all_after(row: Row, verifier: bool):
    processor = row.machine(verifier)
    ran: list[str] = []

    def body() -> None:
        thread = current(processor)
        release = row.lock(processor, thread)
        assert processor.irql == row.irql
        NormalKernelApc(thread, normal_routine=lambda apc: ran.append("normal")).insert()
        SpecialKernelApc(thread, lambda apc: ran.append("special")).insert()
        assert ran == ["normal"] * row.normal + ["special"] * row.special
        release()
        assert sorted(ran) == ["normal", "special"]
        assert processor.irql == PASSIVE_LEVEL
        assert not thread.are_apcs_disabled()

    processor.run_thread(body)


@both_builds
@every_waitable_lock
def test_the_same_while_the_holder_waits(row: Row, verifier: bool):
    processor = row.machine(verifier)
    ran: list[str] = []

    def body() -> None:
        thread = current(processor)
        release = row.lock(processor, thread)
        normal = NormalKernelApc(thread, normal_routine=lambda apc: ran.append("normal"))
        special = SpecialKernelApc(thread, lambda apc: ran.append("special"))
        processor.schedule_hardware(normal.insert)
        processor.schedule_hardware(special.insert)
        delay_execution(processor, 10)
        assert processor.irql == row.irql
        assert sorted(ran) == ["normal"] * row.normal + ["special"] * row.special
        release()
        assert sorted(ran) == ["normal", "special"]

    processor.run_thread(body)


@both_builds
@every_waitable_lock
def test_waiting_for_ones_own_request_works_or_hangs_and_is_named(row: Row, verifier: bool):
    processor = row.machine(verifier)

    def client() -> int:
        thread = current(processor)
        finished = Event(processor, notification=True)
        release = row.lock(processor, thread)
        completion = SpecialKernelApc(thread, lambda apc: finished.set())
        processor.schedule_hardware(completion.insert)
        status = finished.wait()
        release()
        return status

    if row.special:
        assert processor.run_thread(client) == STATUS_SUCCESS
        return
    with pytest.raises(Deadlock) as caught:
        processor.run_thread(client)
    (line,) = caught.value.threads
    assert "'client' waiting for Event(state 0)" in line
    reason = "at APC_LEVEL" if row.irql == APC_LEVEL else "in a guarded region"
    assert f"{reason}, which holds back 1 kernel APC of its own" in line


@both_builds
@every_waitable_lock
def test_an_event_set_by_a_completion_routine_needs_no_apc_and_works(row: Row, verifier: bool):
    """IoAllocateIrp with a completion routine that sets the caller's own event."""
    processor = row.machine(verifier)

    def client() -> int:
        finished = Event(processor, notification=True)
        release = row.lock(processor, current(processor))
        processor.schedule_hardware(finished.set)
        status = finished.wait()
        release()
        return status

    assert processor.run_thread(client) == STATUS_SUCCESS


@both_builds
@every_waitable_lock
def test_a_user_apc_never_runs_in_the_kernel(row: Row, verifier: bool):
    processor = row.machine(verifier)

    def body() -> None:
        thread = current(processor)
        release: Any = row.lock(processor, thread)
        apc = UserApc(thread, lambda apc: pytest.fail("ran"))
        processor.schedule_hardware(apc.insert)
        delay_execution(processor, 10, alertable=True)
        release()
        assert apc.inserted
        assert apc.remove()

    processor.run_thread(body)
