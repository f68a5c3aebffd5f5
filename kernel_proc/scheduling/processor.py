"""The one processor: its IRQL, DPC queue and pending interrupts.

Rules: used by the main OS thread only; `post` alone may be called from others.
Spec: WDK, Managing Hardware Priorities; Introduction to DPCs.
"""

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_proc.scheduling.bugcheck import (
    ATTEMPTED_SWITCH_FROM_DPC,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    BugCheck,
)
from kernel_proc.scheduling.call_stack import calling_driver
from kernel_proc.scheduling.dispatcher import Deadlock, Dispatcher
from kernel_proc.scheduling.dpc_rate import DpcRate
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL, irql_name
from kernel_proc.scheduling.kernel_clock import KernelClock
from kernel_proc.scheduling.lock_order import LockOrder
from kernel_proc.scheduling.pending import (
    APC_REQUESTED,
    DPC_REQUESTED,
    INTERRUPT_REQUESTED,
    RESCHEDULE_REQUESTED,
)
from shared.trace_points import trace

if TYPE_CHECKING:
    from kernel_proc.scheduling.dpc import Dpc
    from kernel_proc.scheduling.interrupt import Interrupt
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.owned_lock import OwnedLock
    from kernel_proc.scheduling.threaded_dpc import DpcThread
    from kernel_proc.scheduling.work_item import WorkQueues

# Verifier 0xC4 sub-codes for KeRaiseIrql and KeLowerIrql.
_BAD_RAISE: Final = 0x30
_BAD_LOWER: Final = 0x31

_DRIVER_FRAMES: Final = 2  # of a report

__all__ = ["Deadlock", "Processor"]


class Processor:
    """An emulated uniprocessor.

    `pending` holds the requests that wait for the IRQL to fall: APC and DPC software
    interrupts, a thread switch, raised interrupt lines. `guarded_mutexes_at_apc_level` and
    `threaded_dpcs` choose between what releases of NT do differently.
    """

    __slots__ = (
        "_object_numbers",
        "bug_checked",
        "clock",
        "current_thread",
        "dispatch_rules_from",
        "dispatcher",
        "dpc_depth_limit",
        "dpc_queue",
        "dpc_rate",
        "dpc_routine_active",
        "dpc_thread",
        "dpcs",
        "guarded_mutexes_at_apc_level",
        "interrupts",
        "irql",
        "lock_order",
        "minimum_dpc_rate",
        "owned_locks",
        "pending",
        "raised_lines",
        "threaded_dpcs",
        "verifier",
        "work_queues",
    )

    def __init__(
        self,
        clock: KernelClock,
        *,
        verifier: bool = False,
        seed: int | None = None,
        guarded_mutexes_at_apc_level: bool = False,
        threaded_dpcs: bool = True,
    ) -> None:
        self.clock = clock
        self.verifier = verifier
        self.irql = PASSIVE_LEVEL
        self.current_thread: KThread | None = None
        self.pending = 0
        self.dpc_queue: deque[Dpc] = deque()
        self.dpc_routine_active = False
        self.dpc_depth_limit = 4
        self.minimum_dpc_rate = 3  # requests a clock tick
        self.dpc_rate = DpcRate(clock.now_ns())
        self.dpc_thread: DpcThread | None = None
        self.threaded_dpcs = threaded_dpcs
        self.dispatch_rules_from = DISPATCH_LEVEL  # lower while a threaded DPC is verified
        self.guarded_mutexes_at_apc_level = guarded_mutexes_at_apc_level
        self.lock_order = LockOrder(self) if verifier else None
        self.owned_locks: weakref.WeakSet[OwnedLock] = weakref.WeakSet()
        self.work_queues: WorkQueues | None = None
        self.raised_lines: list[Interrupt] = []
        self.dpcs = 0
        self.interrupts = 0
        self.bug_checked: BugCheck | None = None
        self._object_numbers = itertools.count(1)
        self.dispatcher = Dispatcher(self, seed)

    # IRQL

    def raise_irql(self, new: int) -> int:
        """Raise to `new` and return the old level (WDK: KeRaiseIrql)."""
        old = self.irql
        self.irql = new
        if new < old:
            self._raised_to_lower(old, new)
        return old

    def _raised_to_lower(self, old: int, new: int) -> None:
        # A free build does what it was told, and what waited for that level comes.
        if self.verifier:
            self.irql = old
            self.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, _BAD_RAISE, old, new)
        if self.pending:
            self.take_pending()

    def lower_irql(self, new: int) -> None:
        """Lower to `new`; whatever waited for that runs before this returns (WDK: KeLowerIrql)."""
        if self.verifier:
            self._verify_lower(new)
        self.irql = new
        if self.pending:
            self.take_pending()

    def _verify_lower(self, new: int) -> None:
        old = self.irql
        in_dpc = self.dpc_routine_active and new < DISPATCH_LEVEL
        if new > old or in_dpc:
            self.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, _BAD_LOWER, old, new, int(in_dpc))
        if new < DISPATCH_LEVEL <= old:
            self.dispatcher.maybe_end_quantum()

    def require_irql(self, at_most: int, routine: str, verifier_code: int = 0) -> None:
        """Stop the machine if `routine` is called above its documented IRQL."""
        if self.irql > at_most or (
            self.dispatch_rules_from < DISPATCH_LEVEL and self.rules_irql() > at_most
        ):
            self.irql_violation(at_most, routine, verifier_code)

    def irql_violation(self, at_most: int, routine: str, verifier_code: int = 0) -> NoReturn:
        """Bug-check `routine`, called above `at_most`: 0x0A, under the verifier 0xC4 if it has one.

        `verifier_code` is the first parameter of that 0xC4.
        """
        detail = f"{routine} called at {self.level_name()}, at most {irql_name(at_most)}"
        if self.verifier and verifier_code:
            code = DRIVER_VERIFIER_DETECTED_VIOLATION
            self.bug_check(code, verifier_code, self.irql, detail=detail)
        self.bug_check(IRQL_NOT_LESS_OR_EQUAL, 0, self.irql, detail=detail)

    def in_dpc(self) -> bool:
        """Tell whether the rules for DPC routines hold; for threaded ones the verifier's only."""
        if self.dpc_routine_active:
            return True
        if self.dispatch_rules_from == DISPATCH_LEVEL or self.dpc_thread is None:
            return False
        # The DPC thread is in a routine, but an equal may have the processor.
        return self.current_thread is self.dpc_thread.thread

    def rules_irql(self) -> int:
        """Return the level whose rules hold: a threaded DPC obeys those of DISPATCH_LEVEL."""
        return max(self.irql, DISPATCH_LEVEL) if self.in_dpc() else self.irql

    def level_name(self) -> str:
        """Return the name of the present IRQL, for reports."""
        name = irql_name(self.irql)
        return f"{name} in a threaded DPC" if self.in_dpc() and self.irql < DISPATCH_LEVEL else name

    # Requests that wait for the IRQL to fall

    def request_dpcs(self) -> None:
        """Have the queued DPCs run as soon as the IRQL is below DISPATCH_LEVEL."""
        self.pending |= DPC_REQUESTED
        if self.irql < DISPATCH_LEVEL:
            self.take_pending()

    def take_pending(self) -> None:
        """Take everything pending that the present IRQL allows, highest first."""
        while self.pending:
            pending = self.pending
            if pending & INTERRUPT_REQUESTED and self._take_interrupts():
                continue
            if self.irql >= DISPATCH_LEVEL:
                return
            if pending & DPC_REQUESTED:
                self.drain_dpcs()
            elif pending & RESCHEDULE_REQUESTED:
                self.pending = pending & ~RESCHEDULE_REQUESTED
                self.dispatcher.preempt()
            elif pending & APC_REQUESTED and self.irql < APC_LEVEL:
                self.pending = pending & ~APC_REQUESTED
                if self.current_thread is not None:
                    self.current_thread.deliver_apcs()
            else:
                return

    def drain_dpcs(self) -> None:
        """Run every queued DPC at DISPATCH_LEVEL; the present IRQL is below it."""
        self.pending &= ~DPC_REQUESTED
        old = self.irql
        self.irql = DISPATCH_LEVEL
        self.dpc_routine_active = True
        queue = self.dpc_queue
        dpc = None
        try:
            while queue:
                dpc = queue.popleft()
                dpc.queued = False
                self.dpcs += 1
                dpc.routine(dpc, dpc.context, dpc.argument1, dpc.argument2)
                if self.irql != DISPATCH_LEVEL:
                    detail = f"DPC routine {dpc.routine!r} returned at {irql_name(self.irql)}"
                    self.bug_check(IRQL_NOT_LESS_OR_EQUAL, 0, self.irql, detail=detail)
        except Exception as error:
            self.unhandled_exception(error, f"DPC routine {dpc.routine!r}" if dpc else "DPC")
        self.dpc_routine_active = False
        self.irql = old

    def _take_interrupts(self) -> bool:
        taken = False
        lines = self.raised_lines  # a service routine may raise and disconnect others
        while lines:
            # The highest, of equals the first; mostly there is one.
            line = lines[0] if len(lines) == 1 else max(lines, key=lambda line: line.irql)
            if line.irql <= self.irql:
                return taken
            lines.remove(line)
            line.service()
            taken = True
        self.pending &= ~INTERRUPT_REQUESTED
        return taken

    # Stopping

    def bug_check(
        self, code: int, p1: int = 0, p2: int = 0, p3: int = 0, p4: int = 0, detail: str = ""
    ) -> NoReturn:
        """Stop the machine with one report (WDK: KeBugCheckEx)."""
        if self.bug_checked is not None:
            raise self.bug_checked  # the first one is the cause; code may break more on its way out
        thread = self.current_thread
        report = {
            "detail": detail,
            "routine": self._calling_routine(),
            "driver": calling_driver(_DRIVER_FRAMES) or "none on the stack",
            "irql": irql_name(self.irql),
            "in_dpc": self.in_dpc(),
            "thread": str(thread) if thread is not None else "none (idle)",
            "irps": [str(irp) for irp in thread.irps] if thread is not None else [],
            "last_trace_points": [str(point) for point in trace.last(8)],
        }
        self.bug_checked = BugCheck(code, (p1, p2, p3, p4), report)
        raise self.bug_checked

    def unhandled_exception(self, error: BaseException, where: str) -> NoReturn:
        """Bug-check 0x1E for an exception that left kernel code."""
        import traceback  # nobody needs it until something is wrong

        lines = "".join(traceback.format_exception(error))
        try:
            self.bug_check(
                KMODE_EXCEPTION_NOT_HANDLED, detail=f"{type(error).__name__} left {where}\n{lines}"
            )
        except BugCheck as stop:
            raise stop from error

    def switch_from_dpc(self, routine: str) -> NoReturn:
        """Bug-check 0xB8: a DPC routine tried to wait."""
        self.bug_check(ATTEMPTED_SWITCH_FROM_DPC, detail=f"{routine} in a DPC routine")

    @staticmethod
    def _calling_routine() -> str:
        import traceback

        here = __file__
        for frame in reversed(traceback.extract_stack()):
            if frame.filename != here:
                return f"{frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
        return "?"

    # Shorthands of the dispatcher

    @property
    def thread_switches(self) -> int:
        """Return how often a thread was given the processor."""
        return self.dispatcher.switches

    def post(self, callback: Callable[[], object]) -> None:
        """Have `callback` run by the dispatcher; may be called from any OS thread."""
        self.dispatcher.post(callback)

    def schedule_hardware(self, callback: Callable[[], object]) -> None:
        """Have a device model of this process act once the present thread left or waits."""
        self.dispatcher.hardware.append(callback)

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Call `callback` whenever a descriptor or zmq socket is readable.

        It runs in the dispatcher: no thread, PASSIVE_LEVEL, and it must not wait.
        """
        self.dispatcher.idle.add_source(source, callback)

    def remove_source(self, source: Any) -> None:
        """Undo `add_source`; a source that is not there is no error."""
        self.dispatcher.idle.remove_source(source)

    def run(self) -> None:
        """Run until `stop`; for a machine across processes."""
        self.dispatcher.run()

    def stop(self) -> None:
        """Make `run` return after the present pass."""
        self.dispatcher.stopping = True

    def close(self) -> None:
        """End every thread where it stands, so that a machine nobody uses any more can be freed."""
        self.dispatcher.close()

    def run_until(self, predicate: Callable[[], bool]) -> None:
        """Run until `predicate()` holds; raise Deadlock if it never can."""
        self.dispatcher.run_until(predicate)

    def run_thread(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Run `routine(*args)` in a fresh system thread; return its value, raise its exception."""
        return self.dispatcher.run_thread(routine, args)

    def next_number(self) -> int:
        """Return a number no other thread or process of this machine has."""
        return next(self._object_numbers)
