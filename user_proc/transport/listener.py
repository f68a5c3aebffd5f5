"""The listener: one thread that takes the completions of overlapped requests.

It stores the output into the caller's buffer and ends the Overlapped, and counts what it has
taken: that count goes out with every request as the credit the kernel reckons with, and a caller
whose wait was answered goes on only when everything sent before that answer has been taken here.
However the listener ends, by close, by the kernel's death, by bytes nobody understands, every
request still outstanding ends with that error: nobody waits for a thread that is gone.

Rules: `expect` and `catch_up` from any thread; completions are handled in the listener's thread,
one at a time, in the order the kernel sent them.
Spec: `shared/envelope.py`, KIND_LISTEN and KIND_COMPLETION.
"""

import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import zmq

from shared.clock import now_ns
from shared.envelope import (
    ANSWER,
    HEADER,
    KIND_COMPLETION,
    KIND_LISTEN,
    KIND_REPLY,
    MAGIC,
    make_header,
)
from shared.nt_status import STATUS_SUCCESS
from shared.trace_points import trace
from user_proc.errors import (
    ConnectionClosed,
    KernelNotResponding,
    NtStatusError,
    ProtocolError,
    SofthcaError,
)

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel

_HANDSHAKE_NS: Final = 10_000_000_000
_LISTEN_ID: Final = 1  # thread 0 makes no other request
_COUNT: Final = 1 << 32
_JOIN_SECONDS: Final = 5.0

_R = TypeVar("_R")


class PendingRequest(Protocol):
    """What an outstanding request must be able to take; neither call may raise or wait."""

    def complete(
        self, flags: int, iosb_status: int, information: int, output: bytes | None
    ) -> None:
        """Take the result."""

    def fail(self, error: SofthcaError) -> None:
        """Take the end of the connection."""


class Credit:
    """How many completions have been taken, modulo 2**32; written by the listener alone."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


class CompletionListener:
    """A bound listener socket and its thread, running from the constructor's end."""

    def __init__(self, channel: "KernelChannel", socket: "zmq.Socket[bytes]") -> None:
        self.messages_received = 0
        self.bytes_received = 0
        self._channel: Final = channel
        self._socket: Final = socket
        self._credit: Final = channel.credit
        self._outstanding: Final = channel.outstanding
        self._changed = threading.Condition()
        self._waiters = 0
        self._ended: SofthcaError | None = None
        try:
            self._bind()
            self._thread = threading.Thread(
                target=self._run, name=f"softhca-listener-{channel.name}", daemon=True
            )
            self._thread.start()
        except BaseException:
            socket.close(linger=0)
            raise

    def expect(self, request_id: int, pending: PendingRequest) -> None:
        """Note who waits for a completion; to be called before the request is sent."""
        self._outstanding[request_id] = pending
        # Read after the store: the end drains the table after it has said why.
        if self._ended is not None:
            self._outstanding.pop(request_id, None)
            raise self._ended.with_traceback(None)

    def forget(self, request_id: int) -> None:
        """Note that no completion will come."""
        self._outstanding.pop(request_id, None)

    def catch_up(self, sequence: int) -> None:
        """Wait until as many completions as `sequence` have been taken."""
        with self._changed:
            self._waiters += 1
            try:
                while self._is_behind(sequence):
                    if self._ended is not None:
                        raise self._ended.with_traceback(None)
                    self._changed.wait()
            finally:
                self._waiters -= 1

    def close(self) -> None:
        """Wait for the thread's end, which the end of the context has brought about."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _is_behind(self, sequence: int) -> bool:
        return 0 < (sequence - self._credit.taken) % _COUNT < _COUNT // 2

    def _bind(self) -> None:
        """Make this socket the session's listener."""
        channel = self._channel
        hello = make_header(
            KIND_LISTEN, session=channel.session, epoch=channel.epoch, request_id=_LISTEN_ID
        )
        try:
            self._patiently(lambda: self._socket.send(hello))
            frames = self._patiently(self._socket.recv_multipart)
        except zmq.ContextTerminated:
            raise ConnectionClosed(channel.name) from None
        try:
            magic, kind, _, _, request_id, _, status, *_ = ANSWER.unpack(frames[0])
        except struct.error as error:
            raise ProtocolError(f"the listener's welcome has the wrong length: {error}") from error
        if magic != MAGIC or kind != KIND_REPLY or request_id != _LISTEN_ID:
            raise ProtocolError(f"the listener was welcomed with a message of kind {kind}")
        if status != STATUS_SUCCESS:
            raise NtStatusError(status)

    def _patiently(self, action: Callable[[], _R]) -> _R:
        """Repeat what timed out while the kernel lives, for a while."""
        deadline = now_ns() + _HANDSHAKE_NS
        while True:
            try:
                return action()
            except zmq.Again:
                self._channel.watch.look()
                if now_ns() > deadline:
                    raise KernelNotResponding(self._channel.name, _HANDSHAKE_NS / 1e9) from None

    def _run(self) -> None:
        """Take completions until the connection ends one way or another."""
        try:
            while True:
                try:
                    frames = self._socket.recv_multipart()
                except zmq.Again:
                    self._channel.watch.look()
                    continue
                self._take(frames)
        except zmq.ContextTerminated:
            self._end(ConnectionClosed(self._channel.name))
        except SofthcaError as error:
            self._end(error)
        except BaseException as error:
            self._end(SofthcaError(f"the listener failed: {error!r}"))
            raise
        finally:
            self._socket.close(linger=0)

    def _take(self, frames: list[bytes]) -> None:
        """Hand one completion to whoever expects it; one nobody expects any more is dropped."""
        if len(frames[0]) != HEADER.size or len(frames) > 2:
            raise ProtocolError(f"a completion of {len(frames)} frames, {len(frames[0])} bytes")
        magic, kind, flags, _, request_id, _, _, _, information, iosb_status = ANSWER.unpack(
            frames[0]
        )
        if magic != MAGIC or kind != KIND_COMPLETION:
            raise ProtocolError(f"the listener was sent a message of kind {kind}")
        self.messages_received += 1
        self.bytes_received += sum(map(len, frames))
        if trace.enabled:
            trace.record("user completion", request_id)
        pending = self._outstanding.pop(request_id, None)
        if pending is not None:
            pending.complete(flags, iosb_status, information, frames[1] if frames[1:] else None)
        with self._changed:
            self._credit.taken = (self._credit.taken + 1) % _COUNT
            if self._waiters:
                self._changed.notify_all()

    def _end(self, error: SofthcaError) -> None:
        """Say why there will be no more, to everyone who waits and everyone who comes."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()
        while self._outstanding:
            try:
                _, pending = self._outstanding.popitem()
            except KeyError:
                break  # the last one was forgotten meanwhile
            pending.fail(error)
