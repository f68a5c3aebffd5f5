"""Asynchronous procedure calls.

Rules: insert at <= DISPATCH_LEVEL; kernel routines run in the thread at APC_LEVEL.
Spec: WDK, Types of APCs; Disabling APCs.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.irql import DISPATCH_LEVEL

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread

KernelRoutine = Callable[["Apc"], object]


def _no_routine(apc: "Apc") -> None:
    """A user APC may come without a kernel routine."""


class Apc:
    """One APC object; it can be in one queue at a time and be inserted again after it ran."""

    __slots__ = (
        "context",
        "inserted",
        "kernel_routine",
        "normal_routine",
        "rundown_routine",
        "thread",
    )

    def __init__(
        self,
        thread: "KThread",
        kernel_routine: KernelRoutine = _no_routine,
        context: Any = None,
        *,
        normal_routine: Callable[["Apc"], object] | None = None,
        rundown_routine: Callable[["Apc"], object] | None = None,
    ) -> None:
        self.thread = thread
        self.kernel_routine = kernel_routine
        self.normal_routine = normal_routine
        self.rundown_routine = rundown_routine
        self.context = context
        self.inserted = False

    def _queue(self) -> "deque[Apc]":
        return self.thread.special_apcs

    def insert(self) -> bool:
        """Queue to the thread; False if queued already or the thread has ended."""
        thread = self.thread
        processor = thread.processor
        if processor.irql > DISPATCH_LEVEL:
            processor.irql_violation(DISPATCH_LEVEL, "KeInsertQueueApc")
        if self.inserted or thread.ended:
            return False
        self.inserted = True
        self._queue().append(self)
        self._announce()
        return True

    def remove(self) -> bool:
        """Take out of the queue; False if it was not there."""
        if not self.inserted:
            return False
        self._queue().remove(self)
        self.inserted = False
        return True

    def _announce(self) -> None:
        self.thread.apc_inserted()

    def run_down(self) -> None:
        """Tell the owner that the thread ended with this APC still queued."""
        self.inserted = False
        if self.rundown_routine is not None:
            self.rundown_routine(self)


class SpecialKernelApc(Apc):
    """Runs whenever the thread is below APC_LEVEL and not in a guarded region."""

    __slots__ = ()


class NormalKernelApc(Apc):
    """Also held back by critical regions; its normal routine runs at PASSIVE_LEVEL."""

    __slots__ = ()

    def _queue(self) -> "deque[Apc]":
        return self.thread.normal_apcs


class UserApc(Apc):
    """Delivered to user mode from an alertable wait; ends that wait with STATUS_USER_APC."""

    __slots__ = ()

    def _queue(self) -> "deque[Apc]":
        return self.thread.user_apcs

    def _announce(self) -> None:
        self.thread.user_apc_inserted()
