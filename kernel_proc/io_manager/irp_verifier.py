"""Driver Verifier's I/O checks: the rules of a dispatch routine and of completing an IRP.

Exists only in verifier mode; the free path asks once whether it is there.

Rules: called by the routines it checks, at their IRQL.
Spec: WDK, Bug Check 0xC9 DRIVER_VERIFIER_IOMANAGER_VIOLATION; 0xC4; DDI compliance rules.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_proc.io_manager.irp_flags import (
    IRP_ALLOCATED_FIXED_SIZE,
    SL_PENDING_RETURNED,
)
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
    NO_MORE_IRP_STACK_LOCATIONS,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, irql_name
from shared.nt_status import STATUS_PENDING, status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.io_manager.stack_location import CancelRoutine, CompletionRoutine
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

# 0xC9, parameter 1
NOT_AN_IRP: Final = 0x01
FREE_OF_THREAD_IRP: Final = 0x02
CALL_WITH_BAD_IRP: Final = 0x03
IRQL_CHANGED: Final = 0x05
COMPLETED_AS_PENDING: Final = 0x06
COMPLETED_WITH_CANCEL_ROUTINE: Final = 0x07
COMPLETED_TOO_HIGH: Final = 0x0E
CALLED_TOO_HIGH: Final = 0x10
FORWARDED_WITH_CANCEL_ROUTINE: Final = 0x203
FREE_OF_IRP_IN_USE: Final = 0x20A
INITIALIZE_OF_ALLOCATED: Final = 0x20D
STATUS_DIFFERS: Final = 0x224
RETURNED_MINUS_ONE: Final = 0x225
NEITHER_DONE_NOR_PENDING: Final = 0x226
PENDING_NOT_PROPAGATED: Final = 0x228
PENDING_WITHOUT_MARK: Final = 0x23D
MARK_WITHOUT_PENDING: Final = 0x23E
FORWARDED_AT_APC_LEVEL: Final = 0x302
EVENT_ALREADY_SIGNALED: Final = 0x307
REINITIALIZED_IN_USE: Final = 0x310
REINITIALIZED_BUILT_IRP: Final = 0x311
INFORMATION_TOO_LARGE: Final = 0x312

# 0xC4, parameter 1
DISPATCH_CHANGED_APC_DISABLE: Final = 0xC5
FAST_IO_CHANGED_APC_DISABLE: Final = 0xC6
CANCEL_TOO_LATE: Final = 0x135
SPIN_LOCK_RULE: Final = 0x40009

_MINUS_ONE: Final = 0xFFFF_FFFF


class _Call:
    """What is known of one call of a dispatch routine, and what became of its IRP meanwhile."""

    __slots__ = ("completed", "control", "forwarded", "location", "parent", "stack", "status")

    def __init__(self, irp: "Irp", location: int, parent: "_Call | None") -> None:
        self.location = location
        self.stack = irp.stack
        self.parent = parent
        self.control = 0
        self.status = 0
        self.completed = False
        self.forwarded = False

    def is_marked(self, irp: "Irp") -> bool:
        """Tell whether the driver marked the IRP pending, then or since."""
        control = self.control
        if not self.completed and irp.stack is self.stack:
            control |= self.stack[self.location].control
        return bool(control & SL_PENDING_RETURNED)


class IrpVerifier:
    """The checks; each stops the machine or returns."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor

    def call_driver(self, device: "DeviceObject", irp: "Irp") -> int:
        """Do what `device_stack.call_driver` does, and judge what the driver did."""
        self._check_call(device, irp)
        # A driver that skips its location forwards from the creator's position, so the position
        # does not tell a new request from a forwarded one; the last call's state does.
        parent: _Call | None = irp.verifier_record
        if parent is not None and (parent.completed or parent.stack is not irp.stack):
            parent = None
        location = irp.current_location - 1
        irp.current_location = location
        if parent is not None:
            parent.forwarded = True
        call = irp.verifier_record = _Call(irp, location, parent)
        event = irp.user_event
        event_was_set = parent is None and event is not None and event.signal_state != 0
        stack_location = irp.stack[location]
        stack_location.device_object = device
        routine = device.major_function[stack_location.major_function]
        before = self._thread_state()
        try:
            status = routine(device, irp)
        except Exception as error:
            self._processor.unhandled_exception(error, f"a dispatch routine of {device}")
        self._check_thread_state(before, device, irp)
        self._check_return(call, device, irp, status)
        if event_was_set and status == STATUS_PENDING and not call.completed:
            self._violation(EVENT_ALREADY_SIGNALED, irp, "its event was signalled at issue")
        return status

    def _check_call(self, device: "DeviceObject", irp: "Irp") -> None:
        processor = self._processor
        if processor.irql > DISPATCH_LEVEL:
            self._violation(CALLED_TOO_HIGH, irp, f"IoCallDriver at {irql_name(processor.irql)}")
        if not irp.stack:
            self._violation(CALL_WITH_BAD_IRP, irp, "IoCallDriver with a freed IRP")
        if irp.current_location <= 1:
            processor.bug_check(
                NO_MORE_IRP_STACK_LOCATIONS,
                id(irp),
                detail=f"IoCallDriver to {device} with an IRP of {irp.stack_count} locations",
            )
        if irp.cancel_routine is not None:
            self._violation(FORWARDED_WITH_CANCEL_ROUTINE, irp, "forwarded with a cancel routine")
        if (
            irp.on_thread_list
            and processor.irql >= APC_LEVEL
            and irp.thread is processor.current_thread
            and not processor.dpc_routine_active
        ):
            self._violation(
                FORWARDED_AT_APC_LEVEL,
                irp,
                f"sent at {irql_name(processor.irql)}: the APC that ends it cannot run, and who "
                "waits for it here waits for ever",
            )

    def _thread_state(self) -> "tuple[int, KThread | None, int, int]":
        thread = self._processor.current_thread
        if thread is None:
            return self._processor.irql, None, 0, 0
        return (
            self._processor.irql,
            thread,
            thread.kernel_apc_disable,
            thread.special_apc_disable,
        )

    def _check_thread_state(
        self, before: "tuple[int, KThread | None, int, int]", device: "DeviceObject", irp: "Irp"
    ) -> None:
        after = self._thread_state()
        if after == before:
            return
        if after[0] != before[0]:
            self._violation(
                IRQL_CHANGED,
                irp,
                f"a dispatch routine of {device} was called at {irql_name(before[0])} and "
                f"returned at {irql_name(after[0])}",
            )
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            DISPATCH_CHANGED_APC_DISABLE,
            id(irp),
            -after[2],
            -before[2],
            detail=f"a dispatch routine of {device} changed the APC-disable count",
        )

    def _check_return(self, call: _Call, device: "DeviceObject", irp: "Irp", status: int) -> None:
        who = f"a dispatch routine of {device} returned {status_name(status)}"
        if status == _MINUS_ONE:
            self._violation(RETURNED_MINUS_ONE, irp, who)
        marked = call.is_marked(irp)
        if status == STATUS_PENDING:
            if not marked and not call.forwarded:
                self._violation(PENDING_WITHOUT_MARK, irp, f"{who} without IoMarkIrpPending")
        elif marked:
            self._violation(MARK_WITHOUT_PENDING, irp, f"{who} after IoMarkIrpPending")
        elif call.completed:
            if status != call.status:
                completed = status_name(call.status)
                self._violation(STATUS_DIFFERS, irp, f"{who}, the IRP completed with {completed}")
        elif not call.forwarded:
            self._violation(
                NEITHER_DONE_NOR_PENDING, irp, f"{who}, not completed, passed on or pending"
            )

    def check_complete(self, irp: "Irp") -> None:
        """Check a call of IoCompleteRequest, and note it for the dispatch routine's return."""
        processor = self._processor
        if processor.irql > DISPATCH_LEVEL:
            self._violation(COMPLETED_TOO_HIGH, irp, f"completed at {irql_name(processor.irql)}")
        if irp.current_location > irp.stack_count + 1:
            return  # completed twice: bug check 0x44 follows
        if irp.status in (STATUS_PENDING, _MINUS_ONE):
            self._violation(COMPLETED_AS_PENDING, irp, f"completed with {status_name(irp.status)}")
        if irp.cancel_routine is not None:
            self._violation(COMPLETED_WITH_CANCEL_ROUTINE, irp, "completed with a cancel routine")
        call: _Call | None = irp.verifier_record
        found = False
        while call is not None and call.stack is irp.stack:
            if not call.completed:
                call.control |= irp.stack[call.location].control
                # Two share a location if the upper one skipped its own: the lower completes.
                if call.location == irp.current_location and not found:
                    found = call.completed = True
                    call.status = irp.status
            call = call.parent

    def check_pending_propagated(
        self, irp: "Irp", control: int, current: int, routine: "CompletionRoutine"
    ) -> None:
        """Check that a completion routine which let the walk go on marked what it should."""
        if (
            control & SL_PENDING_RETURNED
            and current <= irp.stack_count
            and irp.stack
            and not irp.stack[current].control & SL_PENDING_RETURNED
        ):
            self._violation(
                PENDING_NOT_PROPAGATED, irp, f"{routine!r} did not mark the IRP pending"
            )

    def check_free(self, irp: "Irp") -> None:
        """Check a call of IoFreeIrp."""
        if not irp.stack:
            self._violation(NOT_AN_IRP, irp, "freed twice")
        if irp.on_thread_list:
            self._violation(FREE_OF_THREAD_IRP, irp, "freed, but the I/O manager's to free")
        if irp.current_location <= irp.stack_count:
            self._violation(FREE_OF_IRP_IN_USE, irp, "freed while a driver has it")

    def check_initialize(self, irp: "Irp") -> None:
        """Check a call of IoInitializeIrp."""
        if irp.allocation_flags & IRP_ALLOCATED_FIXED_SIZE:
            self._violation(INITIALIZE_OF_ALLOCATED, irp, "IoInitializeIrp on IoAllocateIrp's")

    def check_reuse(self, irp: "Irp") -> None:
        """Check a call of IoReuseIrp."""
        if not irp.stack:
            self._violation(NOT_AN_IRP, irp, "IoReuseIrp of a freed IRP")
        if irp.current_location <= irp.stack_count:
            self._violation(REINITIALIZED_IN_USE, irp, "IoReuseIrp while a driver has it")
        if not irp.allocation_flags & IRP_ALLOCATED_FIXED_SIZE:
            self._violation(REINITIALIZED_BUILT_IRP, irp, "IoReuseIrp on what IoBuild... made")

    def check_cancel_returned(self, irp: "Irp", routine: "CancelRoutine") -> None:
        """Check that a cancel routine released the cancel spin lock."""
        if irp.io.cancel_lock.held:
            self._detected(SPIN_LOCK_RULE, irp, f"{routine!r} kept the cancel spin lock")

    def check_fast_io_returned(
        self, thread: "KThread", before: tuple[int, int], routine: Callable[..., Any]
    ) -> None:
        """Check that a fast I/O routine left the APC-disable counts alone."""
        if (thread.kernel_apc_disable, thread.special_apc_disable) != before:
            self._processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                FAST_IO_CHANGED_APC_DISABLE,
                -thread.kernel_apc_disable,
                -before[0],
                detail=f"fast I/O routine {routine!r} changed the APC-disable count",
            )

    def information_too_large(self, irp: "Irp", available: int) -> NoReturn:
        """Stop: the driver claims more bytes than the output buffer has."""
        self._violation(
            INFORMATION_TOO_LARGE, irp, f"Information {irp.information}, buffer {available}"
        )

    def not_completed_in_time(self, irp: "Irp") -> NoReturn:
        """Stop: a driver kept a cancelled IRP for five minutes."""
        self._detected(CANCEL_TOO_LATE, irp, "cancelled, and not completed in time")

    def _violation(self, code: int, irp: "Irp", detail: str) -> NoReturn:
        self._processor.bug_check(
            DRIVER_VERIFIER_IOMANAGER_VIOLATION, code, id(irp), detail=f"{irp}: {detail}"
        )

    def _detected(self, code: int, irp: "Irp", detail: str) -> NoReturn:
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION, code, id(irp), detail=f"{irp}: {detail}"
        )
