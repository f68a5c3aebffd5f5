"""The system services a user thread can ask for, one small handler a kind.

A handler runs on the caller's KTHREAD at PASSIVE_LEVEL and may wait. It answers exactly once,
with the two exceptions the protocol knows: THREAD_EXIT is not answered, and a request that stays
pending is answered twice, the second time by its completion APC.

Rules: the caller's KTHREAD; `cancel_synchronous` alone runs in the dispatcher.
Spec: WDK: NtCreateFile, NtClose, NtDeviceIoControlFile, NtCancelIoFile,
NtCancelSynchronousIoFile, NtWaitForSingleObject.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    close_handle,
    create_event,
    create_file,
    device_io_control_file,
    duplicate_handle,
    run_down_thread,
    wait_for_object,
)
from kernel_proc.server.answers import Answers
from kernel_proc.server.session import UserThread
from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_NOTIFICATION,
    FLAG_OUTPUT_INLINE,
    FLAG_SIGNALED,
    FLAG_SYNCHRONOUS,
    KIND_CANCEL,
    KIND_CLOSE,
    KIND_CREATE,
    KIND_CREATE_EVENT,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_DUPLICATE,
    KIND_WAIT,
    WAIT_FOREVER,
)
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_NOT_SUPPORTED,
    STATUS_OBJECT_NAME_INVALID,
)


class Door(NamedTuple):
    """What a service needs beside its caller."""

    io: IoManager
    answers: Answers
    forget_thread: Callable[[UserThread], None]


#: A request's fields in the order of `session_server.REQUEST`, and its payload frame.
Request = tuple[int, ...]
Service = Callable[[Door, UserThread, Request, bytes], None]

# What `UserThread.active` holds while its thread serves a WAIT.
_WAITING: Final = object()


class ServerRequest(DeviceControlRequest):
    """A device control request that knows whom to answer."""

    __slots__ = ("answers", "caller", "request_id")

    def __init__(self, answers: Answers, caller: UserThread) -> None:
        super().__init__(0, 0, on_finished=_finished)
        self.answers = answers
        self.caller = caller
        self.request_id = 0


def _finished(request: DeviceControlRequest) -> None:
    # End of a completion APC, the service having returned STATUS_PENDING before.
    assert isinstance(request, ServerRequest)
    flags = FLAG_IOSB_WRITTEN if request.iosb_written else 0
    output = request.output if request.output_inline else None
    request.answers.complete(
        request.caller,
        request.request_id,
        request.apc_context,
        flags | FLAG_OUTPUT_INLINE if output else flags,
        request.iosb_status,
        request.information,
        output,
    )


def device_control(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtDeviceIoControlFile: one answer if it is finished, else one now and one at the end."""
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
    call.request_id = request_id
    call.iosb_written = call.returned = False
    call.iosb_status = call.information = call.copy_fault = 0
    call.input = payload if flags & FLAG_INPUT_INLINE else None
    call.output_inline = flags & FLAG_OUTPUT_INLINE != 0
    caller.active = call
    status = device_io_control_file(door.io, caller.kthread, call)
    caller.active = None
    if not call.finished:
        answers.reply_pending(caller, request_id, status, FLAG_COMPLETION_FOLLOWS)
        return
    output = call.output if call.output_inline else None
    flags = FLAG_IOSB_WRITTEN if call.iosb_written else 0
    answers.reply(
        caller,
        request_id,
        status,
        flags | FLAG_OUTPUT_INLINE if output else flags,
        0,
        call.information,
        call.iosb_status,
        output,
    )
    call.input = call.output = None
    caller.spare = call


def _unless_abandoned(service: Service) -> Service:
    # A request given up while it stood in the queue is answered, not done.
    def serve(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
        if request[3] in caller.abandoned:
            door.answers.reply(caller, request[3], STATUS_CANCELLED)
        else:
            service(door, caller, request, payload)

    return serve


@_unless_abandoned
def create(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCreateFile on a device by its name."""
    try:
        name = payload.decode()
    except UnicodeDecodeError:
        door.answers.reply(caller, request[3], STATUS_OBJECT_NAME_INVALID)
        return
    synchronous = bool(request[1] & FLAG_SYNCHRONOUS)
    status, handle = create_file(door.io, caller.kthread, name, request[4], synchronous)
    door.answers.reply(caller, request[3], status, 0, handle)


@_unless_abandoned
def close(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtClose."""
    status = close_handle(door.io, caller.kthread, request[2])
    door.answers.reply(caller, request[3], status)


@_unless_abandoned
def duplicate(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtDuplicateObject within the process."""
    status, handle = duplicate_handle(door.io, caller.kthread, request[2])
    door.answers.reply(caller, request[3], status, 0, handle)


@_unless_abandoned
def make_event(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCreateEvent."""
    notification = bool(request[1] & FLAG_NOTIFICATION)
    signaled = bool(request[1] & FLAG_SIGNALED)
    status, handle = create_event(door.io, caller.kthread, notification, signaled)
    door.answers.reply(caller, request[3], status, 0, handle)


@_unless_abandoned
def cancel(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCancelIoFile: the calling thread's requests on one file."""
    status = cancel_io_file(door.io, caller.kthread, request[2])
    door.answers.reply(caller, request[3], status)


@_unless_abandoned
def wait(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtWaitForSingleObject, alertable, so that a caller who gives up can end it."""
    timeout_ns = None if request[12] == WAIT_FOREVER else request[12]
    caller.active = _WAITING
    status = wait_for_object(door.io, caller.kthread, request[2], timeout_ns)
    caller.active = None
    door.answers.reply(caller, request[3], status)


@_unless_abandoned
def dequeue(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtRemoveIoCompletion: there are no completion ports here."""
    door.answers.reply(caller, request[3], STATUS_NOT_SUPPORTED)


def thread_exit(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """The user thread has ended: its requests are cancelled and waited for. Not answered."""
    run_down_thread(door.io, caller.kthread)
    caller.session.in_flight -= 1
    caller.queued.popleft()
    door.forget_thread(caller)
    caller.kthread.end()


SERVICES: Final[dict[int, Service]] = {
    KIND_CREATE: create,
    KIND_CLOSE: close,
    KIND_DUPLICATE: duplicate,
    KIND_DEVICE_CONTROL: device_control,
    KIND_CANCEL: cancel,
    KIND_WAIT: wait,
    KIND_DEQUEUE: dequeue,
    KIND_CREATE_EVENT: make_event,
}


#: What can only make less outstanding, and so is admitted over the limit, one for each thread.
RELIEVING: Final = frozenset({KIND_CLOSE, KIND_CANCEL, KIND_WAIT})


def cancel_synchronous(caller: UserThread, request_id: int) -> None:
    """NtCancelSynchronousIoFile for a request its caller has given up; unknown ones are ignored.

    Runs at once, in the dispatcher: behind the request it names it would come too late.
    """
    queued = caller.queued
    if request_id not in queued:
        return
    active = caller.active
    if request_id != queued[0] or active is None:
        caller.abandoned.add(request_id)
    elif active is _WAITING:
        if caller.kthread.is_waiting:
            caller.kthread.alert()
    else:
        _cancel_request(caller, active)


def _cancel_request(caller: UserThread, active: Any) -> None:
    for irp in caller.kthread.irps:
        if irp.request is active:
            cancel_irp(irp)
            return
