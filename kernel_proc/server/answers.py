"""What goes back to a session: replies, completions, refusals.

Nothing here waits. An answer whose reader is full or gone is dropped and counted; a completion
that finds no room is kept instead, in its turn, and counts against the session's limit until it is
taken.

Rules: any thread of the processor, <= APC_LEVEL.
Spec: shared/envelope.py.
"""

import struct
from collections import Counter
from collections.abc import Callable
from typing import Final

from kernel_proc.server.request_times import RequestTimes
from kernel_proc.server.session import CREDENTIALS, Session, UserThread
from shared.clock import now_ns
from shared.envelope import (
    HEADER,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_COMPLETION,
    KIND_REPLY,
    KIND_THREAD_EXIT,
    MAGIC,
    VERSION,
    Header,
)
from shared.trace_points import ANSWER_SENT, COMPLETION_SENT, trace

#: What `send` returns. FULL: the peer does not read. GONE: there is no such peer any more.
SENT: Final = 0
FULL: Final = 1
GONE: Final = 2

#: `send(identity, header, payload)` hands an answer to the transport, at once.
Send = Callable[[bytes, bytes, "bytes | None"], int]

#: Kinds whose sender does not wait for an answer.
UNANSWERED: Final = frozenset({KIND_THREAD_EXIT, KIND_CANCEL_SYNCHRONOUS})

# An answer: its first 8 bytes, flags, credentials, file_handle, request_id, apc_context, status,
# sequence, information, iosb_status. The same frame as HEADER, fewer fields to fill.
ANSWER: Final = struct.Struct("<8sI16sIQ32xQIIQI4x")

_REPLY_HEAD: Final = struct.pack("<IHH", MAGIC, VERSION, KIND_REPLY)
_COMPLETION_HEAD: Final = struct.pack("<IHH", MAGIC, VERSION, KIND_COMPLETION)
_SIZE: Final = HEADER.size
_MODULUS: Final = 1 << 32

_pack = ANSWER.pack


class Answers:
    """The way out of the door, with its counters."""

    __slots__ = ("_send", "lost", "times", "wire_bytes")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.lost: Counter[str] = Counter()
        self.times = RequestTimes()
        self.wire_bytes = 0

    def reply(
        self,
        caller: UserThread,
        request_id: int,
        status: int,
        flags: int = 0,
        file_handle: int = 0,
        information: int = 0,
        iosb_status: int = 0,
        payload: bytes | None = None,
    ) -> None:
        """Send the last word on the request that the caller's KTHREAD has just served."""
        session = caller.session
        session.in_flight -= 1
        caller.queued.popleft()
        if caller.abandoned:
            caller.abandoned.discard(request_id)
        if request_id == caller.timed_id:
            caller.timed_id = -1
            self.times.note(now_ns() - caller.timed_from_ns)
        if session.ending:
            return
        header = _pack(
            _REPLY_HEAD,
            flags,
            caller.credentials,
            file_handle,
            request_id,
            0,
            status,
            session.completions_sent,
            information,
            iosb_status,
        )
        self.wire_bytes += _SIZE + (len(payload) if payload else 0)
        result = self._send(caller.identity, header, payload)
        if result != SENT:
            self._count_lost(session, result)
        if trace.enabled:
            trace.record(ANSWER_SENT, request_id)

    def reply_pending(self, caller: UserThread, request_id: int, status: int, flags: int) -> None:
        """Send the first of two answers; the request stays in flight until `complete`."""
        session = caller.session
        caller.queued.popleft()
        if request_id == caller.timed_id:
            caller.timed_id = -1
        if session.ending:
            return
        self.send_plain(
            session, caller.identity, caller.credentials, request_id, status, flags=flags
        )
        if trace.enabled:
            trace.record(ANSWER_SENT, request_id)

    def send_plain(
        self,
        session: Session,
        identity: bytes,
        credentials: bytes,
        request_id: int,
        status: int,
        *,
        flags: int = 0,
    ) -> None:
        """Send a reply that says nothing but a status."""
        header = _pack(
            _REPLY_HEAD,
            flags,
            credentials,
            0,
            request_id,
            0,
            status,
            session.completions_sent,
            0,
            0,
        )
        self.wire_bytes += _SIZE
        result = self._send(identity, header, None)
        if result != SENT:
            self._count_lost(session, result)

    def echo(self, caller: UserThread, header: bytes, payload: bytes) -> None:
        """Send a message back as it came."""
        self.wire_bytes += _SIZE + len(payload)
        result = self._send(caller.identity, header, payload)
        if result != SENT:
            self._count_lost(caller.session, result)

    def refuse(self, identity: bytes, header: Header, session: Session | None, status: int) -> None:
        """Answer a message that is not admitted; `session` is that of its sender, if known."""
        if header.kind in UNANSWERED:
            return
        credentials = HEADER.pack(*header)[CREDENTIALS]
        sequence = session.completions_sent if session is not None else 0
        packed = _pack(_REPLY_HEAD, 0, credentials, 0, header.request_id, 0, status, sequence, 0, 0)
        self.wire_bytes += _SIZE
        result = self._send(identity, packed, None)
        if result != SENT:
            self._count_lost(session, result)

    def complete(
        self,
        caller: UserThread,
        request_id: int,
        apc_context: int,
        flags: int,
        iosb_status: int,
        information: int,
        payload: bytes | None,
    ) -> None:
        """Send the second of two answers."""
        session = caller.session
        session.in_flight -= 1
        if session.ending:
            return
        sequence = session.completions_sent = (session.completions_sent + 1) % _MODULUS
        header = _pack(
            _COMPLETION_HEAD,
            flags,
            caller.credentials,
            0,
            request_id,
            apc_context,
            iosb_status,
            sequence,
            information,
            iosb_status,
        )
        if session.held_completions or not self._hand_over(session, header, payload):
            session.held_completions.append((header, payload))
        if trace.enabled:
            trace.record(COMPLETION_SENT, request_id)

    def _hand_over(self, session: Session, header: bytes, payload: bytes | None) -> bool:
        """Send a completion; False if there is no room: then those held go on when there is.

        To a process that has closed its end it is lost, and stays unread.
        """
        result = session.completions.send(header, payload)
        if result == FULL:
            session.completions.when_room(lambda: self._send_held(session))
            return False
        if result == GONE:
            self._count_lost(session, result)
        else:
            self.wire_bytes += _SIZE + (len(payload) if payload else 0)
        return True

    def _send_held(self, session: Session) -> None:
        """Send what found no room, in order, as far as there is some."""
        held = session.held_completions
        while held and self._hand_over(session, *held[0]):
            held.popleft()

    def _count_lost(self, session: Session | None, result: int) -> None:
        self.lost["peer full" if result == FULL else "peer gone"] += 1
        if session is not None:
            session.dropped_answers += 1
