"""Timers: dispatcher objects that a deadline signals, with an optional DPC and period.

Rules: set and cancel at <= DISPATCH_LEVEL.
Spec: WDK, Timer Objects and DPCs; KeSetTimerEx.
"""

from typing import TYPE_CHECKING

from kernel_proc.scheduling.ddi_rules import IRQL_KE_DISPATCH_LTE
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.timer_queue import Deadline
from kernel_proc.scheduling.wait import DispatcherObject
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.dpc import Dpc
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor


class Timer(DispatcherObject):
    """A KTIMER; notification timers stay signalled, synchronization ones satisfy one wait."""

    __slots__ = ("_deadline", "_dpc", "_period_ns", "is_notification")

    def __init__(self, processor: "Processor", notification: bool = True) -> None:
        super().__init__(processor)
        self.is_notification = notification
        self._deadline: Deadline | None = None
        self._dpc: Dpc | None = None
        self._period_ns = 0

    def take(self, thread: "KThread | None") -> int:
        """Satisfy one wait."""
        if not self.is_notification:
            self.signal_state = 0
        return STATUS_SUCCESS

    @property
    def is_set(self) -> bool:
        """Tell whether it stands in the timer queue."""
        return self._deadline is not None and self._deadline.target is not None

    @property
    def dpc(self) -> "Dpc | None":
        """The DPC it queues when it expires."""
        return self._dpc

    def set(self, due_ns: int, *, period_ns: int = 0, dpc: "Dpc | None" = None) -> bool:
        """Start it, `due_ns` from now; True if it was set already (WDK: KeSetTimerEx)."""
        was_set = self.cancel()
        self.signal_state = 0
        self._dpc = dpc
        self._period_ns = period_ns
        self._enter(self.processor.clock.now_ns() + due_ns)
        return was_set

    def cancel(self) -> bool:
        """Stop it; True if it was set (WDK: KeCancelTimer)."""
        self.processor.require_irql(DISPATCH_LEVEL, "KeCancelTimer", IRQL_KE_DISPATCH_LTE)
        deadline = self._deadline
        self._deadline = None
        return deadline is not None and self.processor.dispatcher.timers.cancel(deadline)

    def expire(self) -> None:
        """Signal, queue the DPC and start the next period; called at DISPATCH_LEVEL."""
        deadline = self._deadline
        self._deadline = None
        if self._period_ns and deadline is not None:
            # Whole periods from the intended time, so that they do not drift; those missed
            # altogether are not made up.
            late_ns = self.processor.clock.now_ns() - deadline.when_ns
            periods = max(0, late_ns) // self._period_ns + 1
            self._enter(deadline.when_ns + periods * self._period_ns)
        self.signal_state = 1
        self.wake_waiters()
        if self._dpc is not None:
            self._dpc.insert()

    def _enter(self, when_ns: int) -> None:
        self._deadline = self.processor.dispatcher.timers.add(when_ns, self)
