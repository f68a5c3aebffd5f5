"""The one ROUTER socket through which requests come and answers go.

Every option that keeps a peer from hurting the kernel is set here: no send waits, no queue is
endless, a frame that is too long costs its sender the connection, an answer to a peer that is
gone is an error told at once.

A calling thread has one request under way, or a few, so its queues are short: a peer that sends
and never reads holds at most `THREAD_ANSWERS` payloads here, and `THREAD_REQUESTS`.

Rules: dispatcher's OS thread only; made after the process has started, never inherited.
Spec: zmq_setsockopt(3), ZMQ_ROUTER_MANDATORY; zmq_ipc(7).
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from kernel_proc.server.answers import FULL, GONE, SENT
from kernel_proc.server.connection_gate import ConnectionGate
from kernel_proc.server.unfinished_messages import FinishedMessages
from shared.envelope import MAX_PAYLOAD

#: Messages taken in one go; more would keep other sources, and the threads, waiting.
BURST: Final = 16

#: Answers a calling thread may leave unread: one is due, the others come late (Ctrl-C). A raw
#: client that keeps as many requests under way as half of this loses no answer.
THREAD_ANSWERS: Final = 48
#: Requests of a calling thread that libzmq takes before the kernel does.
THREAD_REQUESTS: Final = 8

_FRAMES_KEPT: Final = 3  # one more than a message may have, so that the excess shows
_FRAMES_SKIPPED: Final = 256  # in one go, of a message that has many
_BACKLOG: Final = 1024

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SNDMORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
_EVENTS: Final = int(zmq.EVENTS)
_SOURCE: Final = int(zmq.SRCFD)

Receive = Callable[[bytes, Sequence[bytes]], object]


class RequestSocket:
    """The ROUTER, its context, and what went wrong on it."""

    __slots__ = (
        "_context",
        "_finished",
        "_get",
        "_is_skipping",
        "_recv",
        "_send",
        "errors",
        "is_busy",
        "receive",
        "socket",
    )

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._is_skipping = False
        self._finished = FinishedMessages()
        self.socket = socket
        self.receive: Receive = lambda identity, frames: None
        self.is_busy: Callable[[], bool] = lambda: True
        self.errors: Counter[str] = Counter()
        # The C methods themselves: the Python layer above them costs more than it gives.
        plain: Any = super(zmq.Socket, socket)
        self._recv = plain.recv
        self._send = plain.send
        self._get = plain.get

    def bind(self, endpoint: str, gate: ConnectionGate | None) -> None:
        """Bind the ipc endpoint; only this user can reach its file, at any moment."""
        if gate is not None:
            gate.watch(self._context, self.socket, self._finished)
        # Connections have the options that hold while their endpoint is bound.
        self.socket.setsockopt(zmq.SNDHWM, THREAD_ANSWERS)
        self.socket.setsockopt(zmq.RCVHWM, THREAD_REQUESTS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD)
        old_mask = os.umask(0o177)
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"{endpoint} cannot be bound ({error})") from error
        finally:
            os.umask(old_mask)

    def drain(self) -> None:
        """Take a bounded number of messages; what is left keeps the socket readable.

        While the processor is idle that number is one, so that each message is served at once; a
        look for the next one costs as much as the poller's own.
        """
        for _ in range(BURST if self.is_busy() else 1):
            try:
                if self._is_skipping:
                    self._skip()
                    continue
                identity = self._recv(_DONTWAIT)
                frames = self._receive_frames()
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                self._count(error.errno)
                return
            self.receive(identity, frames)

    def _receive_frames(self) -> list[bytes]:
        frame = self._recv(_DONTWAIT, False)
        frames = [frame.bytes]
        senders = self._finished.senders
        if senders is not None:
            senders.append(frame.get(_SOURCE))
        while frame.more:
            if len(frames) == _FRAMES_KEPT:
                self._is_skipping = True
                self._finished.long_ones += 1
                break
            frame = self._recv(_DONTWAIT, False)
            frames.append(frame.bytes)
        return frames

    def _skip(self) -> None:
        # A message may have millions of frames; what else there is to do goes on meanwhile.
        for _ in range(_FRAMES_SKIPPED):
            if not self._recv(_DONTWAIT, False).more:
                self._is_skipping = False
                self._finished.long_ones += 1
                return

    def send(self, identity: bytes, header: bytes, payload: bytes | None) -> int:
        """Hand an answer to the peer's queue; FULL or GONE if there is no place for it."""
        send = self._send
        try:
            send(identity, _SNDMORE)
        except zmq.ZMQError as error:
            result = self._address_again(identity, error.errno)
            if result != SENT:
                return result
        # A message that has been addressed is taken whole, or silently dropped with its peer.
        if payload:
            send(header, _SNDMORE)
            send(payload, _DONTWAIT)
        else:
            send(header, _DONTWAIT)
        return SENT

    def _address_again(self, identity: bytes, number: int | None) -> int:
        # libzmq looks for news of its peers once in a millisecond at most, so a queue may be full
        # in its eyes that has been read long ago. Asking for events makes it look.
        if number == errno.EAGAIN:
            try:
                self._get(_EVENTS)
                self._send(identity, _SNDMORE)
            except zmq.ZMQError as second:
                # Its number alone: a variable of this frame that holds the error is a cycle with
                # the answer in it, which stays until the collector runs.
                number = second.errno
            else:
                return SENT
        if number == errno.EAGAIN:
            return FULL
        if number != errno.EHOSTUNREACH:
            self._count(number)
        return GONE

    def _count(self, number: int | None) -> None:
        self.errors[errno.errorcode.get(number or 0, "unknown")] += 1

    def close(self) -> None:
        """Close socket and context at once; unsent answers are dropped."""
        self.socket.close(linger=0)
        self._context.term()
