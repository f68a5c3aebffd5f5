"""Threads that race through random scripts: whatever the order, what must hold holds.

Every blocking step has a time limit or an owner that will let go, so every thread must end.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.scheduling.apc import NormalKernelApc, SpecialKernelApc
from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, MEDIUM_IMPORTANCE, Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import delay_execution, wait_for_multiple
from shared.nt_status import STATUS_SUCCESS

INITIAL = 2  # semaphore count

Step = tuple[Any, ...]

times = st.integers(0, 30)
which = st.integers(0, 2)
simple_steps = st.one_of(
    st.tuples(st.just("set"), which),
    st.tuples(st.just("pulse"), which),
    st.tuples(st.just("clear"), which),
    st.tuples(st.just("wait any"), st.lists(which, min_size=1, max_size=3, unique=True), times),
    st.tuples(st.just("wait all"), st.lists(which, min_size=1, max_size=3, unique=True), times),
    st.tuples(st.just("take"), times),
    st.tuples(st.just("give"), st.integers(1, 2)),
    st.tuples(st.just("delay"), times),
    st.tuples(st.just("yield")),
    st.tuples(st.just("spin")),
    st.tuples(st.just("dpc"), which, st.booleans()),
    st.tuples(st.just("special apc"), which),
    st.tuples(st.just("normal apc"), which),
    st.tuples(st.just("timer"), times),
)
steps = st.one_of(
    simple_steps,
    st.tuples(st.just("fast mutex"), st.lists(simple_steps, max_size=3)),
    st.tuples(
        st.just("mutex"),
        st.lists(
            simple_steps | st.tuples(st.just("fast mutex"), st.lists(simple_steps, max_size=2)),
            max_size=3,
        ),
    ),
)
scripts = st.lists(
    st.tuples(st.integers(1, 31), st.lists(steps, min_size=1, max_size=6)), min_size=2, max_size=5
)


@dataclasses.dataclass
class Counts:
    given: int = 0
    taken: int = 0
    spins: int = 0
    apcs: int = 0
    apcs_run: int = 0
    apcs_run_down: int = 0
    dpcs: int = 0
    dpcs_run: int = 0


class Race:
    """One machine, its objects and its threads; every step leaves a mark in `trace`."""

    def __init__(self, verifier: bool, seed: int | None) -> None:
        processor = self.processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
        self.events = [Event(processor, notification=number == 0) for number in range(3)]
        self.semaphore = Semaphore(processor, INITIAL, 1_000)
        self.mutex = Mutex(processor)
        self.fast_mutex = FastMutex(processor)
        self.spin_lock = SpinLock(processor)
        self.timer = Timer(processor, notification=False)
        self.counts = Counts()
        self.unlocked_count = 0
        self.inside: dict[str, KThread] = {}
        self.trace: list[tuple[int, int, str]] = []
        self.threads: list[KThread] = []

    def run(self, scripts: list[tuple[int, list[Step]]]) -> None:
        for priority, script in scripts:
            thread = create_system_thread(self.processor, self._play, script, priority=priority)
            self.threads.append(thread)
        self.processor.run_until(self._all_ended)
        self.timer.cancel()
        self.processor.run_thread(delay_execution, self.processor, 1)  # DPCs of low importance

    def _all_ended(self) -> bool:
        """Look at every pass of the dispatcher: no wait is left that could be satisfied."""
        assert self.processor.current_thread is None
        assert self.processor.irql == PASSIVE_LEVEL
        for thread in self.threads:
            wait = thread.wait_block
            if thread.is_waiting:
                assert wait is not None
                assert wait.status is None
                ready = [entry.is_signaled_for(thread) for entry in wait.objects]
                assert not ready or not (all(ready) if wait.wait_all else any(ready))
        return all(thread.ended for thread in self.threads)

    def _play(self, script: list[Step]) -> None:
        thread = self.processor.current_thread
        assert thread is not None
        for step in script:
            irql = self.processor.irql
            self.trace.append((self.processor.clock.now_ns(), thread.number, step[0]))
            getattr(self, "_" + step[0].replace(" ", "_"))(*step[1:])
            assert self.processor.current_thread is thread
            assert self.processor.irql == irql

    def _set(self, number: int) -> None:
        self.events[number].set(1)

    def _pulse(self, number: int) -> None:
        self.events[number].pulse()

    def _clear(self, number: int) -> None:
        self.events[number].clear()

    def _wait_any(self, numbers: list[int], timeout: int) -> None:
        wait_for_multiple([self.events[number] for number in numbers], False, timeout)

    def _wait_all(self, numbers: list[int], timeout: int) -> None:
        objects = [self.events[number] for number in numbers]
        if wait_for_multiple([*objects, self.semaphore], True, timeout) == STATUS_SUCCESS:
            self.counts.taken += 1

    def _take(self, timeout: int) -> None:
        if self.semaphore.wait(timeout) == STATUS_SUCCESS:
            self.counts.taken += 1

    def _give(self, adjustment: int) -> None:
        self.counts.given += adjustment
        self.semaphore.release(adjustment)

    def _delay(self, time: int) -> None:
        delay_execution(self.processor, time)

    def _yield(self) -> None:
        self.processor.dispatcher.yield_execution()

    def _spin(self) -> None:
        old = self.spin_lock.acquire()
        assert self.processor.irql == DISPATCH_LEVEL
        read = self.unlocked_count
        self.events[1].set()  # may ready a higher thread, which must not run before the release
        self.unlocked_count = read + 1
        self.counts.spins += 1
        self.spin_lock.release(old)

    def _dpc(self, number: int, low: bool) -> None:
        def routine(*_: Any) -> None:
            assert self.processor.irql == DISPATCH_LEVEL
            self.counts.dpcs_run += 1
            self.events[number].set()

        dpc = Dpc(self.processor, routine)
        dpc.importance = LOW_IMPORTANCE if low else MEDIUM_IMPORTANCE
        inserted = dpc.insert()
        self.counts.dpcs += inserted

    def _special_apc(self, number: int) -> None:
        target = self.threads[number % len(self.threads)]

        def routine(apc: object) -> None:
            assert self.processor.irql == APC_LEVEL
            assert self.processor.current_thread is target
            assert self.inside.get("fast mutex") is not target
            self.counts.apcs_run += 1
            self.events[number].set()

        apc = SpecialKernelApc(target, routine, rundown_routine=self._run_down)
        inserted = apc.insert()  # other threads may run in it, and count
        self.counts.apcs += inserted

    def _normal_apc(self, number: int) -> None:
        target = self.threads[number % len(self.threads)]

        def routine(apc: object) -> None:
            assert self.processor.irql == PASSIVE_LEVEL
            assert target not in self.inside.values()
            self.counts.apcs_run += 1
            delay_execution(self.processor, 3)

        apc = NormalKernelApc(target, normal_routine=routine, rundown_routine=self._run_down)
        inserted = apc.insert()  # other threads may run in it, and count
        self.counts.apcs += inserted

    def _run_down(self, apc: object) -> None:
        self.counts.apcs_run_down += 1

    def _timer(self, due: int) -> None:
        self.timer.set(due, dpc=Dpc(self.processor, lambda *_: self.events[2].set()))
        self.timer.wait(10)

    def _locked(self, name: str, acquire: Callable[[], object], script: list[Step]) -> None:
        thread = self.processor.current_thread
        assert thread is not None
        acquire()
        assert name not in self.inside
        self.inside[name] = thread
        self._play(script)
        assert self.inside.pop(name) is thread

    def _fast_mutex(self, script: list[Step]) -> None:
        self._locked("fast mutex", self.fast_mutex.acquire, script)
        self.fast_mutex.release()

    def _mutex(self, script: list[Step]) -> None:
        self._locked("mutex", self.mutex.wait, script)
        self.mutex.release()


@settings(max_examples=150, deadline=None)
@given(scripts=scripts, verifier=st.booleans(), seed=st.none() | st.integers(0, 99))
def test_whatever_the_order_what_must_hold_holds(
    scripts: list[tuple[int, list[Step]]], verifier: bool, seed: int | None
):
    race = Race(verifier, seed)
    race.run(scripts)
    counts, processor = race.counts, race.processor
    assert race.semaphore.signal_state == INITIAL + counts.given - counts.taken
    assert race.unlocked_count == counts.spins
    assert counts.apcs == counts.apcs_run + counts.apcs_run_down
    assert counts.dpcs == counts.dpcs_run
    assert (race.mutex.signal_state, race.mutex.owner) == (1, None)
    assert (race.fast_mutex.count, race.fast_mutex.owner) == (1, None)
    assert not race.spin_lock.held
    assert len(processor.dispatcher.timers) == 0
    waited = [*race.events, race.semaphore, race.mutex, race.timer, *race.threads]
    assert not any(entry.waits for entry in waited)
    assert not processor.dispatcher.threads
    again = Race(verifier, seed)
    again.run(scripts)
    assert again.trace == race.trace  # a run can be repeated
