"""A queue of pending IRPs that races with their cancelling correctly.

A driver uses the class as it is, first in first out, or overrides the four routines NT calls
CsqInsertIrp, CsqRemoveIrp, CsqPeekNextIrp and CsqCompleteCanceledIrp; the first three are called
with `lock` held, the last without it.

Rules: <= DISPATCH_LEVEL. After `insert` the IRP is no longer the caller's.
Spec: WDK, Cancel-Safe IRP Queues; IoCsqInsertIrp; IoCsqRemoveNextIrp; IoCsqRemoveIrp.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.cancellation import release_cancel_spin_lock, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import mark_irp_pending
from kernel_proc.scheduling.spinlock import SpinLock
from shared.nt_status import STATUS_CANCELLED

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.processor import Processor


class CsqContext:
    """Names one queued IRP; `irp` is None once it has left the queue (WDK: IO_CSQ_IRP_CONTEXT)."""

    __slots__ = ("irp", "queue")

    def __init__(self) -> None:
        self.irp: Irp | None = None
        self.queue: CancelSafeQueue | None = None


class CancelSafeQueue:
    """The queue; `irps` holds it in order."""

    def __init__(self, processor: "Processor", name: str = "cancel-safe queue") -> None:
        self.lock = SpinLock(processor, name)
        self.irps: dict[Irp, None] = {}

    # What a driver may override

    def insert_irp(self, irp: "Irp") -> None:
        """Put an IRP in."""
        self.irps[irp] = None

    def remove_irp(self, irp: "Irp") -> None:
        """Take an IRP out."""
        del self.irps[irp]

    def peek_next_irp(self, irp: "Irp | None", peek_context: Any) -> "Irp | None":
        """Return the IRP behind `irp`, or the first; only one that fits `peek_context`, if given.

        Here `peek_context` is a file object.
        """
        candidates = iter(self.irps)
        if irp is not None:
            for candidate in candidates:
                if candidate is irp:
                    break
        for candidate in candidates:
            if peek_context is None or candidate.file_object is peek_context:
                return candidate
        return None

    def complete_canceled_irp(self, irp: "Irp") -> None:
        """End an IRP that was cancelled in the queue."""
        irp.status = STATUS_CANCELLED
        irp.information = 0
        complete_request(irp)

    # What a driver calls

    def insert(self, irp: "Irp", context: CsqContext | None = None) -> None:
        """Mark pending and queue; one that is cancelled already completes as such."""
        irql = self.lock.acquire()
        mark_irp_pending(irp)
        if context is not None:
            context.irp = irp
            context.queue = self
        irp.driver_context = self if context is None else context
        self.insert_irp(irp)
        set_cancel_routine(irp, _cancel_routine)
        if irp.cancel and set_cancel_routine(irp, None) is not None:
            self._take_out(irp)
            self.lock.release(irql)
            self.complete_canceled_irp(irp)
            return
        self.lock.release(irql)

    def remove_next(self, peek_context: Any = None) -> "Irp | None":
        """Return the next IRP nobody is cancelling; it is the caller's to complete."""
        irql = self.lock.acquire()
        irp = self.peek_next_irp(None, peek_context)
        # One without cancel routine is being cancelled: its routine waits for the lock.
        while irp is not None and set_cancel_routine(irp, None) is None:
            irp = self.peek_next_irp(irp, peek_context)
        if irp is not None:
            self._take_out(irp)
        self.lock.release(irql)
        return irp

    def remove(self, context: CsqContext) -> "Irp | None":
        """Return the IRP `context` names; None if it is gone or being cancelled."""
        irql = self.lock.acquire()
        irp = context.irp
        if irp is not None and set_cancel_routine(irp, None) is None:
            irp = None
        if irp is not None:
            self._take_out(irp)
        self.lock.release(irql)
        return irp

    def cancelled(self, irp: "Irp") -> None:
        """Take out and end an IRP whose cancel routine has been called."""
        irql = self.lock.acquire()
        self._take_out(irp)
        self.lock.release(irql)
        self.complete_canceled_irp(irp)

    def _take_out(self, irp: "Irp") -> None:
        context = irp.driver_context
        irp.driver_context = None
        if isinstance(context, CsqContext):
            context.irp = None
        self.remove_irp(irp)


def _cancel_routine(device: "DeviceObject | None", irp: "Irp") -> None:
    holder = irp.driver_context
    release_cancel_spin_lock(irp.processor, irp.cancel_irql)
    queue = holder.queue if isinstance(holder, CsqContext) else holder
    assert isinstance(queue, CancelSafeQueue)
    queue.cancelled(irp)
