"""Requests a driver holds: queued for its DPC or given to its hardware, cancel-safe in both.

A request carries a cancel routine exactly while it is in a table, and whoever takes the routine
off owns the request: the DPC, the cancellation, or the cleanup of its file.

Rules: <= DISPATCH_LEVEL. Requests are completed only after the queue lock is released.
Spec: WDK, Cancel-Safe IRP Queues; IoSetCancelRoutine.
"""

from typing import TYPE_CHECKING

from kernel_proc.io_manager.cancellation import release_cancel_spin_lock, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, mark_irp_pending
from kernel_proc.io_manager.stack_location import CancelRoutine
from kernel_proc.scheduling.spinlock import SpinLock
from shared.nt_status import STATUS_CANCELLED

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.scheduling.processor import Processor


class PendedRequests:
    """The two tables and their lock.

    `queued` are in order of arrival; `commanded` are found by the tag their command carries.
    """

    __slots__ = ("_cancel", "_lock", "_next_tag", "commanded", "queued")

    def __init__(self, processor: "Processor") -> None:
        self._lock = SpinLock(processor, "no-op queue")
        self._cancel: CancelRoutine = self._cancel_routine
        self._next_tag = 0
        self.queued: dict[Irp, None] = {}
        self.commanded: dict[int, Irp] = {}

    def insert_queued(self, irp: Irp) -> bool:
        """Pend a request for the DPC; False if it was cancelled already, and is complete."""
        old = self._lock.acquire()
        mark_irp_pending(irp)
        irp.driver_context = None
        self.queued[irp] = None
        set_cancel_routine(irp, self._cancel)
        if irp.cancel and self._take_back(irp, old):
            return False
        self._lock.release(old)
        return True

    def insert_commanded(self, irp: Irp) -> int | None:
        """Pend a request for the hardware; return its tag, or None as above."""
        old = self._lock.acquire()
        mark_irp_pending(irp)
        self._next_tag = tag = self._next_tag + 1
        irp.driver_context = tag
        self.commanded[tag] = irp
        set_cancel_routine(irp, self._cancel)
        if irp.cancel and self._take_back(irp, old):
            return None
        self._lock.release(old)
        return tag

    def _take_back(self, irp: Irp, old_irql: int) -> bool:
        # A request cancelled before its routine stood there is nobody's but ours.
        if set_cancel_routine(irp, None) is None:
            return False  # its cancel routine waits for the lock
        self._remove(irp)
        self._lock.release(old_irql)
        _complete_cancelled(irp)
        return True

    def take_queued(self) -> list[Irp]:
        """Take every queued request; called at DISPATCH_LEVEL."""
        lock = self._lock
        lock.acquire_at_dpc_level()
        queued = self.queued
        taken = []
        for irp in queued:
            if set_cancel_routine(irp, None) is not None:
                taken.append(irp)  # noqa: PERF401 - a loop is faster for one request, the rule
        if len(taken) == len(queued):
            queued.clear()
        else:
            for irp in taken:
                del queued[irp]
        lock.release_from_dpc_level()
        return taken

    def take_commanded(self, tag: int) -> Irp | None:
        """Take the request of a finished command; None if it was cancelled meanwhile."""
        self._lock.acquire_at_dpc_level()
        irp = self.commanded.get(tag)
        if irp is not None:
            if set_cancel_routine(irp, None) is None:
                irp = None  # its cancel routine is on its way here
            else:
                del self.commanded[tag]
        self._lock.release_from_dpc_level()
        return irp

    def cancel_file(self, file: "FileObject") -> None:
        """Cancel every request made through a file whose last handle is being closed."""
        old = self._lock.acquire()
        taken = [
            irp
            for irp in (*self.queued, *self.commanded.values())
            if irp.stack[irp.current_location].file_object is file
            and set_cancel_routine(irp, None) is not None
        ]
        for irp in taken:
            self._remove(irp)
        self._lock.release(old)
        for irp in taken:
            _complete_cancelled(irp)

    def _cancel_routine(self, device: "DeviceObject | None", irp: Irp) -> None:
        # Called with the cancel spin lock held; the queue's own lock is taken after it is gone.
        release_cancel_spin_lock(irp.processor, irp.cancel_irql)
        old = self._lock.acquire()
        self._remove(irp)
        self._lock.release(old)
        _complete_cancelled(irp)

    def _remove(self, irp: Irp) -> None:
        tag = irp.driver_context
        if tag is None:
            del self.queued[irp]
        else:
            del self.commanded[tag]

    def inspect(self) -> dict[str, int]:
        """Return how many requests are held."""
        return {"queued": len(self.queued), "commanded": len(self.commanded)}


def _complete_cancelled(irp: Irp) -> None:
    irp.status = STATUS_CANCELLED
    irp.information = 0
    complete_request(irp)
