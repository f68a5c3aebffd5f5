"""One calling thread's end of the request socket: requests out, answers in, one at a time.

An interrupted wait (Ctrl-C) abandons its request: the kernel is told, the caller's buffers are
kept until the late answer has come, and that answer is dropped by its id. An interrupted send of
two frames leaves the socket in a state nobody can know, so the thread goes on with a new one.
What no answer will tell of any more, because the connection ends, the channel holds.

A kernel that turns a process away cuts the thread's connection alone. Its answer will not come
then: the wait ends with ConnectionLost, and the next call makes a new socket.

Rules: the owning thread only; `close` alone may come from another thread. A thread's port dies
with the thread's local storage, in that thread, and says KIND_THREAD_EXIT as it goes.
Spec: `shared/envelope.py`; zmq_send(3), zmq_recv(3).
"""

import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import zmq

from shared.clock import now_ns
from shared.envelope import (
    ANSWER,
    FLAG_COMPLETION_FOLLOWS,
    FLAG_IOSB_WRITTEN,
    FLAG_USER_APC,
    HEADER,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_THREAD_EXIT,
    MAGIC,
    REQUEST_ID_SHIFT,
    VERSION,
    make_header,
)
from shared.trace_points import USER_ANSWERED, USER_SENDING, USER_SENT, trace
from user_proc.errors import (
    CallInProgress,
    ConnectionClosed,
    ConnectionLost,
    KernelDied,
    KernelNotResponding,
    ProtocolError,
    SofthcaError,
)
from user_proc.transport.field_limits import header_error
from user_proc.transport.stand_in import Refusal, SendAnew
from user_proc.transport.user_apcs import UserApcs

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel

#: magic, kind, flags, file_handle, request_id, apc_context, status, sequence, information,
#: iosb_status: the fields of `envelope.ANSWER`.
Answer = tuple[int, int, int, int, int, int, int, int, int, int]
Payload = bytes | bytearray | memoryview

_SEND_NS: Final = 10_000_000_000
_HEADER: Final = HEADER.size
_PARTING_MS: Final = 200
_SNDMORE: Final = int(zmq.SNDMORE)
_RCVMORE: Final = int(zmq.RCVMORE)
_DONTWAIT: Final = int(zmq.DONTWAIT)
_EVENTS: Final = int(zmq.EVENTS)
_CONNECTED: Final = int(zmq.POLLIN | zmq.POLLOUT)  # neither is possible without a connection

_pack = HEADER.pack
_unpack = ANSWER.unpack


class LateTaker:
    """What is kept with a request, and wants its answer even when its caller has given up."""

    __slots__ = ()

    def take_late(self, body: bytes) -> None:
        """Take what the answer brought; no exception, no call."""


class ThreadPort:
    """The DEALER of one thread, and what it has under way."""

    __slots__ = (
        "__weakref__",
        "_abandoned",
        "_channel",
        "_closed",
        "_closing",
        "_credit",
        "_epoch",
        "_in_call",
        "_more",
        "_next_id",
        "_pid",
        "_recv",
        "_send",
        "_session",
        "_socket",
        "apcs",
        "bytes_received",
        "bytes_sent",
        "late_answers",
        "messages_received",
        "messages_sent",
        "number",
        "owner",
    )

    _send: Any
    _recv: Any
    _more: Any

    def __init__(self, channel: "KernelChannel", number: int) -> None:
        self._closed = True  # until the socket is there
        self._closing = False
        self._in_call = False
        self._pid: Final = os.getpid()
        self.owner: Final = threading.get_ident()
        self._channel: Final = channel
        self._session: Final = channel.session
        self._epoch: Final = channel.epoch
        self._credit: Final = channel.credit
        self._next_id = number << REQUEST_ID_SHIFT | 1
        self._abandoned: dict[int, object] = {}
        self.number: Final = number
        self.apcs: Final = UserApcs()
        self.bytes_sent = self.bytes_received = 0
        self.messages_sent = self.messages_received = 0
        self.late_answers = 0
        self._open()

    @property
    def is_closed(self) -> bool:
        """Whether it has no socket any more."""
        return self._closed

    def take_request_id(self) -> int:
        """Reserve the id of a request, so that its completion can be expected before it is sent."""
        request_id = self._next_id
        self._next_id = request_id + 1
        return request_id

    def call(
        self,
        kind: int,
        flags: int = 0,
        file_handle: int = 0,
        control_code: int = 0,
        event_handle: int = 0,
        input_address: int = 0,
        output_address: int = 0,
        input_length: int = 0,
        output_length: int = 0,
        apc_context: int = 0,
        information: int = 0,
        payload: Payload | None = None,
        keep: object = None,
        request_id: int = 0,
    ) -> tuple[Answer, bytes | None]:
        """Send a request and wait for its answer: the hot path, as flat as it can be.

        `keep` is what must stay alive as long as the kernel may touch the caller's memory.
        """
        if self._in_call:
            raise CallInProgress
        if not request_id:
            request_id = self._next_id
            self._next_id = request_id + 1
        try:
            header = _pack(
                MAGIC, VERSION, kind, flags, self._session, self._epoch, self.number, file_handle,
                request_id, control_code, event_handle, input_address, output_address,
                input_length, output_length, apc_context, 0, self._credit.taken, information, 0,
            )  # fmt: skip
        except struct.error as error:  # the caller's own mistake, before anything has begun
            raise header_error(
                error,
                MAGIC, VERSION, kind, flags, self._session, self._epoch, self.number, file_handle,
                request_id, control_code, event_handle, input_address, output_address,
                input_length, output_length, apc_context, 0, self._credit.taken, information, 0,
            ) from None  # fmt: skip
        # A plain flag: no signal is handled between its store and the try, and `finally` ends it.
        self._in_call = True
        whole = not payload  # no half message can be out
        try:
            traced = trace.enabled
            if traced:
                trace.record(USER_SENDING, request_id)
            try:
                if payload:
                    self._send(header, _SNDMORE)
                    self._send(payload)
                    self.bytes_sent += _HEADER + len(payload)
                else:
                    self._send(header)
                    self.bytes_sent += _HEADER
            except zmq.Again:
                self._send_patiently(header, payload)
            whole = True
            self.messages_sent += 1
            if traced:
                trace.record(USER_SENT, request_id)
            try:
                frame = self._recv()
            except zmq.Again:
                frame = self._wait()
            body = self._recv() if self._more(_RCVMORE) else None
            answer: Answer = _unpack(frame)
            if answer[4] != request_id or answer[0] != MAGIC or self._abandoned:
                answer, body = self._sift(request_id, answer, body)
            if traced:
                trace.record(USER_ANSWERED, request_id)
            self.messages_received += 1
            self.bytes_received += _HEADER if body is None else _HEADER + len(body)
        except BaseException as error:
            self._break_off(error, request_id, keep, whole)
            raise
        finally:
            self._in_call = False
            if self._closing:  # the connection was closed meanwhile, and left this to us
                self._close_socket(0)
        return answer, body

    def close(self) -> bool:
        """Close the socket from any thread, when the channel is marked as closed.

        A call under way in the owner is left to end, with its answer or with the context, and
        then closes the socket itself; False if that owner is the calling thread.
        """
        self._send = Refusal(self._channel)
        self._closing = True  # before the look: the owner looks the other way round
        if not self._in_call:
            self._close_socket(0)
        return not (self._in_call and self.owner == threading.get_ident())

    def __del__(self) -> None:
        # Without the attribute its making was interrupted.
        if getattr(self, "_closed", True) or os.getpid() != self._pid:
            return
        # Best effort: the end of the session ends its threads too.
        with contextlib.suppress(zmq.ZMQError, SofthcaError):
            self._send(self._note(KIND_THREAD_EXIT, 0), _DONTWAIT)
        self._close_socket(_PARTING_MS)
        self._channel.retire(self)

    def _open(self) -> None:
        """Make the socket and bind its plain C methods: the wrappers cost more than they give."""
        socket = self._socket = self._channel.make_socket()
        plain: Any = super(zmq.Socket, socket)
        self._send, self._recv, self._more = plain.send, plain.recv, plain.get
        self._closed = False

    def _close_socket(self, linger_ms: int) -> None:
        self._closed = True
        self._channel.hold(*self._abandoned.values())
        self._abandoned.clear()
        self._socket.close(linger=linger_ms)

    def _note(self, kind: int, request_id: int) -> bytes:
        return make_header(
            kind,
            session=self._session,
            epoch=self._epoch,
            thread=self.number,
            request_id=request_id,
            sequence=self._credit.taken,
        )

    def _send_patiently(self, header: bytes, payload: Payload | None) -> None:
        """Go on trying for a while: the kernel takes no message just now, or is not connected.

        Nothing tells the two apart, so each time another socket tries; it also says once more what
        has been given up.
        """
        deadline = now_ns() + _SEND_NS
        while True:
            self._channel.watch.look()
            try:
                self._send(header, _SNDMORE if payload else 0)
            except zmq.Again:
                if now_ns() >= deadline:
                    raise KernelNotResponding(self._channel.name, _SEND_NS / 1e9) from None
                self._replace_socket()
                continue
            if payload:
                self._send(payload)
            self.bytes_sent += _HEADER + len(payload or b"")
            return

    def _wait(self) -> bytes:
        """Go on waiting, with a look at the kernel's pidfd each time nothing came."""
        while True:
            self._channel.watch.look()
            try:
                frame: bytes = self._recv()
            except zmq.Again:
                if not self._more(_EVENTS) & _CONNECTED:
                    self._channel.watch.look()
                    raise ConnectionLost(self._channel.name) from None
                continue
            return frame

    def _sift(
        self, request_id: int, answer: Answer, body: bytes | None
    ) -> tuple[Answer, bytes | None]:
        """Drop answers to abandoned requests until the one that is waited for is there."""
        while answer[4] != request_id:
            if answer[4] >> REQUEST_ID_SHIFT != self.number or answer[4] > request_id:
                raise ProtocolError(f"an answer to request {answer[4]:#x}, which was never made")
            self.late_answers += 1
            self._drop(answer, body)
            frame = self._wait()
            body = self._recv() if self._more(_RCVMORE) else None
            answer = _unpack(frame)
        if answer[0] != MAGIC:
            raise ProtocolError(f"an answer with magic {answer[0]:#010x}")
        # Answers come in order: what was abandoned before this request has had its end.
        self._abandoned.clear()
        return answer, body

    def _drop(self, answer: Answer, body: bytes | None) -> None:
        """Take from an answer nobody waits for what must not be lost."""
        keep = self._abandoned.pop(answer[4], None)
        if body and isinstance(keep, LateTaker):
            keep.take_late(body)
        if answer[2] & (FLAG_USER_APC | FLAG_IOSB_WRITTEN) == FLAG_USER_APC:
            self.apcs.deliver(body or b"")
        if not answer[2] & FLAG_COMPLETION_FOLLOWS:
            self._channel.outstanding.pop(answer[4], None)
            if not answer[2] & FLAG_USER_APC:
                self.apcs.forget(answer[4])

    def _break_off(self, error: BaseException, request_id: int, keep: object, whole: bool) -> None:
        """Leave the port usable after a call that did not end; say what a socket's error means."""
        if isinstance(error, KernelDied):
            if self._closing or not isinstance(self._send, Refusal):  # else nothing was sent
                self._channel.hold(keep)
            self._send = Refusal(self._channel)
            return
        if self._channel.closed:
            self._channel.hold(keep)
            self._close_socket(0)
            if isinstance(error, zmq.ZMQError):
                raise ConnectionClosed(self._channel.name) from None
            return
        self._abandoned[request_id] = keep
        plain_send, self._send = self._send, SendAnew(self)  # unless all goes well below
        if isinstance(error, struct.error):
            raise ProtocolError(f"an answer of the wrong length: {error}") from error
        if isinstance(error, zmq.ZMQError):
            raise SofthcaError(f"the request socket failed: {error}") from error
        if isinstance(error, SofthcaError):
            return
        with contextlib.suppress(zmq.ZMQError, SofthcaError):
            if not whole:
                self._replace_socket()
                return
            while self._more(_RCVMORE):
                self._recv()
            self._send = plain_send
            self._cancel_abandoned(_DONTWAIT)

    def _replace_socket(self) -> None:
        """Go on with a new socket: nobody can know how much of a message the old one has sent."""
        self._socket.close(linger=0)
        self._open()
        self._cancel_abandoned(0)

    def send_anew(self, frame: Payload, flags: int = 0) -> None:
        """Replace the socket, then send: the first send after a call that broke off badly."""
        self._replace_socket()
        self._send(frame, flags)

    def _cancel_abandoned(self, flags: int) -> None:
        """Ask the kernel to end what is still under way; if it takes no message, it runs on."""
        for request_id in self._abandoned:
            with contextlib.suppress(zmq.Again):
                self._send(self._note(KIND_CANCEL_SYNCHRONOUS, request_id), flags)
