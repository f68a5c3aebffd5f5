"""Chooses which thread runs, and what the processor does when none can.

A thread's stack while it is in the kernel is a pooled greenlet whose parent is the
dispatcher's own. A thread leaves the processor by switching to the dispatcher, which runs
device models and timers, takes what is pending and switches to the next ready thread.

Rules: main OS thread only, `post` excepted.
Spec: Windows scheduling; WDK, Windows Kernel-Mode Process and Thread Manager.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import greenlet

from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.idle import Idle, PollerIdle, VirtualIdle
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.pending import APC_REQUESTED, RESCHEDULE_REQUESTED
from kernel_proc.scheduling.ready_queue import ReadyQueue
from kernel_proc.scheduling.stuck_threads import describe_stuck, describe_waiting
from kernel_proc.scheduling.timer_queue import TimerQueue
from shared.clock import now_ns

if TYPE_CHECKING:
    from random import Random

    from kernel_proc.scheduling.interrupt_line import InterruptLine
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

#: Time between two looks at the sources while busy. Not passes: one may take milliseconds.
LOOK_EVERY_NS: Final = 500_000
_UNWINDINGS: Final = 8  # waits that the clean-up of a stack at the machine's end may begin
_NO_LINE: Final = memoryview(bytes(8)).cast("Q")  # never raised


class Deadlock(Exception):
    """Nothing can ever happen again: every waiting thread is named with what it waits for."""

    def __init__(self, threads: list[str]) -> None:
        self.threads = threads
        waiting = "; ".join(threads) if threads else "no thread is waiting"
        super().__init__(f"the machine can never go on: {waiting}")


def _seeded(seed: int) -> "Random":
    from random import Random  # without the verifier and a seed nothing is drawn

    return Random(seed)


class SteppedDevice(Protocol):
    """A device in this very process, which goes on when the processor has nothing to do."""

    def step(self) -> bool:
        """Do one piece of work; False if there was none."""

    def next_deadline_ns(self) -> int | None:
        """Return when there will be work although nobody asks, or None."""


class Dispatcher:
    """Ready queue, greenlet pool, timers and the loop of one processor.

    `line` is the interrupt line in shared memory, if there is one, `line_word` its word and
    `line_seen` what it was when it was last looked at. `device` is stepped when idle, in process.
    """

    __slots__ = (
        "__weakref__",
        "_clock_ns",
        "_greenlet",
        "_leave",
        "_look_at_ns",
        "_pool",
        "_posted",
        "_processor",
        "_random",
        "device",
        "hardware",
        "idle",
        "line",
        "line_seen",
        "line_word",
        "looping",
        "passes",
        "ready_queue",
        "stopping",
        "switches",
        "threads",
        "timers",
    )

    def __init__(self, processor: "Processor", seed: int | None) -> None:
        self._processor = processor
        self._greenlet = greenlet.getcurrent()
        self._leave = self._greenlet.switch  # what a thread calls to leave the processor
        self._pool: list[Any] = []
        self._posted: deque[Callable[[], object]] = deque()
        self._random = _seeded(seed) if seed is not None and processor.verifier else None
        self.ready_queue = ReadyQueue()
        self.timers = TimerQueue()
        self.hardware: deque[Callable[[], object]] = deque()
        self.device: SteppedDevice | None = None
        self.line: InterruptLine | None = None
        self.line_word = _NO_LINE
        self.line_seen = 0
        self.threads: set[KThread] = set()
        self.looping = False
        self.stopping = False
        self.passes = 0
        self.switches = 0
        virtual = isinstance(processor.clock, VirtualClock)
        self.idle: Idle = VirtualIdle() if virtual else PollerIdle()
        # The clock itself where it is the machine's: its time is asked for in every busy pass.
        self._clock_ns = processor.clock.now_ns if virtual else now_ns
        self._look_at_ns = 0

    # Called by threads

    def ready(self, thread: "KThread", increment: int = 0) -> None:
        """Make a thread ready with a boost; a higher one takes the processor at once.

        "At once" means here below DISPATCH_LEVEL, else when the IRQL falls.
        """
        priority = thread.base_priority
        if increment and priority < 16:
            priority = min(15, priority + increment)
        thread.priority = priority
        thread.make_ready()
        self.ready_queue.push(thread)
        processor = self._processor
        current = processor.current_thread
        if current is not None and (
            priority > current.priority or (self._random and self._quantum_ends(current))
        ):
            processor.pending |= RESCHEDULE_REQUESTED
            if processor.irql < DISPATCH_LEVEL:
                processor.take_pending()

    def preempt(self) -> None:
        """Give the processor to a ready thread of higher priority, if there is one."""
        current = self._processor.current_thread
        if current is None or current.ended:  # one that has ended is about to leave by itself
            return
        top = self.ready_queue.top_priority()
        if top > current.priority:
            current.make_ready()
            self.ready_queue.push_front(current)
            self.switch_out(current)
        elif top == current.priority and self._random:
            current.make_ready()
            self.ready_queue.push(current)
            self.switch_out(current)

    def yield_execution(self) -> None:
        """Let the dispatcher make a pass and threads of equal priority run (NT: NtYieldExecution).

        For long kernel loops, which nothing pre-empts.
        """
        processor = self._processor
        if processor.in_dpc():
            processor.switch_from_dpc("NtYieldExecution")
        processor.require_irql(APC_LEVEL, "NtYieldExecution")
        current = processor.current_thread
        if current is not None:
            current.make_ready()
            self.ready_queue.push(current)
            self.switch_out(current)

    def pause(self) -> None:
        """Do `yield_execution`, and have what came meanwhile from outside looked at as well.

        For long work in the kernel, between two pieces of some milliseconds.
        """
        self._look_at_ns = 0
        self.yield_execution()

    def maybe_end_quantum(self) -> None:
        """Under a seed: have an equal thread take the processor, or not; the IRQL is falling."""
        current = self._processor.current_thread
        if self._random and current is not None and self._quantum_ends(current):
            self._processor.pending |= RESCHEDULE_REQUESTED

    def _quantum_ends(self, current: "KThread") -> bool:
        # Verifier mode with a seed also switches between equals, so that races show.
        assert self._random is not None
        equal = self.ready_queue.top_priority() == current.priority
        return equal and self._random.random() < 0.5

    def switch_out(self, thread: "KThread") -> None:
        """Leave the processor; returns when `thread` runs again, its APCs delivered."""
        processor = self._processor
        irql = processor.irql
        if processor.dpc_routine_active:
            processor.switch_from_dpc("thread switch")
        processor.pending &= ~APC_REQUESTED
        processor.current_thread = None
        self._leave()
        processor.irql = irql
        if (thread.special_apcs or thread.normal_apcs) and thread.apcs_waiting:
            if irql == PASSIVE_LEVEL:
                thread.deliver_apcs()
            else:
                processor.pending |= APC_REQUESTED

    # The loop

    def run(self) -> None:
        """Run until `stopping` is set."""
        self._loop(lambda: self.stopping)

    def run_until(self, predicate: Callable[[], bool]) -> None:
        """Run until `predicate()` holds, advancing a virtual clock when idle."""
        self._loop(predicate)

    def _loop(self, finished: Callable[[], bool]) -> None:
        if self.looping:
            raise RuntimeError("the dispatcher runs already: kernel code waits, it does not run it")
        self.looping = True
        clock_ns = self._clock_ns
        try:
            while not finished():
                if not self._pass():
                    self._be_idle()
                    self._look_at_ns = clock_ns() + LOOK_EVERY_NS
                elif (now := clock_ns()) >= self._look_at_ns:
                    self._look_at_ns = now + LOOK_EVERY_NS
                    self.idle.look()
        finally:
            self.looping = False

    def _be_idle(self) -> None:
        deadline = self.timers.next_ns()
        clock = self._processor.clock
        if not isinstance(clock, VirtualClock):
            if self.line is None:
                self.idle.wait(deadline, self._posted)
            else:
                self.idle.wait(deadline, self._posted, self.line)
            return
        if self.device is not None:
            if self.device.step():
                return
            deadline = _earlier(deadline, self.device.next_deadline_ns(), clock.now_ns())
        if deadline is not None:
            clock.advance_to(deadline)
        else:
            raise Deadlock(describe_waiting(self.waiting_threads()))

    def forget_line(self) -> None:
        """Look at no interrupt line any more."""
        self.line = None
        self.line_word = _NO_LINE
        self.line_seen = 0

    def run_thread(self, routine: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a routine in a fresh system thread to its end."""
        # The room above `dispatcher` in this package; importing it at load time would be a cycle.
        from kernel_proc.scheduling.kthread import create_system_thread

        outcome: list[Any] = []

        def body() -> None:
            try:
                outcome.append((routine(*args), None))
            except Exception as error:
                outcome.append((None, error))

        create_system_thread(self._processor, body, name=getattr(routine, "__name__", "thread"))
        self.run_until(lambda: bool(outcome))
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def _pass(self) -> bool:
        # One turn of the loop; False if there was nothing to do.
        processor = self._processor
        if processor.bug_checked is not None:
            raise processor.bug_checked
        self.passes += 1
        busy = False
        if self.hardware:
            self._run_callbacks(self.hardware)
            busy = True
        if self._posted:
            self._run_callbacks(self._posted)
            busy = True
        if self.line_word[0] != self.line_seen and self.line is not None:
            self.line.take()
            busy = True
        if processor.pending:
            processor.take_pending()
        heap = self.timers.heap
        if heap and heap[0].when_ns <= self._clock_ns() and self._expire_timers():
            busy = True
        if self.ready_queue.summary:
            self._run_next()
            return True
        if processor.dpc_queue:  # those of low importance wait for the idle processor
            processor.drain_dpcs()
            return True
        return busy or bool(self.hardware)

    def _run_next(self) -> None:
        processor = self._processor
        thread = self.ready_queue.pop()
        self.switches += 1
        processor.current_thread = thread
        stack = thread.stack
        if stack is None:
            stack = thread.stack = self._pool.pop() if self._pool else self._new_stack()
        thread.make_running()
        stack.switch()
        processor.current_thread = None
        processor.irql = PASSIVE_LEVEL

    def _expire_timers(self) -> bool:
        processor = self._processor
        now = processor.clock.now_ns()  # once, so that short periods cannot keep the loop here
        target = self.timers.pop_due(now)
        if target is None:
            return False
        processor.irql = DISPATCH_LEVEL
        while target is not None:
            target.expire()
            target = self.timers.pop_due(now)
        processor.lower_irql(PASSIVE_LEVEL)
        return True

    # Greenlets

    def _new_stack(self) -> Any:
        return greenlet.greenlet(self._stack_body, self._greenlet)

    def _stack_body(self) -> None:
        me = greenlet.getcurrent()
        processor = self._processor
        leave = self._leave
        while True:
            thread = processor.current_thread
            assert thread is not None
            thread.run_in_kernel()
            thread.stack = None
            del thread  # a parked greenlet must keep nothing alive
            self._pool.append(me)
            leave()

    def close(self) -> None:
        """End the stack of every thread where it stands; the machine is not used any more.

        A suspended greenlet hides what it refers to from the garbage collector: without this, a
        machine in a process that goes on would stay for good, with all its memory. A thread left in
        a wait sees GreenletExit. What its clean-up raises on the way out tells nothing, and one
        that waits again and again is left.
        Rules: no thread runs; the OS thread that made the machine.
        """
        if self.looping:
            raise RuntimeError("the dispatcher runs: no thread of it can close it")
        self.ready_queue = ReadyQueue()
        stacks = [thread.stack for thread in self.threads if thread.stack is not None]
        for stack in stacks + self._pool:
            for _ in range(_UNWINDINGS):
                if stack.dead:
                    break
                with contextlib.suppress(Exception, BugCheck):
                    stack.throw()
        self._pool.clear()

    # Work from other OS threads

    def post(self, callback: Callable[[], object]) -> None:
        """Queue a callback and wake the idle processor; safe from any OS thread."""
        self._posted.append(callback)
        self.idle.wake()

    @staticmethod
    def _run_callbacks(callbacks: deque[Callable[[], object]]) -> None:
        # Those that come in meanwhile wait for the next pass, so that one pass is bounded.
        for _ in range(len(callbacks)):
            callbacks.popleft()()

    # Looking inside

    def waiting_threads(self) -> list["KThread"]:
        """Return the threads that wait inside the kernel, oldest first."""
        waiting = (thread for thread in self.threads if thread.is_waiting)
        return sorted(waiting, key=lambda thread: thread.number)

    def inspect(self) -> dict[str, Any]:
        """Return plain figures, one line per thread, and who can never wake."""
        stuck = (describe_stuck(thread) for thread in self.waiting_threads())
        work_queues = self._processor.work_queues
        dpc_thread = self._processor.dpc_thread
        threads = sorted(self.threads, key=lambda thread: thread.number)
        return {
            "passes": self.passes,
            "switches": self.switches,
            "interrupts": self._processor.interrupts,
            "dpcs": self._processor.dpcs,
            "dpc_queue": len(self._processor.dpc_queue),
            "pooled_greenlets": len(self._pool),
            "timers": len(self.timers),
            "threads": [thread.describe() for thread in threads],
            "thread_table": [thread.inspect() for thread in threads],
            "stuck": [text for text in stuck if text is not None],
            "threaded_dpcs": dpc_thread.inspect() if dpc_thread is not None else {},
            "work_queues": work_queues.inspect() if work_queues is not None else {},
        }


def _earlier(timer_ns: int | None, device_ns: int | None, now_ns: int) -> int | None:
    """Return the next moment at which something is due; a device that is late has its say now."""
    if device_ns is None or device_ns <= now_ns:
        return timer_ns
    return device_ns if timer_ns is None else min(timer_ns, device_ns)
