"""The verifier's rules for handing an IRP to a driver.

Rules: called before the dispatch routine, at the caller's IRQL.
Spec: WDK, Bug Check 0xC9 (0x03, 0x04, 0x10, 0x203 to 0x208, 0x23A, 0x302), 0xC4/0xE2; rule
ForwardedAtBadIrql.
"""

from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_proc.io_manager.irp_call import DispatchCall, keeper_beneath
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
    IRP_MJ_POWER,
    IRP_MJ_READ,
    IRP_MJ_WRITE,
    MAJOR_NAMES,
    SL_INVOKE_ON_CANCEL,
    SL_INVOKE_ON_ERROR,
    SL_INVOKE_ON_SUCCESS,
)
from kernel_proc.io_manager.verifier_codes import (
    CALL_WITH_BAD_DEVICE,
    CALL_WITH_BAD_IRP,
    CALLED_AT_WRONG_IRQL,
    CALLED_TOO_HIGH,
    FORWARDED_AT_APC_LEVEL,
    FORWARDED_FROM_BENEATH,
    FORWARDED_WITH_CANCEL_ROUTINE,
    FORWARDED_WITH_CONTROL,
    FORWARDED_WITH_UPPER_ROUTINE,
    TOO_FEW_STACK_LOCATIONS,
    USER_ADDRESS_IN_KERNEL_IRP,
)
from kernel_proc.memory.address_space import LOWEST_USER_ADDRESS, USER_ADDRESS_END
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
    NO_MORE_IRP_STACK_LOCATIONS,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, irql_name
from kernel_proc.scheduling.wait import KERNEL_MODE

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.processor import Processor

_ROUTINE_FLAGS: Final = SL_INVOKE_ON_SUCCESS | SL_INVOKE_ON_ERROR | SL_INVOKE_ON_CANCEL
_AT_DISPATCH_LEVEL: Final = frozenset(
    (
        IRP_MJ_READ,
        IRP_MJ_WRITE,
        IRP_MJ_DEVICE_CONTROL,
        IRP_MJ_INTERNAL_DEVICE_CONTROL,
        IRP_MJ_POWER,
    )
)


def check_call(
    processor: "Processor", device: "DeviceObject", irp: "Irp", parent: DispatchCall | None
) -> None:
    """Check a call of IoCallDriver; `parent` is the call of the driver that passes the IRP on."""
    if processor.irql > DISPATCH_LEVEL:
        _stop(CALLED_TOO_HIGH, irp, f"IoCallDriver at {irql_name(processor.irql)}")
    if not irp.stack:
        _stop(CALL_WITH_BAD_IRP, irp, "IoCallDriver with a freed IRP")
    if device.delete_pending and not device.open_count:
        _stop(CALL_WITH_BAD_DEVICE, irp, f"IoCallDriver to {device}, which is deleted")
    keeper = keeper_beneath(irp)
    if keeper is not None:
        _stop(FORWARDED_FROM_BENEATH, irp, f"sent to {device}, but {keeper.device} has it already")
    if irp.cancel_routine is not None:
        _stop(FORWARDED_WITH_CANCEL_ROUTINE, irp, "forwarded with a cancel routine")
    _check_location(device, irp, parent)
    _check_level(processor, irp)
    if parent is None and irp.requestor_mode == KERNEL_MODE:
        _check_addresses(irp)


def _check_location(device: "DeviceObject", irp: "Irp", parent: DispatchCall | None) -> None:
    left = irp.current_location - 1
    if left <= 0:
        irp.processor.bug_check(
            NO_MORE_IRP_STACK_LOCATIONS,
            id(irp),
            detail=f"IoCallDriver to {device} with an IRP of {irp.stack_count} locations",
        )
    if left < device.stack_size:
        detail = f"{device} needs {device.stack_size} stack locations, {left} are left"
        _stop(TOO_FEW_STACK_LOCATIONS, irp, detail)
    location = irp.stack[left]
    if location.control & ~_ROUTINE_FLAGS:
        detail = f"the next location's Control is {location.control:#x}: pending, copied or skipped"
        _stop(FORWARDED_WITH_CONTROL, irp, detail)
    routine = location.completion_routine
    if parent is None or routine is None or left >= parent.location:
        return
    upper = irp.stack[parent.location]
    if upper.completion_routine is routine and upper.context is location.context:
        detail = f"the completion routine above, {routine!r}, was copied down"
        _stop(FORWARDED_WITH_UPPER_ROUTINE, irp, detail)


def _check_level(processor: "Processor", irp: "Irp") -> None:
    irql = processor.irql
    major = irp.stack[irp.current_location - 1].major_function
    if irql == DISPATCH_LEVEL and major not in _AT_DISPATCH_LEVEL:
        name = MAJOR_NAMES.get(major, f"{major:#x}")
        _stop(CALLED_AT_WRONG_IRQL, irp, f"{name} sent at {irql_name(irql)}")
    if (
        irp.on_thread_list
        and irql >= APC_LEVEL
        and irp.thread is processor.current_thread
        and not processor.dpc_routine_active
    ):
        _stop(
            FORWARDED_AT_APC_LEVEL,
            irp,
            f"sent at {irql_name(irql)}: the APC that ends it cannot run, and who "
            "waits for it here waits for ever",
        )


def _check_addresses(irp: "Irp") -> None:
    for buffer in (irp.user_buffer, irp.stack[irp.current_location - 1].type3_input_buffer):
        if _is_user_address(buffer):
            irp.processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                USER_ADDRESS_IN_KERNEL_IRP,
                id(irp),
                buffer,
                detail=f"{irp}: its requestor is the kernel, and {buffer:#x} is a user's address",
            )


def _is_user_address(buffer: Any) -> bool:
    return isinstance(buffer, int) and LOWEST_USER_ADDRESS <= buffer < USER_ADDRESS_END


def _stop(code: int, irp: "Irp", detail: str) -> NoReturn:
    irp.processor.bug_check(
        DRIVER_VERIFIER_IOMANAGER_VIOLATION, code, id(irp), detail=f"{irp}: {detail}"
    )
