"""From frames to system services: the way in, whatever carries the frames.

A message is checked, bound to its caller by session, epoch and thread, admitted if the session's
limits allow, and run as a system service on the caller's KTHREAD. What cannot be admitted is
answered with a status where an answer is possible, else dropped; both are counted.

Rules: `receive` runs in the dispatcher, never waits and never raises, whatever the bytes.
Spec: shared/envelope.py.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.scheduling.kthread import create_user_thread
from kernel_proc.server.answers import UNANSWERED, Answers, Send
from kernel_proc.server.giving_up import give_up
from kernel_proc.server.request_times import TIMED_EVERY
from kernel_proc.server.service_types import Door, Request, Service
from kernel_proc.server.services import RELIEVING, SERVICES, thread_exit
from kernel_proc.server.session import (
    CREDENTIALS,
    NO_THREAD,
    Session,
    SessionTable,
    UserThread,
)
from shared.clock import now_ns
from shared.envelope import (
    FLAG_INPUT_INLINE,
    HEADER,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_DEVICE_CONTROL,
    KIND_ECHO,
    KIND_THREAD_EXIT,
    MAGIC,
    VERSION,
    Header,
)
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_CONNECTION,
    STATUS_INVALID_PARAMETER,
    STATUS_REVISION_MISMATCH,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TOO_MANY_THREADS,
)
from shared.trace_points import KERNEL_RECEIVED, trace

# What a request says beyond magic, version and credentials, which are compared as bytes: kind,
# flags, file_handle, request_id, control_code, event_handle, input_address, output_address,
# input_length, output_length, apc_context, sequence, information.
REQUEST: Final = struct.Struct("<6xHI16xIQIIQQIIQ4xIQ8x")

_SIZE: Final = HEADER.size
_KNOWN_HEAD: Final = struct.pack("<IH", MAGIC, VERSION)

_unpack = REQUEST.unpack


class SessionServer:
    """Serves every session of one kernel; `send` is the transport's way out."""

    __slots__ = (
        "_callers",
        "_door",
        "_max_threads",
        "answers",
        "dropped",
        "echoes",
        "immediate",
        "refused",
        "sessions",
        "wire_bytes_in",
    )

    def __init__(self, io: IoManager, sessions: SessionTable, send: Send, max_threads: int) -> None:
        self.sessions = sessions
        self.answers = Answers(send)
        self._door = Door(io, self.answers, self._forget_thread)
        self._max_threads = max_threads
        self._callers: dict[bytes, UserThread] = {}
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.echoes = 0
        self.immediate = 0  # CANCEL_SYNCHRONOUS, which no thread has to serve
        self.wire_bytes_in = 0

    def receive(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Take one message."""
        header = frames[0] if frames else b""
        caller = self._callers.get(identity)
        if (
            caller is None
            or header[CREDENTIALS] != caller.credentials
            or header[:6] != _KNOWN_HEAD
            or len(header) != _SIZE
        ):
            caller = self._first_contact(identity, frames)
            if caller is None:
                return
        request = _unpack(header)
        kind = request[0]
        payload = frames[1] if len(frames) > 1 else b""
        self.wire_bytes_in += _SIZE + len(payload)
        session = caller.session
        if trace.enabled:
            trace.record(KERNEL_RECEIVED, request[3])
        if request[11] != session.completions_taken:
            session.take_credit(request[11])
        service = SERVICES.get(kind)
        if (
            service is None
            or len(frames) > 2
            or len(payload) != (request[8] if request[1] & FLAG_INPUT_INLINE else 0)
        ):
            self._without_service(caller, kind, header, frames)
        elif session.outstanding >= session.max_requests and (
            kind not in RELIEVING or caller.queued
        ):
            self._refuse(identity, header, session, STATUS_INSUFFICIENT_RESOURCES, "over the limit")
        else:
            self._admit(session, caller, service, request, payload)

    def _admit(
        self,
        session: Session,
        caller: UserThread,
        service: Service,
        request: Request,
        payload: bytes,
    ) -> None:
        session.in_flight += 1
        session.requests += 1
        caller.queued.append(request[3])
        if not session.requests % TIMED_EVERY and request[0] == KIND_DEVICE_CONTROL:
            caller.timed_id, caller.timed_from_ns = request[3], now_ns()
        caller.kthread.enter_kernel(service, self._door, caller, request, payload)

    def _without_service(
        self, caller: UserThread, kind: int, header: bytes, frames: Sequence[bytes]
    ) -> None:
        # What does not run on the caller's thread, and what is wrong.
        if kind == KIND_ECHO and len(frames) <= 2:
            self.echoes += 1
            self.answers.echo(caller, header, frames[1] if len(frames) == 2 else b"")
        elif kind == KIND_CANCEL_SYNCHRONOUS and len(frames) == 1:
            self.immediate += 1
            give_up(caller, _unpack(header)[3])
        elif kind == KIND_THREAD_EXIT and len(frames) == 1:
            caller.leaving = True
            del self._callers[caller.identity]
            self._admit(caller.session, caller, thread_exit, _unpack(header), b"")
        else:
            self._refuse(
                caller.identity,
                header,
                caller.session,
                STATUS_INVALID_PARAMETER,
                "malformed request",
            )

    # Binding sockets to threads: off the hot path

    def _first_contact(self, identity: bytes, frames: Sequence[bytes]) -> UserThread | None:
        # Also where a bound socket's message ends up that does not fit its caller.
        header = self._readable_header(frames)
        if header is None:
            return None
        packed = frames[0]
        session = self.sessions.get(header.session)
        if session is not None and session.epoch != header.epoch:
            session = None
        if header.version != VERSION:
            self._refuse(identity, packed, session, STATUS_REVISION_MISMATCH, "foreign version")
        elif session is None or session.ending:
            self._refuse(identity, packed, None, STATUS_INVALID_CONNECTION, "no such session")
        elif identity in self._callers:
            self._refuse(identity, packed, None, STATUS_INVALID_CONNECTION, "socket bound already")
        elif header.thread == NO_THREAD:
            self._refuse(identity, packed, session, STATUS_INVALID_PARAMETER, "malformed request")
        else:
            return self._bind(session, identity, header, packed)
        return None

    def _readable_header(self, frames: Sequence[bytes]) -> Header | None:
        if not frames:
            self.dropped["no frame"] += 1
        elif len(frames[0]) != _SIZE:
            self.dropped["header of wrong length"] += 1
        else:
            header = Header._make(HEADER.unpack(frames[0]))
            if header.magic == MAGIC:
                return header
            self.dropped["foreign magic"] += 1
        return None

    def _bind(
        self, session: Session, identity: bytes, header: Header, packed: bytes
    ) -> UserThread | None:
        caller = session.threads.get(header.thread)
        if caller is not None and caller.leaving:
            self._refuse(identity, packed, session, STATUS_THREAD_IS_TERMINATING, "thread leaves")
            return None
        if caller is not None:
            if _is_overtaken(caller, header):
                self.dropped["overtaken by the thread's new socket"] += 1
                return None
            # The thread has replaced its socket; the old one is dead.
            self._callers.pop(caller.identity, None)
            caller.identity = identity
            caller.bound_by = header.request_id
        elif header.kind in UNANSWERED and not (
            # It has given up its very first request, which is still on its way.
            header.kind == KIND_CANCEL_SYNCHRONOUS and header.thread > session.last_thread
        ):
            self.dropped["thread unknown or ended"] += 1
            return None
        elif len(session.threads) >= self._max_threads:
            self._refuse(identity, packed, session, STATUS_TOO_MANY_THREADS, "too many threads")
            return None
        else:
            process = session.process
            name = f"{process.name}/{header.thread}"
            kthread = create_user_thread(process.processor, process, name)
            caller = UserThread(session, header.thread, identity, kthread)
            caller.bound_by = header.request_id
            session.threads[header.thread] = caller
            session.last_thread = max(session.last_thread, header.thread)
        self._callers[identity] = caller
        return caller

    def _refuse(
        self, identity: bytes, packed: bytes, session: Session | None, status: int, reason: str
    ) -> None:
        self.refused[reason] += 1
        if session is not None:
            session.refused_requests += 1
        header = Header._make(HEADER.unpack(packed))
        self.answers.refuse(identity, header, session, status)

    def _forget_thread(self, caller: UserThread) -> None:
        if self._callers.get(caller.identity) is caller:
            del self._callers[caller.identity]
        caller.session.threads.pop(caller.number, None)

    def unbind(self, session: Session) -> None:
        """Forget every socket of a session that ends; its mail is refused from now on."""
        session.ending = True
        for caller in list(session.threads.values()):
            self._forget_thread(caller)
        session.held_completions.clear()

    def wire_bytes(self) -> int:
        """Return the bytes of every frame that came in or went out, refused ones excepted."""
        return self.wire_bytes_in + self.answers.wire_bytes

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {
            "sessions": self.sessions.inspect(),
            "bound_sockets": len(self._callers),
            "echoes": self.echoes,
            "immediate": self.immediate,
            "wire_bytes": self.wire_bytes(),
            "dropped": dict(self.dropped),
            "refused": dict(self.refused),
            "lost_answers": dict(self.answers.lost),
            "request_times": self.answers.times.inspect(),
        }


def _is_overtaken(caller: UserThread, header: Header) -> bool:
    """Tell whether a message was sent before the one that bound its thread to another socket.

    Messages of two sockets may pass each other: a request its caller has given up with the old
    socket may come after the new one's word that it was given up. It must not be done then, and
    not take the thread back to the old socket.
    """
    if header.kind == KIND_THREAD_EXIT:  # it has no number, and nothing follows it
        return False
    if header.kind == KIND_CANCEL_SYNCHRONOUS:  # it has that of the request it names
        return header.request_id < caller.bound_by
    return header.request_id <= caller.bound_by
