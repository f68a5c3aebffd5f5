"""The fixed header of every message on the request and completion sockets, and who fills what.

A request or answer is one header frame of `HEADER.size` bytes, then at most one payload frame
(present only when it is not empty). Behind a ROUTER the identity frame comes first; there is no
empty delimiter frame. A completion is one packet of the session's completion socket, the payload
behind the header. All integers are little-endian and naturally aligned.

Every request from the user side fills
    magic, version, kind, session, epoch   as told by Welcome on the lifeline,
    thread       number of the calling user thread, from 1, never reused in a session,
    request_id   rising within a thread, unique in the session, never 0
                 (`thread << REQUEST_ID_SHIFT | count`; the kernel only compares it),
    sequence     completions this process has taken so far (modulo 2**32): the credit
                 by which the kernel knows how many completions are still unread;
all fields not named for its kind are 0. One thread has one DEALER; a thread that shows up with a
new ROUTER identity has replaced its socket and the old identity is dead.
A thread sends its next request only after the answer to the last one came or was abandoned, and
the kernel answers the requests of one thread in the order in which they came.

kind                     request fields                             answer (KIND_REPLY) fields
CREATE                   control_code = access wanted               file_handle
                         (FILE_READ_ACCESS | FILE_WRITE_ACCESS),
                         FLAG_SYNCHRONOUS for synchronous I/O,
                         FLAG_ALERTABLE if it waits alertably,
                         FLAG_INPUT_INLINE, input_length,
                         payload = device name in UTF-8
CLOSE                    file_handle (any handle)                   -
DUPLICATE                file_handle; control_code = access         file_handle = the new one
                         wanted, 0 = the same
CREATE_EVENT             FLAG_NOTIFICATION, FLAG_SIGNALED           file_handle = the event's
EVENT                    file_handle, control_code = EVENT_SET,     information = its state
                         EVENT_RESET, EVENT_PULSE, EVENT_QUERY      (EVENT_QUERY only)
CREATE_PORT              -                                          file_handle = the port's
ASSOCIATE                file_handle, event_handle = a port's,      -
                         apc_context = key
POST                     file_handle = a port's, payload = one      -
                         PACKET, FLAG_INPUT_INLINE, input_length
DEVICE_CONTROL           file_handle, control_code, event_handle    see below
                         (0: none), apc_context, input_address,
                         input_length, output_address,
                         output_length, FLAG_INPUT_INLINE,
                         FLAG_OUTPUT_INLINE, FLAG_USER_APC
CANCEL                   file_handle: this thread's requests on     -
                         that file (NtCancelIoFile);
                         FLAG_ANY_THREAD: every thread's, not       (NOT_FOUND: there was none)
                         waited for (NtCancelIoFileEx);
                         information = one request's id, 0 = all;
                         FLAG_SYNCHRONOUS, without file_handle:     (NOT_FOUND: it is in none)
                         the synchronous request that thread
                         number `information` is in
                         (NtCancelSynchronousIoFile)
WAIT                     file_handle (file, event), or payload =    status = wait status
                         1 to MAX_WAIT_OBJECTS handles, u32 each,   (index, TIMEOUT, ALERTED,
                         FLAG_WAIT_ALL for all of them;             USER_APC, INVALID_HANDLE ...)
                         information = timeout in ns, or
                         WAIT_FOREVER; FLAG_ALERTABLE
DELAY                    information as for WAIT, FLAG_ALERTABLE    status (0, ALERTED, USER_APC)
DEQUEUE                  file_handle = a port's, information as     status as for WAIT, payload =
                         for WAIT, FLAG_ALERTABLE,                  PACKETs, one at least if 0,
                         output_length = room for PACKETs           FLAG_OUTPUT_INLINE
THREAD_EXIT              -                                          none: it is not answered
CANCEL_SYNCHRONOUS       request_id = that of an earlier request    none: it is not answered
                         of the same thread which its caller has
                         given up (Ctrl-C)
ECHO                     anything beside session, epoch and thread, the same frames, unchanged
                         with or without a payload                  (kind stays KIND_ECHO)

CANCEL_SYNCHRONOUS acts at once, not behind the request it names: if that request still waits for
I/O its IRP is cancelled, if it is a WAIT, DELAY or DEQUEUE that wait ends (STATUS_ALERTED), if it
is queued behind another it is dropped with STATUS_CANCELLED; the abandoned request is still
answered, and that late answer is dropped by the user. Unknown id: ignored.

Every KIND_REPLY repeats session, epoch, thread and request_id of its request and fills
    status       what the system service returned (or why the request was not admitted:
                 INVALID_CONNECTION unknown session or epoch, REVISION_MISMATCH version,
                 INVALID_PARAMETER malformed, INSUFFICIENT_RESOURCES too much outstanding,
                 TOO_MANY_THREADS more sockets than the session may have),
    sequence     completions the kernel had sent to this process before this answer (modulo
                 2**32): a caller of WAIT or DEQUEUE goes on only when its process has taken
                 as many.

DEVICE_CONTROL, request: with FLAG_INPUT_INLINE the payload frame is the input (input_length bytes;
no frame when 0) and input_address says nothing; without it the kernel fetches input_length bytes
from input_address, where 0 is a NULL pointer. With FLAG_OUTPUT_INLINE the output travels back as
the payload of the answer and output_address says nothing; without it the kernel stores to
output_address, where 0 is a NULL pointer. METHOD_NEITHER never carries inline buffers.
Inline lengths are at most MAX_PAYLOAD.
DEVICE_CONTROL, KIND_REPLY:
    FLAG_IOSB_WRITTEN        iosb_status and information are the IoStatusBlock; not set: untouched,
    FLAG_OUTPUT_INLINE       payload = the output bytes (only if asked for, and not empty),
    FLAG_COMPLETION_FOLLOWS  the result is not in this reply: one KIND_COMPLETION will come by
                             the completion socket, or has come already. Never on a file opened for
                             synchronous I/O. Not set: nothing more will come.
    FLAG_USER_APC            the user APC asked for is queued (with the IoStatusBlock only).
KIND_COMPLETION, on the completion socket: request_id, thread and apc_context of the request; flags,
    iosb_status, information and payload as in the reply; status repeats iosb_status; sequence =
    its own number, counted from 1.

A request that another thread can learn of, by an event it names or a packet, has its result sent
by the completion socket before the event is set or the packet posted, also when it is finished at
once: so whoever was told finds, after the wait for `sequence`, the status block written.

User APCs: a DEVICE_CONTROL with FLAG_USER_APC has one queued to its thread when its result is
delivered. It ends an alertable WAIT, DELAY or DEQUEUE with STATUS_USER_APC; that reply has
FLAG_USER_APC, and its payload are the ids of the requests whose APCs are to run now, u64 each, in
order, at most MAX_USER_APCS; more end the next alertable wait.

Spec: WDK: NtDeviceIoControlFile, NtCancelIoFile, NtCancelIoFileEx, NtCancelSynchronousIoFile,
NtWaitForSingleObject, NtWaitForMultipleObjects, NtDelayExecution, NtCreateIoCompletion,
NtRemoveIoCompletionEx, NtSetIoCompletion.
"""

import struct
from typing import Final, NamedTuple

MAGIC: Final = 0x41434853  # the bytes "SHCA"
VERSION: Final = 1
MIN_VERSION: Final = 1

HEADER: Final = struct.Struct("<IHHIIQIIQIIQQIIQIIQI4x")

#: What the user side reads of an answer: magic, kind, flags, file_handle, request_id, apc_context,
#: status, sequence, information, iosb_status. The same frame, fewer objects made.
ANSWER: Final = struct.Struct("<I2xHI16xIQ32xQIIQI4x")

#: Largest payload frame; sockets refuse more. Longer buffers are passed by address.
MAX_PAYLOAD: Final = 1 << 16

REQUEST_ID_SHIFT: Final = 40

#: `information` of a wait without limit.
WAIT_FOREVER: Final = (1 << 64) - 1

#: Handles one KIND_WAIT may name (MAXIMUM_WAIT_OBJECTS).
MAX_WAIT_OBJECTS: Final = 64

#: A completion packet: key, ApcContext, information, status.
PACKET: Final = struct.Struct("<QQQI4x")

#: Packets one KIND_DEQUEUE may take, and APCs one wait may deliver.
MAX_PACKETS: Final = 1024
MAX_USER_APCS: Final = 1024

KIND_CREATE: Final = 1
KIND_CLOSE: Final = 2
KIND_DUPLICATE: Final = 3
KIND_DEVICE_CONTROL: Final = 4
KIND_CANCEL: Final = 5
KIND_WAIT: Final = 6
KIND_DEQUEUE: Final = 7
KIND_THREAD_EXIT: Final = 8
KIND_CREATE_EVENT: Final = 9
KIND_ECHO: Final = 10
KIND_CANCEL_SYNCHRONOUS: Final = 12
KIND_EVENT: Final = 13
KIND_CREATE_PORT: Final = 14
KIND_ASSOCIATE: Final = 15
KIND_POST: Final = 16
KIND_DELAY: Final = 17
KIND_REPLY: Final = 64
KIND_COMPLETION: Final = 65

FLAG_INPUT_INLINE: Final = 0x01
FLAG_OUTPUT_INLINE: Final = 0x02
FLAG_SYNCHRONOUS: Final = 0x04
FLAG_IOSB_WRITTEN: Final = 0x08
FLAG_COMPLETION_FOLLOWS: Final = 0x10
FLAG_NOTIFICATION: Final = 0x20
FLAG_SIGNALED: Final = 0x40
FLAG_ALERTABLE: Final = 0x80
FLAG_WAIT_ALL: Final = 0x100
FLAG_USER_APC: Final = 0x200
FLAG_ANY_THREAD: Final = 0x400

#: `control_code` of KIND_EVENT.
EVENT_SET: Final = 1
EVENT_RESET: Final = 2
EVENT_PULSE: Final = 3
EVENT_QUERY: Final = 4


class Header(NamedTuple):
    """The fields of `HEADER`, in its order."""

    magic: int
    version: int
    kind: int
    flags: int
    session: int
    epoch: int
    thread: int
    file_handle: int
    request_id: int
    control_code: int
    event_handle: int
    input_address: int
    output_address: int
    input_length: int
    output_length: int
    apc_context: int
    status: int
    sequence: int
    information: int
    iosb_status: int


def make_header(
    kind: int,
    *,
    flags: int = 0,
    session: int = 0,
    epoch: int = 0,
    thread: int = 0,
    file_handle: int = 0,
    request_id: int = 0,
    control_code: int = 0,
    event_handle: int = 0,
    input_address: int = 0,
    output_address: int = 0,
    input_length: int = 0,
    output_length: int = 0,
    apc_context: int = 0,
    status: int = 0,
    sequence: int = 0,
    information: int = 0,
    iosb_status: int = 0,
) -> bytes:
    """Pack a header from keywords: for all that is not the hot path."""
    return HEADER.pack(
        MAGIC,
        VERSION,
        kind,
        flags,
        session,
        epoch,
        thread,
        file_handle,
        request_id,
        control_code,
        event_handle,
        input_address,
        output_address,
        input_length,
        output_length,
        apc_context,
        status,
        sequence,
        information,
        iosb_status,
    )


def parse_header(frame: bytes | memoryview) -> Header:
    """Unpack a header frame; ValueError if it is cut, too long, or not ours.

    The version is left to the caller, who answers a foreign one with STATUS_REVISION_MISMATCH.
    """
    if len(frame) != HEADER.size:
        raise ValueError(f"a header has {HEADER.size} bytes, this frame has {len(frame)}")
    header = Header._make(HEADER.unpack(frame))
    if header.magic != MAGIC:
        raise ValueError(f"magic {header.magic:#010x} is not {MAGIC:#010x}")
    return header
