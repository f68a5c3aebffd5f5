"""The IRPs of all threads as plain values: who asked, who holds each now, and in which state.

IRPs that belong to no thread are their creator's alone and not listed.

Rules: dispatcher's OS thread, between two threads; changes nothing.
Spec: WDK, IRP (ThreadListEntry); IO_STACK_LOCATION.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
    MAJOR_NAMES,
    SL_PENDING_RETURNED,
)
from shared.nt_status import status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.kthread import KThread

_CONTROLS = (IRP_MJ_DEVICE_CONTROL, IRP_MJ_INTERNAL_DEVICE_CONTROL)


def inspect_irps(threads: "Iterable[KThread]") -> list[dict[str, Any]]:
    """Return an entry for each IRP in the list of a thread, by thread and age."""
    ordered = sorted(threads, key=lambda thread: thread.number)
    return [_inspect(irp, thread) for thread in ordered for irp in thread.irps]


def _inspect(irp: "Irp", thread: "KThread") -> dict[str, Any]:
    process = thread.process
    current, count = irp.current_location, irp.stack_count
    location = irp.stack[min(max(current, 1), count)] if irp.stack else None
    function = location.major_function if location is not None else -1
    held = location is not None and 1 <= current <= count
    holder = location.device_object if location is not None and held else None
    return {
        "irp": f"{id(irp):#x}",
        "thread": thread.number,
        "process_number": process.number if process is not None else 0,
        "pid": process.process_id if process is not None else 0,
        "function": MAJOR_NAMES.get(function, f"{function:#x}"),
        "code": location.io_control_code if location and function in _CONTROLS and held else 0,
        "held_by": str(holder) if holder is not None else "its creator",
        "location": current,
        "locations": count,
        "state": _state(irp),
        "cancellable": irp.cancel_routine is not None,
        "cancelled": irp.cancel,
        "status": status_name(irp.status),
    }


def _state(irp: "Irp") -> str:
    current, count = irp.current_location, irp.stack_count
    if not irp.stack:
        return "freed"
    if current > count + 1:
        return "completed"
    if current > count:
        return "new"
    marked = irp.stack[current].control & SL_PENDING_RETURNED
    return "pending" if marked else "in a driver"
