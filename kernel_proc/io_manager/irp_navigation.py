"""How the owner of an IRP moves among its stack locations, and what it sets in them.

Rules: at any IRQL, by whoever owns the IRP at that moment.
Spec: WDK, IoGetCurrentIrpStackLocation; IoMarkIrpPending; IoSetCompletionRoutine.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.irp_flags import (
    SL_INVOKE_ON_CANCEL,
    SL_INVOKE_ON_ERROR,
    SL_INVOKE_ON_SUCCESS,
    SL_PENDING_RETURNED,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.io_manager.stack_location import CompletionRoutine, IoStackLocation


def get_current_irp_stack_location(irp: "Irp") -> "IoStackLocation":
    """Return the calling driver's location (WDK: IoGetCurrentIrpStackLocation)."""
    return irp.stack[irp.current_location]


def get_next_irp_stack_location(irp: "Irp") -> "IoStackLocation":
    """Return the next lower driver's location (WDK: IoGetNextIrpStackLocation)."""
    return irp.stack[irp.current_location - 1]


def set_next_irp_stack_location(irp: "Irp") -> None:
    """Move down by one without calling a driver (WDK: IoSetNextIrpStackLocation)."""
    irp.current_location -= 1


def skip_current_irp_stack_location(irp: "Irp") -> None:
    """Let the next driver have the caller's own location (WDK: IoSkipCurrentIrpStackLocation)."""
    irp.current_location += 1


def copy_current_irp_stack_location_to_next(irp: "Irp") -> None:
    """Copy the parameters down, not the completion routine (same name in the WDK)."""
    mine = irp.stack[irp.current_location]
    lower = irp.stack[irp.current_location - 1]
    lower.major_function = mine.major_function
    lower.minor_function = mine.minor_function
    lower.flags = mine.flags
    lower.output_buffer_length = mine.output_buffer_length
    lower.input_buffer_length = mine.input_buffer_length
    lower.io_control_code = mine.io_control_code
    lower.type3_input_buffer = mine.type3_input_buffer
    lower.file_object = mine.file_object
    lower.control = 0
    lower.completion_routine = None
    lower.context = None


def mark_irp_pending(irp: "Irp") -> None:
    """Promise STATUS_PENDING; before the IRP is queued anywhere (WDK: IoMarkIrpPending)."""
    irp.stack[irp.current_location].control |= SL_PENDING_RETURNED


def set_completion_routine(
    irp: "Irp",
    routine: "CompletionRoutine | None",
    context: Any = None,
    on_success: bool = True,
    on_error: bool = True,
    on_cancel: bool = True,
) -> None:
    """Have `routine` called when the lower drivers are done (WDK: IoSetCompletionRoutine)."""
    location = irp.stack[irp.current_location - 1]
    location.completion_routine = routine
    location.context = context
    location.control = (
        (SL_INVOKE_ON_SUCCESS if on_success else 0)
        | (SL_INVOKE_ON_ERROR if on_error else 0)
        | (SL_INVOKE_ON_CANCEL if on_cancel else 0)
    )
