"""Sending an overlapped request: who completes it, its answer or the listener.

Rules: the thread that starts the request, which is the one `port` belongs to.
Spec: Win32: DeviceIoControl with an OVERLAPPED.
"""

from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_IOSB_WRITTEN,
    FLAG_USER_APC,
    KIND_DEVICE_CONTROL,
)
from shared.nt_status import STATUS_PENDING
from user_proc.errors import CallInProgress
from user_proc.io.buffer_transfer import Transfer
from user_proc.io.event_handle import EventHandle
from user_proc.io.overlapped import Overlapped
from user_proc.transport.completion_table import CompletionTable
from user_proc.transport.field_limits import UnpackableField
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.thread_port import ThreadPort


def send_overlapped(
    channel: KernelChannel,
    listener: CompletionTable,
    port: ThreadPort,
    handle: int,
    code: int,
    transfer: Transfer,
    overlapped: Overlapped,
    event: EventHandle | None,
) -> None:
    """Send a request and let the answer, or else the listener, complete it."""
    flags, in_at, in_length, out_at, out_length, payload, _, _ = transfer
    if overlapped.queues_apc:
        flags |= FLAG_USER_APC
    request_id = overlapped.request_id
    # Before it is sent: the completion may be here before the answer is.
    listener.expect(request_id, overlapped)
    try:
        answer, body = port.call(
            KIND_DEVICE_CONTROL, flags, handle, code, 0 if event is None else event.handle, in_at,
            out_at, in_length, out_length, overlapped.apc_context, 0, payload, overlapped,
            request_id,
        )  # fmt: skip
    except (CallInProgress, UnpackableField):  # nothing was sent
        listener.forget(request_id)
        port.apcs.forget(request_id)
        raise
    overlapped.returned = answer[6]
    if answer[2] & FLAG_COMPLETION_FOLLOWS:
        if answer[6] != STATUS_PENDING:
            channel.catch_up(answer[7])  # it was sent before
        return
    listener.forget(request_id)
    if answer[2] & FLAG_IOSB_WRITTEN:
        overlapped.complete(answer[2], answer[9], answer[8], body)
    else:
        port.apcs.forget(request_id)
        overlapped.dropped = True
