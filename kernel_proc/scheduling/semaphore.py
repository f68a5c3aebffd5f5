"""Semaphores.

Rules: release at <= DISPATCH_LEVEL.
Spec: WDK, Semaphore Objects; KeReleaseSemaphore.
"""

from typing import TYPE_CHECKING

from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import DispatcherObject
from shared.nt_status import STATUS_SEMAPHORE_LIMIT_EXCEEDED, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor


class Semaphore(DispatcherObject):
    """A count from 0 to `limit`; each wait takes one."""

    __slots__ = ("limit",)

    def __init__(self, processor: "Processor", count: int, limit: int) -> None:
        super().__init__(processor, count)
        self.limit = limit

    def take(self, thread: "KThread | None") -> int:
        """Satisfy one wait."""
        self.signal_state -= 1
        return STATUS_SUCCESS

    def release(self, adjustment: int = 1, increment: int = 0) -> int:
        """Add to the count; return the previous one.

        Over the limit, STATUS_SEMAPHORE_LIMIT_EXCEEDED is raised and the count stays.
        """
        self.processor.require_irql(DISPATCH_LEVEL, "KeReleaseSemaphore")
        previous = self.signal_state
        if adjustment <= 0 or previous + adjustment > self.limit:
            raise RaisedStatus(STATUS_SEMAPHORE_LIMIT_EXCEEDED)
        self.signal_state = previous + adjustment
        self.wake_waiters(increment)
        return previous
