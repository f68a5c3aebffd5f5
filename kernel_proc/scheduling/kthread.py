"""Kernel threads: one for each user thread of a session, and system threads.

A user thread is in user mode when it has no stack here. A system service or an APC gives it a
pooled greenlet until it returns to user mode.

Rules: dispatcher's OS thread only.
Spec: WDK, Windows Kernel-Mode Process and Thread Manager; Disabling APCs.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.bugcheck import (
    APC_INDEX_MISMATCH,
    IRQL_GT_ZERO_AT_SYSTEM_SERVICE,
    THREAD_TERMINATE_HELD_MUTEX,
)
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.pending import APC_REQUESTED
from kernel_proc.scheduling.wait import USER_MODE, DispatcherObject, Wait
from shared.nt_status import STATUS_ALERTED, STATUS_THREAD_IS_TERMINATING, STATUS_USER_APC

if TYPE_CHECKING:
    from kernel_proc.scheduling.apc import Apc
    from kernel_proc.scheduling.mutex import Mutex
    from kernel_proc.scheduling.process import KProcess
    from kernel_proc.scheduling.processor import Processor

IN_USER_MODE: Final = 0
READY: Final = 1
RUNNING: Final = 2
WAITING: Final = 3
TERMINATED: Final = 4
_STATE_NAMES: Final = ("in user mode", "ready", "running", "waiting", "terminated")

DEFAULT_PRIORITY: Final = 8

_ENTERED_ABOVE_APC: Final = 0x11A  # verifier 0xC4, critical regions
_LEFT_ABOVE_APC: Final = 0x11B
_REGION_ABOVE_APC: Final = 0x20010  # verifier 0xC4, rule IrqlKeApcLte2


class KThread(DispatcherObject):
    """A thread of the emulated kernel; signalled when it has ended.

    `irps` is its IRP list in order of issue, `mutexes` what it owns (dicts used as ordered sets).
    The two APC-disable counts are zero or negative, as NT keeps them.
    """

    __slots__ = (
        "_entries",
        "_is_system",
        "_state",
        "alerted",
        "base_priority",
        "irps",
        "kernel_apc_disable",
        "mutexes",
        "name",
        "normal_apc_in_progress",
        "normal_apcs",
        "number",
        "priority",
        "process",
        "special_apc_disable",
        "special_apcs",
        "stack",
        "terminating",
        "user_apcs",
        "wait_block",
    )

    def __init__(
        self,
        processor: "Processor",
        process: "KProcess | None",
        name: str,
        priority: int,
        is_system: bool,
    ) -> None:
        super().__init__(processor)
        self.process = process
        self.name = name
        self.number = processor.next_number()
        self.base_priority = priority
        self.priority = priority
        self.irps: dict[Any, None] = {}
        self.mutexes: dict[Mutex, None] = {}
        self.special_apcs: deque[Apc] = deque()
        self.normal_apcs: deque[Apc] = deque()
        self.user_apcs: deque[Apc] = deque()
        self.normal_apc_in_progress = False
        self.kernel_apc_disable = 0
        self.special_apc_disable = 0
        self.alerted = False
        self.terminating = False
        self.stack: Any = None
        self.wait_block: Wait | None = None
        self._is_system = is_system
        self._state = IN_USER_MODE
        self._entries: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        processor.dispatcher.threads.add(self)
        if process is not None:
            process.threads.add(self)

    def __str__(self) -> str:
        return f"thread {self.number} {self.name!r}"

    # State, moved by the dispatcher and by waits

    @property
    def is_waiting(self) -> bool:
        """Tell whether it sleeps in a wait."""
        return self._state == WAITING

    @property
    def in_user_mode(self) -> bool:
        """Tell whether it is outside the kernel."""
        return self._state == IN_USER_MODE

    @property
    def ended(self) -> bool:
        """Tell whether it has ended."""
        return self._state == TERMINATED

    @property
    def is_system_thread(self) -> bool:
        """Tell whether it never leaves the kernel."""
        return self._is_system

    def make_ready(self) -> None:
        """Note that it stands in the ready queue."""
        self._state = READY

    def make_running(self) -> None:
        """Note that it has the processor."""
        self._state = RUNNING

    def make_waiting(self) -> None:
        """Note that it sleeps in `wait_block`."""
        self._state = WAITING

    def describe(self) -> str:
        """Return name, state and, if it waits, what for."""
        text = f"{self} {_STATE_NAMES[self._state]}"
        waited = self._waits_for()
        return f"{text} for {waited}" if waited else text

    def inspect(self) -> dict[str, Any]:
        """Return whose it is, its state and what it waits for."""
        process = self.process
        return {
            "thread": self.number,
            "name": self.name,
            "process_number": process.number if process is not None else 0,
            "pid": process.process_id if process is not None else 0,
            "system": self._is_system,
            "priority": self.priority,
            "irps": len(self.irps),
            "terminating": self.terminating,
            "state": _STATE_NAMES[self._state],
            "waits_for": self._waits_for(),
        }

    def _waits_for(self) -> str:
        block = self.wait_block
        if self._state != WAITING or block is None:
            return ""
        waited = ", ".join(_describe_waited(entry) for entry in block.objects)
        return f"{waited or 'time to pass'}{self._apcs_held_back(block.irql)}"

    def _apcs_held_back(self, irql: int) -> str:
        # The likely cause of a wait without end: the APC that would end it cannot run.
        held = len(self.special_apcs) + len(self.normal_apcs)
        if not held:
            return ""
        if irql >= APC_LEVEL:
            reason = "at APC_LEVEL"
        elif self.special_apc_disable:
            reason = "in a guarded region"
        else:
            reason = "in a critical region"
        return f", {reason}, which holds back {held} kernel APC{'s' if held > 1 else ''} of its own"

    # Entering and leaving the kernel

    def enter_kernel(self, routine: Callable[..., object], *args: Any) -> None:
        """Run a system service on this thread, behind those it still has to do."""
        self._entries.append((routine, args))
        if self._state == IN_USER_MODE:
            self.processor.dispatcher.ready(self)

    def run_in_kernel(self) -> None:
        """Do everything the thread has to do in the kernel; called on its greenlet."""
        processor = self.processor
        entries = self._entries
        while True:
            if self.special_apcs or self.normal_apcs:
                self.deliver_apcs()
            if not entries:
                break
            routine, args = entries.popleft()
            try:
                routine(*args)
            except Exception as error:
                processor.unhandled_exception(error, f"{self}: {routine!r}")
            del routine, args
            if processor.irql or self.kernel_apc_disable or self.special_apc_disable:
                self._bad_exit()
        if self._is_system:
            self.end()
        elif self._state != TERMINATED:
            self._state = IN_USER_MODE

    def _bad_exit(self) -> None:
        # What a system service or system thread may not leave behind.
        processor = self.processor
        if self.mutexes and self._is_system:
            held = ", ".join(mutex.describe() for mutex in self.mutexes)
            processor.bug_check(
                THREAD_TERMINATE_HELD_MUTEX, self.number, detail=f"{self} ended holding {held}"
            )
        if processor.irql:
            processor.bug_check(
                IRQL_GT_ZERO_AT_SYSTEM_SERVICE, 0, processor.irql, detail=f"return of {self}"
            )
        processor.bug_check(
            APC_INDEX_MISMATCH,
            0,
            -self.special_apc_disable,
            -self.kernel_apc_disable,
            detail=f"{self} left the kernel with APCs disabled and {len(self.mutexes)} mutexes",
        )

    def end(self) -> None:
        """End the thread: abandon its mutexes, run down its APCs, signal it.

        For a user thread the caller has made sure that it is in user mode.
        """
        if self._state == TERMINATED:
            return
        self._state = TERMINATED
        self.terminating = True
        self._entries.clear()
        for mutex in list(self.mutexes):
            mutex.abandon()
        if self.processor.lock_order is not None:
            self.processor.lock_order.thread_ended(self)
        for queue in (self.special_apcs, self.normal_apcs, self.user_apcs):
            while queue:
                queue.popleft().run_down()
        self.processor.dispatcher.threads.discard(self)
        if self.process is not None:
            self.process.threads.discard(self)
        self.signal_state = 1
        self.wake_waiters()

    # Being disturbed

    def alert(self) -> None:
        """End an alertable wait, now or the next one (NT: NtAlertThread)."""
        self.alerted = True
        wait = self.wait_block
        if wait is not None and wait.alertable and wait.status is None and self.is_waiting:
            self.alerted = False
            wait.end(STATUS_ALERTED)

    def terminate(self) -> None:
        """Break off its user-mode waits, now and from now on."""
        self.terminating = True
        wait = self.wait_block
        if wait is not None and wait.mode == USER_MODE and wait.status is None and self.is_waiting:
            wait.end(STATUS_THREAD_IS_TERMINATING)

    # APCs

    @property
    def apcs_waiting(self) -> bool:
        """Tell whether a kernel APC could be delivered, were the IRQL low enough."""
        if self.special_apc_disable:
            return False
        if self.special_apcs:
            return True
        return bool(
            self.normal_apcs and not self.kernel_apc_disable and not self.normal_apc_in_progress
        )

    def apc_inserted(self) -> None:
        """Deliver a new kernel APC as soon as the thread's state allows."""
        if not self.apcs_waiting:
            return
        processor = self.processor
        state = self._state
        if state == RUNNING:
            processor.pending |= APC_REQUESTED
            if processor.irql < APC_LEVEL:
                processor.take_pending()
        elif state == IN_USER_MODE or (
            state == WAITING and self.wait_block is not None and self.wait_block.irql < APC_LEVEL
        ):
            processor.dispatcher.ready(self)

    def user_apc_inserted(self) -> None:
        """End an alertable user-mode wait for a user APC."""
        wait = self.wait_block
        if (
            wait is not None
            and wait.alertable
            and wait.mode == USER_MODE
            and wait.status is None
            and self.is_waiting
        ):
            wait.end(STATUS_USER_APC)

    def deliver_apcs(self) -> None:
        """Run the kernel APCs; the thread is current and at PASSIVE_LEVEL."""
        processor = self.processor
        apc = None
        try:
            while self.special_apc_disable == 0:
                if self.special_apcs:
                    apc = self.special_apcs.popleft()
                    apc.inserted = False
                    processor.irql = APC_LEVEL
                    apc.kernel_routine(apc)
                    processor.pending &= ~APC_REQUESTED  # this loop takes those that came meanwhile
                    processor.lower_irql(PASSIVE_LEVEL)
                elif self.normal_apcs and self.apcs_waiting:
                    apc = self.normal_apcs.popleft()
                    self._deliver_normal(apc)
                else:
                    return
        except Exception as error:  # it must not end up in the code the APC interrupted
            processor.unhandled_exception(error, f"{type(apc).__name__} of {self}")

    def _deliver_normal(self, apc: "Apc") -> None:
        # The kernel routine at APC_LEVEL, then the normal routine at PASSIVE_LEVEL.
        processor = self.processor
        apc.inserted = False
        processor.irql = APC_LEVEL
        apc.kernel_routine(apc)
        self.normal_apc_in_progress = True
        processor.lower_irql(PASSIVE_LEVEL)
        if apc.normal_routine is not None:
            apc.normal_routine(apc)
        self.normal_apc_in_progress = False

    def enter_critical_region(self) -> None:
        """Disable normal kernel APCs (WDK: KeEnterCriticalRegion)."""
        self.processor.require_irql(APC_LEVEL, "KeEnterCriticalRegion", _ENTERED_ABOVE_APC)
        self.kernel_apc_disable -= 1

    def leave_critical_region(self) -> None:
        """Undo one `enter_critical_region` (WDK: KeLeaveCriticalRegion)."""
        self.processor.require_irql(APC_LEVEL, "KeLeaveCriticalRegion", _LEFT_ABOVE_APC)
        self.kernel_apc_disable += 1
        self._apcs_enabled()

    def enter_guarded_region(self) -> None:
        """Disable all APCs without changing the IRQL (WDK: KeEnterGuardedRegion)."""
        self.processor.require_irql(APC_LEVEL, "KeEnterGuardedRegion", _REGION_ABOVE_APC)
        self.special_apc_disable -= 1

    def leave_guarded_region(self) -> None:
        """Undo one `enter_guarded_region` (WDK: KeLeaveGuardedRegion)."""
        self.processor.require_irql(APC_LEVEL, "KeLeaveGuardedRegion", _REGION_ABOVE_APC)
        self.special_apc_disable += 1
        self._apcs_enabled()

    def _apcs_enabled(self) -> None:
        if (self.special_apcs or self.normal_apcs) and self._state == RUNNING:
            self.apc_inserted()

    def are_apcs_disabled(self) -> bool:
        """Tell whether normal kernel APCs are disabled by count (WDK: KeAreApcsDisabled)."""
        return self.kernel_apc_disable < 0 or self.special_apc_disable < 0

    def are_all_apcs_disabled(self) -> bool:
        """Tell whether special ones cannot run either (WDK: KeAreAllApcsDisabled)."""
        return self.special_apc_disable < 0 or self.processor.irql >= APC_LEVEL


def _describe_waited(waited: DispatcherObject) -> str:
    # A thread without its own waits: two may wait for each other's end.
    return f"the end of {waited}" if isinstance(waited, KThread) else waited.describe()


def create_system_thread(
    processor: "Processor",
    routine: Callable[..., object],
    *args: Any,
    name: str = "system",
    priority: int = DEFAULT_PRIORITY,
    process: "KProcess | None" = None,
) -> KThread:
    """Start a thread that runs `routine(*args)` in the kernel (WDK: PsCreateSystemThread)."""
    processor.require_irql(PASSIVE_LEVEL, "PsCreateSystemThread")
    thread = KThread(processor, process, name, priority, is_system=True)
    thread.enter_kernel(routine, *args)
    return thread


def create_user_thread(
    processor: "Processor", process: "KProcess", name: str, priority: int = DEFAULT_PRIORITY
) -> KThread:
    """Make the kernel's side of a user thread; it starts in user mode."""
    return KThread(processor, process, name, priority, is_system=False)
