"""Device controls of user threads, and cancelling them.

The result of an overlapped request is a completion if it comes later, or if
another thread can be told of it, by an event or a packet; else it is in the one reply.

Rules: the caller's KTHREAD.
Spec: WDK: NtDeviceIoControlFile, NtCancelIoFile, NtCancelIoFileEx, NtCancelSynchronousIoFile;
shared/envelope.py.
"""

from typing import Final

from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    cancel_io_file_ex,
    cancel_synchronous_io,
    device_io_control_file,
)
from kernel_proc.server.answers import Answers
from kernel_proc.server.service_types import Door, Request, unless_abandoned
from kernel_proc.server.session import Session, UserThread
from shared.envelope import (
    FLAG_ANY_THREAD,
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_OUTPUT_INLINE,
    FLAG_SYNCHRONOUS,
    FLAG_USER_APC,
)
from shared.nt_status import STATUS_CANCELLED, STATUS_NOT_FOUND


class ServerRequest(DeviceControlRequest):
    """A device control request that knows whom to answer, and whether its completion was sent."""

    __slots__ = ("answers", "caller", "request_id", "sent")

    def __init__(self, answers: Answers, caller: UserThread) -> None:
        super().__init__(0, 0, on_finished=_finished, on_written=_written)
        self.answers = answers
        self.caller = caller
        self.request_id = 0
        self.sent = False


def _written(request: DeviceControlRequest) -> None:
    # The result is there, and nobody has been told of it yet.
    assert isinstance(request, ServerRequest)
    request.sent = True
    _complete(request)


def _finished(request: DeviceControlRequest) -> None:
    # End of a completion APC, the service having returned STATUS_PENDING before.
    assert isinstance(request, ServerRequest)
    if not request.sent:
        _complete(request)


def _complete(request: ServerRequest) -> None:
    output = request.output if request.output_inline else None
    request.answers.complete(
        request.caller,
        request.request_id,
        request.apc_context,
        _flags(request, output),
        request.iosb_status,
        request.information,
        output,
    )


def _flags(request: DeviceControlRequest, output: bytes | None) -> int:
    if not request.iosb_written:
        return FLAG_OUTPUT_INLINE if output else 0
    flags = FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE if output else FLAG_IOSB_WRITTEN
    return flags | FLAG_USER_APC if request.user_apc else flags


def device_control(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtDeviceIoControlFile: one answer with the result, or one now and a completion."""
    answers = door.answers
    if request[3] in caller.abandoned:
        answers.reply(caller, request[3], STATUS_CANCELLED)
        return
    call = caller.spare
    if call is None:
        call = ServerRequest(answers, caller)
    else:
        caller.spare = None
    (
        _,
        flags,
        call.handle,
        request_id,
        call.control_code,
        call.event_handle,
        call.input_address,
        call.output_address,
        call.input_length,
        call.output_length,
        call.apc_context,
        _,
        _,
    ) = request
    call.request_id = call.trace_id = request_id
    call.iosb_written = call.returned = call.sent = call.given_up = False
    call.iosb_status = call.information = call.copy_fault = 0
    call.input = payload if flags & FLAG_INPUT_INLINE else None
    call.output_inline = flags & FLAG_OUTPUT_INLINE != 0
    call.user_apc = flags & FLAG_USER_APC != 0
    caller.active = call
    status = device_io_control_file(door.io, caller.kthread, call)
    caller.active = None
    if call.sent or not call.finished:
        answers.reply_pending(caller, request_id, status, FLAG_COMPLETION_FOLLOWS)
        return
    output = call.output if call.output_inline else None
    answers.reply(
        caller,
        request_id,
        status,
        _flags(call, output),
        0,
        call.information,
        call.iosb_status,
        output,
    )
    call.input = call.output = None
    if not call.user_apc:  # else the APC's until it is delivered
        caller.spare = call


_NO_REQUEST: Final = DeviceControlRequest()


@unless_abandoned
def cancel(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCancelIoFile, NtCancelIoFileEx or NtCancelSynchronousIoFile, as the flags say."""
    flags, handle, information = request[1], request[2], request[12]
    if flags & FLAG_SYNCHRONOUS:
        target = caller.session.threads.get(information)
        status = cancel_synchronous_io(target.kthread) if target is not None else STATUS_NOT_FOUND
    elif flags & FLAG_ANY_THREAD:
        named = _find(caller.session, information) if information else None
        status = cancel_io_file_ex(door.io, caller.kthread, handle, named)
    else:
        status = cancel_io_file(door.io, caller.kthread, handle)
    door.answers.reply(caller, request[3], status)


def _find(session: Session, request_id: int) -> DeviceControlRequest:
    # The outstanding request of that id, whatever thread has issued it.
    for thread in session.threads.values():
        for irp in thread.kthread.irps:
            request = irp.request
            if isinstance(request, ServerRequest) and request.request_id == request_id:
                return request
    return _NO_REQUEST
