"""The dispatch routines: open, verbs, last handle, last reference.

A verb's input and answer are messages in the one system buffer. A verb that is refused completes
with STATUS_SUCCESS and says so in its output; error statuses mean that no verb was carried out.

Rules: PASSIVE_LEVEL in the caller's thread. A verb waits in kernel mode, so that the end of its
thread does not break it off half-way: it finishes, or undoes what it did, and the close of the
file frees what it made.
Spec: shared/verb_codes.py; WinOF core/al/kernel/al_dev.c, al_proxy_verbs.c; WDK,
IRP_MJ_DEVICE_CONTROL.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver import (
    ah_verbs,
    context_exports,
    cq_verbs,
    device_verbs,
    dm_verbs,
    mcast_verbs,
    mr_verbs,
    mw_verbs,
    notification_verbs,
    pd_verbs,
    qp_verbs,
    srq_verbs,
    xrcd_verbs,
)
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.reply_sizes import LONGEST_REPLY
from kernel_proc.driver.verb import PENDED, Verb
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.message_codec import MessageError, decode_as, encode
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_PENDING,
    STATUS_SUCCESS,
    nt_success,
)
from shared.verb_codes import VERB_RESULT
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_extension import HcaExtension
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import IoStackLocation, Irp

VERBS: Final[dict[int, Verb]] = {
    **device_verbs.VERBS,
    **pd_verbs.VERBS,
    **mr_verbs.VERBS,
    **mw_verbs.VERBS,
    **dm_verbs.VERBS,
    **context_exports.VERBS,
    **ah_verbs.VERBS,
    **cq_verbs.VERBS,
    **srq_verbs.VERBS,
    **qp_verbs.VERBS,
    **xrcd_verbs.VERBS,
    **mcast_verbs.VERBS,
    **notification_verbs.VERBS,
}

_SUCCESS: Final = VERB_RESULT.pack(0, VerbReason.NONE, 0, 0)
_U64: Final = (1 << 64) - 1


def create(device: "DeviceObject", irp: "Irp") -> int:
    """Open the device: wait until the HCA is up, and make a context."""
    extension: HcaExtension = device.device_extension
    status = extension.settled.wait(mode=USER_MODE)
    if status == STATUS_SUCCESS:
        status = extension.refusal_to_open()
    if nt_success(status):
        file = _location(irp).file_object
        assert file is not None
        file.fs_context = extension.open(file)
    return _complete(irp, status)


def cleanup(device: "DeviceObject", irp: "Irp") -> int:
    """The last handle is closed: end what the file has pended."""
    context = _context_of(irp)
    context.closing = True
    context.driver.event_sinks.context_closing(context)
    return _complete(irp, STATUS_SUCCESS)


def close(device: "DeviceObject", irp: "Irp") -> int:
    """Nothing refers to the file any more, no verb is under way: free everything."""
    extension: HcaExtension = device.device_extension
    extension.close(_context_of(irp))
    return _complete(irp, STATUS_SUCCESS)


def device_control(device: "DeviceObject", irp: "Irp") -> int:
    """Carry out one verb."""
    location = _location(irp)
    verb = VERBS.get(location.io_control_code)
    if verb is None:
        return _complete(irp, STATUS_INVALID_DEVICE_REQUEST)
    needed = VERB_RESULT.size + LONGEST_REPLY.get(location.io_control_code, 0)
    if location.output_buffer_length < needed:
        return _complete(irp, STATUS_BUFFER_TOO_SMALL)
    try:
        output = _carry_out(verb, location, irp)
    except VerbRefused as refusal:
        output = VERB_RESULT.pack(
            refusal.errno, refusal.reason, refusal.object & _U64, refusal.detail & _U64
        )
    except RaisedStatus as fault:
        return _complete(irp, fault.status)
    if output is None:
        return STATUS_PENDING
    irp.system_buffer[: len(output)] = output
    return _complete(irp, STATUS_SUCCESS, len(output))


def _carry_out(verb: Verb, location: "IoStackLocation", irp: "Irp") -> bytes | None:
    """Run a verb's handler; return its output, None if the IRP is pended."""
    context = _context_of(irp)
    driver = context.driver
    if not verb.when_dead:
        context.require_alive()
    request = _decode(verb, location, irp)
    driver.verbs += 1
    thread = driver.processor.current_thread
    assert thread is not None
    driver.channel.verb_of[thread] = driver.verbs
    try:
        reply = verb.handler(driver, context, request, irp)
    finally:
        del driver.channel.verb_of[thread]
    if reply is PENDED:
        return None
    return _SUCCESS if reply is None else _SUCCESS + encode(reply)


def _decode(verb: Verb, location: "IoStackLocation", irp: "Irp") -> Any:
    if verb.request is None:
        return None
    with memoryview(irp.system_buffer) as buffer:
        data = bytes(buffer[: location.input_buffer_length])
    try:
        return decode_as(verb.request, data)
    except MessageError as error:
        raise VerbRefused(errno.EINVAL, VerbReason.MALFORMED) from error


def _location(irp: "Irp") -> "IoStackLocation":
    return irp.stack[irp.current_location]


def _context_of(irp: "Irp") -> "Context":
    file = _location(irp).file_object
    assert file is not None
    context: Context = file.fs_context
    return context


def _complete(irp: "Irp", status: int, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status
