"""What the verifier remembers of one call of a dispatch routine.

The calls of one IRP form a chain, the lowest driver's first; an IRP carries its latest. It tells
who has the IRP now, and what became of it before the routine returned.

Rules: kept for as long as the IRP goes through the stack it was made for.
"""

from typing import TYPE_CHECKING

from kernel_proc.io_manager.irp_flags import SL_PENDING_RETURNED
from kernel_proc.scheduling.irql import APC_LEVEL
from shared.nt_status import STATUS_PENDING

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor


class DispatchCall:
    """One call; `returned` is None while the routine runs, `lower_status` what it was given."""

    __slots__ = (
        "completed",
        "control",
        "device",
        "forwarded",
        "in_dpc",
        "irql",
        "location",
        "lower_status",
        "parent",
        "returned",
        "stack",
        "status",
        "thread",
    )

    def __init__(
        self, irp: "Irp", location: int, device: "DeviceObject", parent: "DispatchCall | None"
    ) -> None:
        processor = irp.processor
        self.location = location
        self.device = device
        self.stack = irp.stack
        self.parent = parent
        self.thread: KThread | None = processor.current_thread
        self.in_dpc = processor.dpc_routine_active
        self.irql = processor.irql
        self.control = 0
        self.status = 0
        self.completed = False
        self.forwarded = False
        self.lower_status = STATUS_PENDING
        self.returned: int | None = None

    def is_marked(self, irp: "Irp") -> bool:
        """Tell whether the driver marked the IRP pending, then or since."""
        control = self.control
        if not self.completed and irp.stack is self.stack:
            control |= self.stack[self.location].control
        return bool(control & SL_PENDING_RETURNED)

    def runs_here(self, processor: "Processor") -> bool:
        """Tell whether the running code is this routine, and nothing that interrupted it.

        In doubt it is not: an APC of the thread may be the driver's below.
        """
        thread = processor.current_thread
        if self.returned is not None or thread is not self.thread:
            return False
        if processor.dpc_routine_active != self.in_dpc:
            return False
        in_apc = processor.irql == APC_LEVEL != self.irql or (
            thread is not None and thread.normal_apc_in_progress
        )
        return not in_apc


def latest_call(irp: "Irp") -> DispatchCall | None:
    """Return the call that the IRP's present holder was given it by; None if it has none."""
    call: DispatchCall | None = irp.verifier_record
    if call is None or call.completed or call.stack is not irp.stack:
        return None
    return call


def keeper_beneath(irp: "Irp") -> DispatchCall | None:
    """Return who has the IRP, if the running code is a dispatch routine that had passed it on."""
    call = latest_call(irp)
    if call is None or call.returned != STATUS_PENDING or call.parent is None:
        return None
    return call if call.parent.runs_here(irp.processor) else None
