"""Kernel mutexes: recursive, IRQL unchanged, normal kernel APCs off while held.

Rules: acquire by waiting; release at <= DISPATCH_LEVEL by the owner.
Spec: WDK, Introduction to Mutex Objects; KeInitializeMutex, KeReleaseMutex.
"""

from typing import TYPE_CHECKING

from kernel_proc.scheduling.ddi_rules import IRQL_KE_DISPATCH_LTE
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import DispatcherObject
from shared.nt_status import STATUS_ABANDONED, STATUS_MUTANT_NOT_OWNED, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor


class Mutex(DispatcherObject):
    """A KMUTEX. State 1: free; 0 and below: held, once or more often."""

    __slots__ = ("abandoned", "owner")

    def __init__(self, processor: "Processor") -> None:
        super().__init__(processor, 1)
        self.owner: KThread | None = None
        self.abandoned = False

    def describe(self) -> str:
        """Return state and owner for reports."""
        return f"Mutex(state {self.signal_state}, owner {self.owner})"

    def is_signaled_for(self, thread: "KThread | None") -> bool:
        """Tell whether it is free or held by `thread` itself."""
        return self.signal_state > 0 or (self.owner is thread and thread is not None)

    def take(self, thread: "KThread | None") -> int:
        """Give it to `thread`, once more if it owns it already."""
        if thread is None:
            self.processor.switch_from_dpc("acquisition of a mutex")
        self.signal_state -= 1
        if self.signal_state == 0:
            self.owner = thread
            thread.mutexes[self] = None
            thread.kernel_apc_disable -= 1
            if self.abandoned:
                self.abandoned = False
                return STATUS_ABANDONED
        return STATUS_SUCCESS

    def release(self, increment: int = 0) -> int:
        """Undo one acquisition; return the previous state, 0 when this was the last.

        STATUS_MUTANT_NOT_OWNED is raised if the calling thread is not the owner.
        """
        processor = self.processor
        processor.require_irql(DISPATCH_LEVEL, "KeReleaseMutex", IRQL_KE_DISPATCH_LTE)
        if self.owner is None or self.owner is not processor.current_thread:
            raise RaisedStatus(STATUS_MUTANT_NOT_OWNED)
        previous = self.signal_state
        self.signal_state += 1
        if self.signal_state == 1:
            owner = self.owner
            self._let_go(owner, increment)
            owner.apc_inserted()
        return previous

    def abandon(self) -> None:
        """Free it because its owner has ended; the next owner is told."""
        if self.owner is not None:
            self.signal_state = 1
            self.abandoned = True
            self._let_go(self.owner, 0)

    def _let_go(self, owner: "KThread", increment: int) -> None:
        self.owner = None
        owner.mutexes.pop(self, None)
        owner.kernel_apc_disable += 1
        self.wake_waiters(increment)
