"""Waits of user threads: for objects, for packets, for nothing but the time.

While a thread waits here `caller.active` holds the objects, so that a caller who gives up can
end this wait and no other. A wait that user APCs end answers with whose they are.

Rules: the caller's KTHREAD.
Spec: WDK: NtWaitForSingleObject, NtWaitForMultipleObjects, NtDelayExecution,
NtRemoveIoCompletionEx.
"""

import struct
from collections.abc import Sequence

from kernel_proc.io_manager.completion_port import CompletionPort
from kernel_proc.io_manager.handle_table import reference_object
from kernel_proc.io_manager.irp_flags import IO_COMPLETION_MODIFY_STATE
from kernel_proc.io_manager.system_services import waitable_objects
from kernel_proc.io_manager.user_apc import take_user_apcs
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.wait import USER_MODE, DispatcherObject, wait_for_multiple
from kernel_proc.server.device_services import ServerRequest
from kernel_proc.server.service_types import Door, Request, unless_abandoned
from kernel_proc.server.session import UserThread
from shared.envelope import (
    FLAG_ALERTABLE,
    FLAG_INPUT_INLINE,
    FLAG_OUTPUT_INLINE,
    FLAG_USER_APC,
    FLAG_WAIT_ALL,
    MAX_PACKETS,
    MAX_USER_APCS,
    MAX_WAIT_OBJECTS,
    PACKET,
    WAIT_FOREVER,
)
from shared.nt_status import (
    STATUS_INVALID_PARAMETER,
    STATUS_INVALID_PARAMETER_1,
    STATUS_INVALID_PARAMETER_MIX,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    STATUS_USER_APC,
)


@unless_abandoned
def wait(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtWaitForSingleObject and NtWaitForMultipleObjects."""
    status, objects = _objects(caller, request, payload)
    if status == STATUS_SUCCESS:
        caller.active = objects
        status = wait_for_multiple(
            objects,
            bool(request[1] & FLAG_WAIT_ALL),
            _timeout_ns(request),
            alertable=bool(request[1] & FLAG_ALERTABLE),
            mode=USER_MODE,
        )
        caller.active = None
    _answer(door, caller, request, status)


def _objects(
    caller: UserThread, request: Request, payload: bytes
) -> tuple[int, Sequence[DispatcherObject]]:
    handles: tuple[int, ...] = (request[2],)
    if request[1] & FLAG_INPUT_INLINE:
        count, rest = divmod(len(payload), 4)
        if rest or not 1 <= count <= MAX_WAIT_OBJECTS:
            return STATUS_INVALID_PARAMETER_1, ()
        handles = struct.unpack(f"<{count}I", payload)
    status, objects = waitable_objects(caller.kthread, handles)
    if request[1] & FLAG_WAIT_ALL and len(set(objects)) < len(objects):
        return STATUS_INVALID_PARAMETER_MIX, ()
    return status, objects


@unless_abandoned
def delay(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtDelayExecution."""
    never = Event(door.io.processor, notification=True)
    alertable = bool(request[1] & FLAG_ALERTABLE)
    caller.active = (never,)
    status = never.wait(_timeout_ns(request), alertable=alertable, mode=USER_MODE)
    caller.active = None
    _answer(door, caller, request, STATUS_SUCCESS if status == STATUS_TIMEOUT else status)


@unless_abandoned
def dequeue(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """NtRemoveIoCompletionEx: the packets that are there, one at least."""
    limit = min(request[9] // PACKET.size, MAX_PACKETS)
    output = b""
    status, port = reference_object(
        caller.kthread, request[2], CompletionPort, IO_COMPLETION_MODIFY_STATE
    )
    if port is not None and not limit:
        status = STATUS_INVALID_PARAMETER
    elif port is not None:
        alertable = bool(request[1] & FLAG_ALERTABLE)
        caller.active = (port.available,)
        status, packets = port.remove_several(limit, _timeout_ns(request), alertable=alertable)
        caller.active = None
        output = b"".join(
            PACKET.pack(packet.key, packet.apc_context, packet.information, packet.status)
            for packet in packets
        )
    _answer(door, caller, request, status, output)


def _timeout_ns(request: Request) -> int | None:
    return None if request[12] == WAIT_FOREVER else request[12]


def _answer(
    door: Door, caller: UserThread, request: Request, status: int, output: bytes = b""
) -> None:
    flags = FLAG_OUTPUT_INLINE if output else 0
    if status == STATUS_USER_APC:
        flags = FLAG_USER_APC
        # What a driver queued for purposes of its own is no request; it ends the wait, too.
        contexts = take_user_apcs(caller.kthread, MAX_USER_APCS)
        ids = [one.request_id for one in contexts if isinstance(one, ServerRequest)]
        output = struct.pack(f"<{len(ids)}Q", *ids)
    door.answers.reply(caller, request[3], status, flags, payload=output)
