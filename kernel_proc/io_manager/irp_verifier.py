"""Driver Verifier's I/O checks: the rules of a dispatch routine and of completing an IRP.

Exists only in verifier mode; the free path asks once whether it is there.

Rules: called by the routines it checks, at their IRQL.
Spec: WDK, Bug Check 0xC9 DRIVER_VERIFIER_IOMANAGER_VIOLATION; 0xC4; DDI compliance rules.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_proc.io_manager.irp_call import DispatchCall, keeper_beneath, latest_call
from kernel_proc.io_manager.irp_call_rules import check_call
from kernel_proc.io_manager.irp_flags import SL_PENDING_RETURNED
from kernel_proc.io_manager.irp_ownership_rules import OwnershipRules
from kernel_proc.io_manager.verifier_codes import (
    CANCEL_ROUTINE_OF_IRP_BENEATH,
    CANCEL_TOO_LATE,
    COMPLETED_AS_PENDING,
    COMPLETED_FROM_BENEATH,
    COMPLETED_TOO_HIGH,
    COMPLETED_WITH_CANCEL_ROUTINE,
    COMPLETION_CHANGED_APC_DISABLE,
    COMPLETION_CHANGED_IRQL,
    DISPATCH_CHANGED_APC_DISABLE,
    EVENT_ALREADY_SIGNALED,
    FAST_IO_CHANGED_APC_DISABLE,
    INFORMATION_TOO_LARGE,
    IRQL_CHANGED,
    MARK_WITHOUT_PENDING,
    NEITHER_DONE_NOR_PENDING,
    PENDING_NOT_PROPAGATED,
    PENDING_WITHOUT_MARK,
    RETURNED_MINUS_ONE,
    SPIN_LOCK_RULE,
    STATUS_DIFFERS,
)
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.call_stack import routine_name
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, irql_name
from shared.nt_status import STATUS_PENDING, status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.io_manager.stack_location import CancelRoutine, CompletionRoutine
    from kernel_proc.scheduling.kthread import KThread

_MINUS_ONE: Final = 0xFFFF_FFFF

# IRQL, thread, its two APC-disable counts, spin locks held.
ThreadState = tuple[int, "KThread | None", int, int, int]


class IrpVerifier(OwnershipRules):
    """The checks; each stops the machine or returns."""

    __slots__ = ()

    def call_driver(self, device: "DeviceObject", irp: "Irp") -> int:
        """Do what `device_stack.call_driver` does, and judge what the driver did."""
        # A driver that skips its location forwards from the creator's position, so the position
        # does not tell a new request from a forwarded one; the last call's state does.
        parent = latest_call(irp)
        check_call(self._processor, device, irp, parent)
        location = irp.current_location - 1
        irp.current_location = location
        if parent is not None:
            parent.forwarded = True
        call = irp.verifier_record = DispatchCall(irp, location, device, parent)
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
        call.returned = status
        if parent is not None:
            parent.lower_status = status
        who = f"{routine_name(routine)} of {device}"
        self._check_thread_state(before, who, irp)
        self._check_return(call, who, irp, status)
        if event_was_set and status == STATUS_PENDING and not call.completed:
            self._violation(EVENT_ALREADY_SIGNALED, irp, "its event was signalled at issue")
        return status

    def _thread_state(self) -> ThreadState:
        processor = self._processor
        thread = processor.current_thread
        held = processor.lock_order.mine() if processor.lock_order is not None else 0
        if thread is None:
            return processor.irql, None, 0, 0, held
        return (
            processor.irql,
            thread,
            thread.kernel_apc_disable,
            thread.special_apc_disable,
            held,
        )

    def _check_thread_state(self, before: ThreadState, who: str, irp: "Irp") -> None:
        after = self._thread_state()
        if after == before:
            return
        if after[0] != before[0]:
            self._violation(
                IRQL_CHANGED,
                irp,
                f"{who} was called at {irql_name(before[0])} and returned at {irql_name(after[0])}",
            )
        if after[:4] == before[:4]:
            self._detected(SPIN_LOCK_RULE, irp, f"{who} returned with other locks than it had")
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            DISPATCH_CHANGED_APC_DISABLE,
            id(irp),
            -after[2],
            -before[2],
            detail=f"{who} changed the APC-disable count",
        )

    def _check_return(self, call: DispatchCall, who: str, irp: "Irp", status: int) -> None:
        who = f"{who} returned {status_name(status)}"
        if status == _MINUS_ONE:
            self._violation(RETURNED_MINUS_ONE, irp, who)
        marked = call.is_marked(irp)
        below = f"the driver below returned {status_name(call.lower_status)}"
        if status == STATUS_PENDING:
            if not marked and not call.forwarded:
                self._violation(PENDING_WITHOUT_MARK, irp, f"{who} without IoMarkIrpPending")
            if not marked and call.lower_status != STATUS_PENDING:
                self._violation(PENDING_WITHOUT_MARK, irp, f"{who}, {below}")
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
        elif status != call.lower_status:
            self._violation(STATUS_DIFFERS, irp, f"{who}, {below}")

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
        keeper = keeper_beneath(irp)
        if keeper is not None:
            self._violation(
                COMPLETED_FROM_BENEATH, irp, f"completed, but passed on to {keeper.device}"
            )
        if irp.verifier_record is None:
            irp.io.note(f"{irp} completed, but never sent by IoCallDriver (0xC9/0x239, a warning)")
        self._note_completed(irp)

    def _note_completed(self, irp: "Irp") -> None:
        call: DispatchCall | None = irp.verifier_record
        found = False
        while call is not None and call.stack is irp.stack:
            if not call.completed:
                call.control |= irp.stack[call.location].control
                # Two share a location if the upper one skipped its own: the lower completes.
                if call.location == irp.current_location and not found:
                    found = call.completed = True
                    call.status = irp.status
            call = call.parent

    def call_completion_routine(
        self,
        routine: "CompletionRoutine",
        device: "DeviceObject | None",
        irp: "Irp",
        context: Any,
    ) -> int:
        """Call a completion routine; it must return as it was called."""
        before = self._thread_state()
        status = routine(device, irp, context)
        after = self._thread_state()
        if after[:4] != before[:4]:
            self._completion_changed(routine, before, after)
        return status

    def _completion_changed(
        self, routine: "CompletionRoutine", before: ThreadState, after: ThreadState
    ) -> NoReturn:
        code, was, now = COMPLETION_CHANGED_APC_DISABLE, -before[2], -after[2]
        what = "the APC-disable count"
        if after[0] != before[0]:
            code, was, now, what = COMPLETION_CHANGED_IRQL, before[0], after[0], "the IRQL"
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            code,
            id(routine),
            was,
            now,
            detail=f"completion routine {routine_name(routine)} changed {what}",
        )

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
                PENDING_NOT_PROPAGATED, irp, f"{routine_name(routine)} did not mark the IRP pending"
            )

    def check_set_cancel(self, irp: "Irp") -> None:
        """Check a call of IoSetCancelRoutine with a routine."""
        keeper = keeper_beneath(irp)
        if keeper is not None:
            self._violation(
                CANCEL_ROUTINE_OF_IRP_BENEATH,
                irp,
                f"its cancel routine is set, but {keeper.device} has it and may have set its own",
            )

    def check_cancel_returned(self, irp: "Irp", routine: "CancelRoutine") -> None:
        """Check that a cancel routine released the cancel spin lock."""
        if irp.io.cancel_lock.held:
            self._detected(
                SPIN_LOCK_RULE, irp, f"{routine_name(routine)} kept the cancel spin lock"
            )

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
                detail=f"fast I/O routine {routine_name(routine)} changed the APC-disable count",
            )

    def information_too_large(self, irp: "Irp", available: int) -> NoReturn:
        """Stop: the driver claims more bytes than the output buffer has."""
        self._violation(
            INFORMATION_TOO_LARGE, irp, f"Information {irp.information}, buffer {available}"
        )

    def not_completed_in_time(self, irp: "Irp") -> NoReturn:
        """Stop: a driver kept a cancelled IRP for five minutes."""
        self._detected(CANCEL_TOO_LATE, irp, "cancelled, and not completed in time")
