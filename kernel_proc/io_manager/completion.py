"""IoCompleteRequest: the walk up the stack, and the APC that finishes an IRP in its thread.

Rules: complete_request at <= DISPATCH_LEVEL; the rest runs in the requesting thread at
APC_LEVEL.
Spec: WDK, IoCompleteRequest; Implementing an IoCompletion Routine; Types of APCs.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.irp import Irp, release_irp
from kernel_proc.io_manager.irp_flags import (
    IO_NO_INCREMENT,
    IRP_ASSOCIATED_IRP,
    IRP_CLOSE_OPERATION,
    IRP_SYNCHRONOUS_API,
    SL_INVOKE_ON_CANCEL,
    SL_INVOKE_ON_ERROR,
    SL_INVOKE_ON_SUCCESS,
    SL_PENDING_RETURNED,
)
from kernel_proc.io_manager.user_apc import keep_charge, queue_user_apc
from kernel_proc.memory.mdl import MDL_PAGES_LOCKED, free_mdl, unlock_pages
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, MULTIPLE_IRP_COMPLETE_REQUESTS
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from shared.nt_status import STATUS_MORE_PROCESSING_REQUIRED
from shared.trace_points import COMPLETING, FINISHED, trace

if TYPE_CHECKING:
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.request import DeviceControlRequest
    from kernel_proc.scheduling.apc import Apc

FIRST_ERROR: Final = 0xC000_0000  # NT_ERROR: severity 3
_FIRST_FAILURE: Final = 0x8000_0000  # !NT_SUCCESS
_WITHOUT_APC: Final = IRP_CLOSE_OPERATION | IRP_ASSOCIATED_IRP


def complete_request(irp: Irp, boost: int = IO_NO_INCREMENT) -> None:
    """End a driver's work on `irp`; its status and information are set.

    The IRP must not be touched afterwards.
    """
    processor = irp.processor
    if trace.enabled and irp.request is not None:
        trace.record(COMPLETING, irp.request.trace_id)
    verifier = irp.io.verifier
    if verifier is not None:
        verifier.check_complete(irp)
    if processor.irql > DISPATCH_LEVEL:
        processor.irql_violation(DISPATCH_LEVEL, "IoCompleteRequest")
    count = irp.stack_count
    current = irp.current_location
    if current > count + 1:
        _completed_twice(irp)
    stack = irp.stack
    try:
        while current <= count:
            location = stack[current]
            control = location.control
            irp.pending_returned = control & SL_PENDING_RETURNED
            current += 1
            irp.current_location = current
            routine = location.completion_routine
            if routine is not None and (
                control
                & (SL_INVOKE_ON_SUCCESS if irp.status < _FIRST_FAILURE else SL_INVOKE_ON_ERROR)
                or (control & SL_INVOKE_ON_CANCEL and irp.cancel)
            ):
                context = location.context
                location.clear()
                device = stack[current].device_object if current <= count else None
                if verifier is None:
                    if routine(device, irp, context) == STATUS_MORE_PROCESSING_REQUIRED:
                        return
                    continue
                status = verifier.call_completion_routine(routine, device, irp, context)
                if status == STATUS_MORE_PROCESSING_REQUIRED:
                    return
                verifier.check_pending_propagated(irp, control, current, routine)
            else:
                location.clear()
                if control & SL_PENDING_RETURNED and current <= count:
                    stack[current].control |= SL_PENDING_RETURNED
    except Exception as error:
        processor.unhandled_exception(error, "a completion routine")
    irp.current_location = count + 2
    _top_reached(irp, boost)


def finish_request(irp: Irp, status: int, information: int = 0) -> int:
    """Set the result, complete, and return the status (KMDF: ...CompleteWithInformation)."""
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


def _top_reached(irp: Irp, boost: int) -> None:
    if irp.flags & _WITHOUT_APC:
        _finish_without_apc(irp, boost)
        return
    if irp.mdl_address is not None:
        unlock_mdls(irp)
    thread = irp.thread
    if thread is None:
        _without_thread(irp)
        return
    processor = irp.processor
    if (
        thread is processor.current_thread
        and processor.irql == PASSIVE_LEVEL
        and not thread.special_apcs
        and not thread.special_apc_disable
    ):
        # Inserted, the APC would run here and now: the same without the queue.
        processor.irql = APC_LEVEL
        finish_irp(irp)
        processor.lower_irql(PASSIVE_LEVEL)
        return
    irp.kernel_routine = _completion_apc
    irp.rundown_routine = _completion_apc_run_down
    if not irp.insert():
        retire_irp(irp)


def _completed_twice(irp: Irp) -> None:
    irp.processor.bug_check(
        MULTIPLE_IRP_COMPLETE_REQUESTS, id(irp), detail=f"{irp} completed once more"
    )


def _finish_without_apc(irp: Irp, boost: int) -> None:
    # Cleanup and close: who sent one waits for the event, looks at the IRP and frees it.
    if irp.flags & IRP_ASSOCIATED_IRP:
        _associated_done(irp, boost)
    elif irp.user_event is not None:
        irp.user_event.set(boost)


def _associated_done(irp: Irp, boost: int) -> None:
    master = irp.master_irp
    release_irp(irp)
    master.irp_count -= 1
    if not master.irp_count:
        complete_request(master, boost)


def _without_thread(irp: Irp) -> None:
    if irp.cancel:  # taken from a thread that waited five minutes for it
        retire_irp(irp)
        return
    irp.processor.bug_check(
        IRQL_NOT_LESS_OR_EQUAL,
        0,
        irp.processor.irql,
        detail=f"{irp}: no thread to finish it in; its creator's completion routine must "
        "return STATUS_MORE_PROCESSING_REQUIRED",
    )


def unlock_mdls(irp: Irp) -> None:
    """Unlock the pages of every MDL of an IRP, in whatever context completes it."""
    mdl = irp.mdl_address
    while mdl is not None:
        if mdl.mdl_flags & MDL_PAGES_LOCKED:
            unlock_pages(mdl)
        mdl = mdl.next


def _completion_apc(apc: "Apc") -> None:
    assert isinstance(apc, Irp)
    finish_irp(apc)


def _completion_apc_run_down(apc: "Apc") -> None:
    # The thread ended before it could run: nobody is left to be told.
    assert isinstance(apc, Irp)
    retire_irp(apc)


def finish_irp(irp: Irp) -> None:
    """Copy back, tell the requestor, free the IRP (NT: IopCompleteRequest)."""
    if irp.finish_buffers is not None:
        irp.finish_buffers(irp)
    request = irp.request
    if request is None:
        _deliver_to_kernel(irp)
        retire_irp(irp)
        return
    file = irp.file_object
    assert file is not None
    status = irp.status
    if status < FIRST_ERROR or (irp.pending_returned and not file.synchronous):
        request.iosb_written = True
        request.iosb_status = status
        request.information = irp.information
        _deliver(irp, file, request)
    elif irp.pending_returned:
        file.final_status = status
        file.event.set()
    retire_irp(irp)
    request.finished = True
    if trace.enabled:
        trace.record(FINISHED, request.trace_id)
    if request.returned and request.on_finished is not None:
        request.on_finished(request)


def _deliver(irp: Irp, file: "FileObject", request: "DeviceControlRequest") -> None:
    # The status block first: whoever is told of the end may look at it.
    port = file.completion_port if request.apc_context and not request.user_apc else None
    if (
        not file.synchronous
        and request.on_written is not None
        and (request.returned or irp.user_event is not None or port is not None)
    ):
        request.on_written(request)
    _signal(irp, file, irp.status)
    if request.user_apc:
        queue_user_apc(irp, request)
    elif port is not None:
        port.post(
            file.completion_key,
            request.apc_context,
            irp.status,
            irp.information,
            keep_charge(irp),
        )


def _signal(irp: Irp, file: "FileObject", status: int) -> None:
    event = irp.user_event
    if event is not None:
        event.set()
        if not file.synchronous:
            return
    file.final_status = status
    file.event.set()


def _deliver_to_kernel(irp: Irp) -> None:
    status = irp.status
    file = irp.file_object
    by_synchronous_api = irp.flags & IRP_SYNCHRONOUS_API
    synchronous = by_synchronous_api or (file is not None and file.synchronous)
    if status < FIRST_ERROR or (irp.pending_returned and not synchronous):
        _write_iosb(irp)
        if file is not None and irp.user_event is None:
            _signal(irp, file, status)
        elif irp.user_event is not None:
            irp.user_event.set()
    elif irp.pending_returned and file is not None:
        if by_synchronous_api:
            _write_iosb(irp)
            (irp.user_event or file.event).set()
        else:
            file.final_status = status
            file.event.set()


def _write_iosb(irp: Irp) -> None:
    if irp.user_iosb is not None:
        irp.user_iosb.status = irp.status
        irp.user_iosb.information = irp.information


def retire_irp(irp: Irp) -> None:
    """Take an IRP off its thread, give back what it holds and free it."""
    if irp.on_thread_list:
        remove_from_thread(irp)
    if irp.mdl_address is not None:
        _free_mdls(irp)
    file = irp.file_object
    release_irp(irp)
    if file is not None:
        file.references -= 1
        if not file.references:
            irp.io.delete_file(file)


def remove_from_thread(irp: Irp) -> None:
    """Take an IRP off its thread's list and tell who waits for that (NT: IopDequeueThreadIrp)."""
    thread = irp.thread
    assert thread is not None
    irp.on_thread_list = False
    del thread.irps[irp]
    watches = irp.io.irp_watches
    if watches and thread in watches:
        watches[thread].set()


def _free_mdls(irp: Irp) -> None:
    mdl = irp.mdl_address
    irp.mdl_address = None
    while mdl is not None:
        following = mdl.next
        free_mdl(mdl)
        mdl = following
