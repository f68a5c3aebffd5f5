"""Files, events and completion ports: making them, changing them, closing their handles.

Rules: the caller's KTHREAD.
Spec: WDK: NtCreateFile, NtClose, NtDuplicateObject, NtCreateEvent, NtSetEvent, NtPulseEvent,
NtCreateIoCompletion, NtSetInformationFile (FileCompletionInformation), NtSetIoCompletion.
"""

from kernel_proc.io_manager.completion_port import CompletionPacket
from kernel_proc.io_manager.port_services import (
    create_io_completion,
    set_file_completion,
    set_io_completion,
)
from kernel_proc.io_manager.system_services import (
    close_handle,
    create_event,
    create_file,
    duplicate_handle,
    pulse_event,
    query_event,
    reset_event,
    set_event,
)
from kernel_proc.server.service_types import Door, Request, unless_abandoned
from kernel_proc.server.session import UserThread
from shared.envelope import (
    EVENT_PULSE,
    EVENT_QUERY,
    EVENT_RESET,
    EVENT_SET,
    FLAG_ALERTABLE,
    FLAG_NOTIFICATION,
    FLAG_SIGNALED,
    FLAG_SYNCHRONOUS,
    PACKET,
)
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_OBJECT_NAME_INVALID


@unless_abandoned
def create(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCreateFile on a device by its name."""
    try:
        name = payload.decode()
    except UnicodeDecodeError:
        door.answers.reply(caller, request[3], STATUS_OBJECT_NAME_INVALID)
        return
    flags = request[1]
    status, handle = create_file(
        door.io,
        caller.kthread,
        name,
        request[4],
        bool(flags & FLAG_SYNCHRONOUS),
        bool(flags & FLAG_ALERTABLE),
    )
    door.answers.reply(caller, request[3], status, 0, handle)


@unless_abandoned
def close(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtClose."""
    status = close_handle(door.io, caller.kthread, request[2])
    door.answers.reply(caller, request[3], status)


@unless_abandoned
def duplicate(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtDuplicateObject within the process."""
    status, handle = duplicate_handle(door.io, caller.kthread, request[2], request[4] or None)
    door.answers.reply(caller, request[3], status, 0, handle)


@unless_abandoned
def make_event(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCreateEvent."""
    notification = bool(request[1] & FLAG_NOTIFICATION)
    signaled = bool(request[1] & FLAG_SIGNALED)
    status, handle = create_event(door.io, caller.kthread, notification, signaled)
    door.answers.reply(caller, request[3], status, 0, handle)


_CHANGES = {EVENT_SET: set_event, EVENT_RESET: reset_event, EVENT_PULSE: pulse_event}


@unless_abandoned
def change_event(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtSetEvent, NtResetEvent, NtPulseEvent or NtQueryEvent."""
    state = 0
    change = _CHANGES.get(request[4])
    if change is not None:
        status = change(door.io, caller.kthread, request[2])
    elif request[4] == EVENT_QUERY:
        status, state = query_event(door.io, caller.kthread, request[2])
    else:
        status = STATUS_INVALID_PARAMETER
    door.answers.reply(caller, request[3], status, information=state)


@unless_abandoned
def make_port(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtCreateIoCompletion."""
    status, handle = create_io_completion(door.io, caller.kthread)
    door.answers.reply(caller, request[3], status, 0, handle)


@unless_abandoned
def associate(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtSetInformationFile, FileCompletionInformation."""
    status = set_file_completion(door.io, caller.kthread, request[2], request[5], request[10])
    door.answers.reply(caller, request[3], status)


@unless_abandoned
def post(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtSetIoCompletion."""
    if len(payload) != PACKET.size:
        status = STATUS_INVALID_PARAMETER
    else:
        key, apc_context, information, iosb_status = PACKET.unpack(payload)
        packet = CompletionPacket(key, apc_context, iosb_status, information)
        status = set_io_completion(door.io, caller.kthread, request[2], packet)
    door.answers.reply(caller, request[3], status)
