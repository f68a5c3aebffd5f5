"""Waits against a model: any order of commands, signals, APCs and time gives what NT would give.

One command at a time is handed to a worker thread, and the machine runs until nothing can move
without time passing. So the order of arrival is the order of the commands, and the model can say
exactly which waits are satisfied, with which status, and what state every object has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kernel_proc.scheduling.apc import Apc, NormalKernelApc, SpecialKernelApc
from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import KERNEL_MODE, USER_MODE, wait_for_multiple
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
)

WORKERS = 4
LIMIT = 3  # of the semaphore


@dataclass(eq=False)
class ModelObject:
    """State as NT keeps it; `take` and `is_signaled_for` by kind."""

    kind: str
    state: int
    real: Any
    owner: "Worker | None" = None
    due: int | None = None
    period: int = 0
    entry: int = 0

    def is_signaled_for(self, worker: "Worker") -> bool:
        return self.state > 0 or (self.kind == "mutex" and self.owner is worker)

    def take(self, worker: "Worker") -> None:
        if self.kind in ("synchronization event", "synchronization timer"):
            self.state = 0
        elif self.kind == "semaphore":
            self.state -= 1
        elif self.kind == "mutex":
            self.state -= 1
            self.owner = worker


@dataclass(eq=False)
class ModelWait:
    worker: "Worker"
    objects: list[ModelObject]
    wait_all: bool
    alertable: bool
    mode: int
    due: int | None
    entry: int
    status: int | None = None

    def try_satisfy(self) -> bool:
        ready = [entry.is_signaled_for(self.worker) for entry in self.objects]
        if self.wait_all:
            if not all(ready):
                return False
            for entry in self.objects:
                entry.take(self.worker)
            self.status = STATUS_SUCCESS
        elif any(ready):
            self.status = ready.index(True)
            self.objects[self.status].take(self.worker)
        return self.status is not None


@dataclass(eq=False)
class Worker:
    """A kernel thread that does what it is told, and what the model says of it."""

    name: str
    mailbox: Event
    thread: KThread | None = None
    command: Callable[[], object] | None = None
    # What happened, and what must have happened.
    results: list[Any] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    apcs_run: int = 0
    apcs_expected: int = 0
    # Model: the wait of the command, the wait of an APC on top of it, APCs held back meanwhile.
    wait: ModelWait | None = None
    apc_wait: ModelWait | None = None
    held_back: int = 0
    alerted: bool = False
    terminating: bool = False

    @property
    def is_free(self) -> bool:
        return self.wait is None and self.apc_wait is None


class WaitMachine(RuleBasedStateMachine):
    """Random commands for a few threads over a few objects."""

    @initialize(
        verifier=st.booleans(),
        seed=st.none() | st.integers(0, 9),
        priorities=st.lists(st.integers(1, 31), min_size=WORKERS, max_size=WORKERS),
    )
    def start(self, verifier: bool, seed: int | None, priorities: list[int]) -> None:
        processor = self.processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
        self.entries = 0
        self.objects = [
            ModelObject("notification event", 0, Event(processor, notification=True)),
            ModelObject("synchronization event", 0, Event(processor, notification=False)),
            ModelObject("synchronization event", 1, Event(processor, False, signaled=True)),
            ModelObject("semaphore", 1, Semaphore(processor, 1, LIMIT)),
            ModelObject("mutex", 1, Mutex(processor)),
            ModelObject("mutex", 1, Mutex(processor)),
            ModelObject("notification timer", 0, Timer(processor)),
            ModelObject("synchronization timer", 0, Timer(processor, notification=False)),
        ]
        self.gates = [ModelObject("synchronization event", 0, Event(processor, notification=False))]
        self.waits: list[ModelWait] = []  # in order of arrival
        self.workers = []
        for number, priority in enumerate(priorities):
            worker = Worker(f"worker {number}", Event(processor, notification=False))
            worker.thread = create_system_thread(
                processor, self._work, worker, name=worker.name, priority=priority
            )
            self.workers.append(worker)
        self._settle()

    @staticmethod
    def _work(worker: Worker) -> None:
        while True:
            worker.mailbox.wait()
            assert worker.command is not None
            worker.results.append(worker.command())

    # Running the machine, and the same in the model

    def _settle(self) -> None:
        """Run until nothing can move without time passing."""
        processor = self.processor
        dispatcher = processor.dispatcher

        def still() -> bool:
            due = dispatcher.timers.next_ns()
            return not (
                dispatcher.ready_queue.summary
                or dispatcher.hardware
                or processor.dpc_queue
                or processor.pending
                or (due is not None and due <= processor.clock.now_ns())
            )

        processor.run_until(still)

    def _command(self, worker: Worker, command: Callable[[], object]) -> None:
        worker.command = command
        worker.mailbox.set()
        self._settle()

    def _entry(self) -> int:
        self.entries += 1
        return self.entries

    def _wake(self, signalled: ModelObject) -> None:
        for wait in list(self.waits):
            # An object wakes only those that wait for it.
            if signalled in wait.objects and signalled.is_signaled_for(wait.worker):
                if wait.wait_all:
                    if not wait.try_satisfy():
                        continue
                else:
                    wait.status = wait.objects.index(signalled)
                    signalled.take(wait.worker)
                self._finish(wait)

    def _finish(self, wait: ModelWait) -> None:
        self.waits.remove(wait)
        worker = wait.worker
        if wait is worker.apc_wait:
            worker.apc_wait = None
            worker.apcs_expected += 1 + worker.held_back
            worker.held_back = 0
            self._break_off(worker)  # what came meanwhile is seen only now
        if worker.apc_wait is None and worker.wait is not None and worker.wait.status is not None:
            worker.expected.append(worker.wait.status)
            worker.wait = None

    def _break_off(self, worker: Worker) -> None:
        wait = worker.wait
        if wait is None or wait.status is not None or worker.apc_wait is not None:
            return
        if wait.mode == USER_MODE and worker.terminating:
            wait.status = STATUS_THREAD_IS_TERMINATING
        elif wait.alertable and worker.alerted:
            worker.alerted = False
            wait.status = STATUS_ALERTED
        if wait.status is not None:
            self._finish(wait)

    def _now(self) -> int:
        return self.processor.clock.now_ns()

    def _do(self, how: str, act: Callable[[], object]) -> None:
        """Do something from outside, by one of the ways there are."""
        processor = self.processor
        if how == "dispatcher":
            act()
        elif how == "thread":
            create_system_thread(processor, act, priority=10)
        elif how == "high thread":
            create_system_thread(processor, act, priority=31)
        elif how == "interrupt":
            dpc = Dpc(processor, lambda *_: act())
            line = Interrupt(processor, lambda *_: dpc.insert())
            line.connect()
            processor.schedule_hardware(line.request)
        else:
            dpc = Dpc(processor, lambda *_: act())
            dpc.importance = LOW_IMPORTANCE if how == "low dpc" else dpc.importance
            dpc.insert()
        self._settle()

    ways = st.sampled_from(["dispatcher", "thread", "high thread", "interrupt", "dpc", "low dpc"])
    numbers = st.integers(0, WORKERS - 1)

    # Waiting

    someone_is_free = precondition(lambda self: any(worker.is_free for worker in self.workers))
    how_to_wait = st.fixed_dictionaries(
        {
            "timeout": st.none() | st.sampled_from([0, 5, 10, 100]),
            "alertable": st.booleans(),
            "mode": st.sampled_from([KERNEL_MODE, USER_MODE]),
        }
    )

    @someone_is_free
    @rule(number=numbers, index=st.integers(0, 7), how=how_to_wait)
    def wait_for_one(self, number: int, index: int, how: dict[str, Any]) -> None:
        self._wait(number, [index], False, **how)

    @someone_is_free
    @rule(
        number=numbers,
        indices=st.lists(st.integers(0, 7), min_size=2, max_size=3, unique=True),
        wait_all=st.booleans(),
        how=how_to_wait,
    )
    def wait_for_several(
        self, number: int, indices: list[int], wait_all: bool, how: dict[str, Any]
    ) -> None:
        self._wait(number, indices, wait_all, **how)

    @someone_is_free
    @rule(index=st.integers(0, 5), hows=st.lists(how_to_wait, min_size=2, max_size=WORKERS))
    def crowd(self, index: int, hows: list[dict[str, Any]]) -> None:
        """Several wait for the same object, one behind the other."""
        for number, how in enumerate(hows):
            if any(worker.is_free for worker in self.workers):
                self._wait(number, [index], False, **how)

    def _wait(
        self,
        number: int,
        indices: list[int],
        wait_all: bool,
        timeout: int | None,
        alertable: bool,
        mode: int,
    ) -> None:
        free = [worker for worker in self.workers if worker.is_free]
        worker = free[number % len(free)]
        objects = [self.objects[index] for index in indices]
        real = [entry.real for entry in objects]
        wait = ModelWait(worker, objects, wait_all, alertable, mode, None, 0)
        if wait.try_satisfy():
            worker.expected.append(wait.status)
        else:
            self._model_block(wait, timeout)
        self._command(
            worker,
            lambda: wait_for_multiple(real, wait_all, timeout, alertable=alertable, mode=mode),
        )

    def _model_block(self, wait: ModelWait, timeout: int | None) -> None:
        worker = wait.worker
        worker.wait = wait
        self.waits.append(wait)
        if timeout is not None and timeout > 0:
            wait.due = self._now() + timeout
            wait.entry = self._entry()
        self._break_off(worker)
        if worker.wait is not None and timeout == 0:
            wait.status = STATUS_TIMEOUT
            self._finish(wait)

    # Signalling

    @precondition(lambda self: bool(self.waits))
    @rule(numbers=st.lists(st.integers(0, 20), min_size=1, max_size=4), how=ways)
    def signal_what_is_waited_for(self, numbers: list[int], how: str) -> None:
        for number in numbers:
            if waited := [entry for wait in self.waits for entry in wait.objects]:
                self._signal(waited[number % len(waited)], how)

    def _signal(self, entry: ModelObject, how: str) -> None:
        if "event" in entry.kind:
            entry.state = 1
            self._wake(entry)
            self._do(how, entry.real.set)
        elif entry.kind == "semaphore":
            self._release(1, how)
        elif entry.kind == "mutex":
            self._release_mutex(entry)

    @rule(index=st.integers(0, 2), how=ways, act=st.sampled_from(["set", "reset", "pulse"]))
    def event(self, index: int, how: str, act: str) -> None:
        entry = self.objects[index]
        if act != "reset":
            entry.state = 1
            self._wake(entry)
        if act != "set":
            entry.state = 0
        self._do(how, getattr(entry.real, act))

    @rule(adjustment=st.integers(1, LIMIT), how=ways)
    def release_semaphore(self, adjustment: int, how: str) -> None:
        self._release(adjustment, how)

    def _release(self, adjustment: int, how: str) -> None:
        entry = self.objects[3]
        if entry.state + adjustment > LIMIT:
            return
        entry.state += adjustment
        self._wake(entry)
        self._do(how, lambda: entry.real.release(adjustment))

    @precondition(lambda self: any(entry.owner for entry in self.objects))
    @rule(index=st.integers(0, 1))
    def release_mutex(self, index: int) -> None:
        owned = [entry for entry in self.objects if entry.owner]
        self._release_mutex(owned[index % len(owned)])

    def _release_mutex(self, entry: ModelObject) -> None:
        owner = entry.owner
        if owner is None or not owner.is_free:
            return
        owner.expected.append(entry.state)
        entry.state += 1
        if entry.state == 1:
            entry.owner = None
            self._wake(entry)
        self._command(owner, entry.real.release)

    @rule(
        index=st.integers(6, 7),
        due=st.sampled_from([1, 5, 50]),
        period=st.sampled_from([0, 0, 20]),
        how=ways,
    )
    def set_timer(self, index: int, due: int, period: int, how: str) -> None:
        entry = self.objects[index]
        entry.state = 0
        entry.due, entry.period, entry.entry = self._now() + due, period, self._entry()
        self._do(how, lambda: entry.real.set(due, period_ns=period))

    @rule(index=st.integers(6, 7), how=ways)
    def cancel_timer(self, index: int, how: str) -> None:
        entry = self.objects[index]
        entry.due = None
        self._do(how, entry.real.cancel)

    # Time

    @rule(duration=st.integers(1, 60))
    def pass_time(self, duration: int) -> None:
        until = self._now() + duration
        while (item := self._next_due(until)) is not None:
            if isinstance(item, ModelWait):
                item.due = None
                item.status = STATUS_TIMEOUT
                self._finish(item)
            else:
                due = item.due
                assert due is not None
                item.due = due + item.period if item.period else None
                item.entry = self._entry()
                item.state = 1
                self._wake(item)
        harness = Timer(self.processor)
        harness.set(duration)
        self.processor.run_until(lambda: not harness.is_set)
        self._settle()

    def _next_due(self, until: int) -> ModelWait | ModelObject | None:
        items = [item for item in (*self.waits, *self.objects) if item.due is not None]
        first = min(items, key=lambda item: (item.due, item.entry), default=None)
        return first if first is not None and (first.due or 0) <= until else None

    # APCs, alerts, termination

    @rule(number=numbers, how=ways)
    def quick_apc(self, number: int, how: str) -> None:
        worker = self.workers[number]
        if worker.apc_wait is None:
            worker.apcs_expected += 1
        else:
            worker.held_back += 1

        def routine(apc: Apc) -> None:
            assert self.processor.irql == APC_LEVEL
            assert self.processor.current_thread is worker.thread
            worker.apcs_run += 1

        assert worker.thread is not None
        self._do(how, SpecialKernelApc(worker.thread, routine).insert)

    @rule(number=numbers, how=ways)
    def normal_apc(self, number: int, how: str) -> None:
        worker = self.workers[number]
        if worker.apc_wait is not None or any(entry.owner is worker for entry in self.objects):
            return  # held back; the tests of APCs look at that
        worker.apcs_expected += 1

        def routine(apc: Apc) -> None:
            assert self.processor.irql == PASSIVE_LEVEL
            worker.apcs_run += 1

        assert worker.thread is not None
        self._do(how, NormalKernelApc(worker.thread, normal_routine=routine).insert)

    @precondition(lambda self: sum(worker.apc_wait is not None for worker in self.workers) < 2)
    @rule(number=numbers, how=ways)
    def apc_that_waits(self, number: int, how: str) -> None:
        """It waits at APC_LEVEL for the gate, on top of whatever its thread waits for."""
        worker = self.workers[number]
        if worker.apc_wait is not None:
            return
        gate = self.gates[0]
        worker.apc_wait = ModelWait(worker, [gate], True, False, KERNEL_MODE, None, 0)
        self.waits.append(worker.apc_wait)
        if worker.apc_wait.try_satisfy():
            self._finish(worker.apc_wait)

        def routine(apc: Apc) -> None:
            assert gate.real.wait() == STATUS_SUCCESS
            assert self.processor.irql == APC_LEVEL
            worker.apcs_run += 1

        assert worker.thread is not None
        self._do(how, SpecialKernelApc(worker.thread, routine).insert)

    @precondition(lambda self: any(worker.apc_wait for worker in self.workers))
    @rule(how=ways)
    def open_gate(self, how: str) -> None:
        gate = self.gates[0]
        gate.state = 1
        self._wake(gate)
        self._do(how, gate.real.set)

    @rule(number=numbers, how=ways)
    def alert(self, number: int, how: str) -> None:
        worker = self.workers[number]
        worker.alerted = True
        self._break_off(worker)
        assert worker.thread is not None
        self._do(how, worker.thread.alert)

    @precondition(lambda self: not any(worker.terminating for worker in self.workers))
    @rule(number=numbers, how=ways)
    def terminate(self, number: int, how: str) -> None:
        worker = self.workers[number]
        worker.terminating = True
        self._break_off(worker)
        assert worker.thread is not None
        self._do(how, worker.thread.terminate)

    # What always holds

    @invariant()
    def the_machine_agrees_with_the_model(self) -> None:
        if not hasattr(self, "processor"):
            return
        for entry in (*self.objects, *self.gates):
            assert entry.real.signal_state == entry.state, entry
        for entry in self.objects:
            if entry.kind == "mutex":
                assert entry.real.owner is (entry.owner.thread if entry.owner else None)
            if "timer" in entry.kind:
                assert entry.real.is_set == (entry.due is not None)
        for worker in self.workers:
            assert worker.results == worker.expected, worker.name
            assert worker.apcs_run == worker.apcs_expected, worker.name
            assert worker.thread is not None
            assert worker.thread.is_waiting
            owned = sum(entry.owner is worker for entry in self.objects)
            assert worker.thread.kernel_apc_disable == -owned
            assert worker.thread.alerted == worker.alerted

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        if not hasattr(self, "processor"):
            return
        for thread in self.processor.dispatcher.waiting_threads():
            wait = thread.wait_block
            assert wait is not None
            assert wait.status is None
            ready = [entry.is_signaled_for(thread) for entry in wait.objects]
            assert not (all(ready) if wait.wait_all else any(ready)), thread.describe()

    @invariant()
    def the_processor_is_at_rest(self) -> None:
        if not hasattr(self, "processor"):
            return
        processor = self.processor
        assert processor.irql == PASSIVE_LEVEL
        assert processor.current_thread is None
        assert not processor.dpc_routine_active
        assert processor.bug_checked is None
        linked = sum(len(entry.real.waits) for entry in (*self.objects, *self.gates))
        assert linked == sum(len(wait.objects) for wait in self.waits if wait.status is None)


TestWaits = WaitMachine.TestCase
TestWaits.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
