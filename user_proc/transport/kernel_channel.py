"""This process's side of the request and completion sockets: one port per calling thread.

The context is made at first use, after any start-up forks, and never survives a fork: in a
forked child every use says so. `port()` is what callers keep calling; it costs one look into the
thread's local storage.

Rules: any thread; a port belongs to the thread that got it.
Spec: `shared/envelope.py`; zmq_ctx_new(3), zmq_ctx_term(3).
"""

import os
import socket
import threading
import weakref
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import zmq

from shared.envelope import KIND_ECHO, MAX_PAYLOAD, REQUEST_ID_SHIFT
from shared.messages import Welcome
from shared.nt_status import STATUS_TOO_MANY_THREADS
from user_proc.errors import ConnectionClosed, ForkedProcess, NtStatusError, SofthcaError
from user_proc.transport.burst_port import BurstPort
from user_proc.transport.completion_table import CompletionTable, Credit, PendingRequest
from user_proc.transport.listener import CompletionListener
from user_proc.transport.own_limits import require_descriptors
from user_proc.transport.request_socket_factory import make_dealer
from user_proc.transport.thread_port import Payload, ThreadPort

_MAX_THREAD_NUMBER: Final = (1 << (64 - REQUEST_ID_SHIFT)) - 1
_OF_A_CONTEXT: Final = 10  # descriptors libzmq takes, the first socket among them; or it aborts
_OF_A_SOCKET: Final = 2
_PORT_ANSWERS: Final = 64  # one is expected; the rest is room for answers that come late

_RETIRED_KEPT: Final = 64

_Figures = tuple[int, int, int, int, int]

_open: "weakref.WeakSet[KernelChannel]" = weakref.WeakSet()

#: Buffers of requests of which nobody can tell any more whether the kernel is done with them.
_never_let_go: Final[list[object]] = []


def _disown_in_child() -> None:
    for channel in list(_open):
        channel.disown()


os.register_at_fork(after_in_child=_disown_in_child)


class Watch(Protocol):
    """A look at the kernel behind a channel."""

    def look(self) -> None:
        """Raise KernelDied if the kernel ended or closed the session."""

    def look_for_the_end(self) -> NoReturn:
        """Raise why the completions have ended."""


@dataclass(frozen=True, slots=True)
class ChannelCounters:
    """What has gone over the sockets of this process's requests; ZeroMQ's own bytes apart."""

    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    late_answers: int
    threads: int


class KernelChannel:
    """The requests of one session, from any number of threads."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        welcome: Welcome,
        watch: Watch,
        completions: socket.socket | None,
    ) -> None:
        self.name: Final = name
        self.session: Final = welcome.session
        self.epoch: Final = welcome.epoch
        self.max_payload: Final = min(MAX_PAYLOAD, welcome.max_payload)
        self.watch: Final[Watch] = watch
        self.credit: Final = Credit()
        self.outstanding: Final[dict[int, PendingRequest]] = {}
        self.closed = False
        self._endpoint: Final = endpoint
        self._completions: Final = completions
        self.max_requests: Final = welcome.max_requests
        self._max_threads: Final = welcome.max_threads
        self._pid: Final = os.getpid()
        self._lock = threading.Lock()
        self._listener_lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._listener: CompletionTable | None = None
        self._local = threading.local()
        self._ports: weakref.WeakSet[ThreadPort] = weakref.WeakSet()
        self._last_thread = 0
        self._held: list[object] = []
        self._is_over = False
        self._retired: list[_Figures] = []
        _open.add(self)

    def port(self) -> BurstPort:
        """Give the calling thread's port."""
        try:
            port: BurstPort = self._local.port
        except AttributeError:
            return self._new_port()
        return port

    def echo(self, payload: Payload = b"") -> bytes:
        """Have the kernel's loop send the same frames back: the floor of every call."""
        if len(payload) > self.max_payload:
            raise ValueError(f"an echo carries at most {self.max_payload} bytes")
        _, body = self.port().call(KIND_ECHO, payload=payload)
        return body or b""

    def listener(self) -> CompletionTable:
        """Give the listener of overlapped completions, started at first use."""
        listener = self._listener
        if listener is None:
            with self._listener_lock:
                listener = self._listener
                if listener is None:
                    self._check_usable()
                    self.watch.look()
                    listener = self._listener = self._make_listener()
        return listener

    def catch_up(self, sequence: int) -> None:
        """Wait until this process has taken as many completions as an answer says were sent."""
        if sequence != self.credit.taken and self._listener is not None:
            self._listener.catch_up(sequence)

    def thread_number(self, ident: int) -> int | None:
        """Give the number the kernel knows a thread by; None before that thread's first call."""
        for port in list(self._ports):
            if port.owner == ident:
                return port.number
        return None

    def make_socket(self) -> "zmq.Socket[bytes]":
        """Make a DEALER for the calling thread."""
        self._check_usable()
        self.watch.look()
        with self._lock:
            if self.closed:
                raise ConnectionClosed(self.name)
            try:
                require_descriptors(_OF_A_SOCKET if self._context else _OF_A_CONTEXT)
                if self._context is None:
                    self._context = zmq.Context()
                return make_dealer(self._context, self._endpoint, self.max_payload, _PORT_ANSWERS)
            except zmq.ZMQError as error:  # no descriptors, no memory
                raise SofthcaError(f"a request socket cannot be made: {error}") from error

    def counters(self) -> ChannelCounters:
        """Add up what all threads have sent and received so far, the listener included."""
        ports = list(self._ports)
        figures = [*self._retired, *map(_figures, ports)]
        if self._listener is not None:
            figures.append(
                (0, self._listener.messages_received, 0, self._listener.bytes_received, 0)
            )
        return ChannelCounters(*_total(figures), threads=len(ports))

    def hold(self, *memory: object) -> None:
        """Keep what the kernel may still reach although nobody waits for its answer.

        Without a lock, as a finaliser must.
        """
        if not self._is_over:
            self._held += [one for one in memory if one is not None]

    @property
    def holds_memory(self) -> bool:
        """Tell whether there is something the kernel may still reach after `close`."""
        return bool(self._held)

    def let_go(self, kernel_is_done: bool) -> None:
        """Give up what was held; for good, unless the kernel is known to be done with it."""
        self._is_over = True
        if not kernel_is_done:
            _never_let_go.extend(self._held)
        self._held.clear()

    def retire(self, port: ThreadPort) -> None:
        """Keep the counters of a thread that has ended; without a lock, as a finaliser must."""
        self._retired.append(_figures(port))

    def close(self) -> None:
        """End every wait in every thread, close all sockets, and end the context."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            context, self._context = self._context, None
        _open.discard(self)
        if context is not None:
            self._end_ports(context)
        if self._listener is not None:
            self._listener.close()

    def _end_ports(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        ended = False
        try:
            # Ending the context ends every blocked call with ETERM, and lasts until their threads
            # have closed their sockets; one of those threads may be ours, inside a signal handler.
            if all([port.close() for port in list(self._ports)]):
                context.term()
                ended = True
        finally:  # also when a signal handler raises
            if not ended:
                threading.Thread(target=context.term, name="softhca-close", daemon=True).start()

    def disown(self) -> None:
        """In a forked child: forget every socket, so that its use is refused."""
        self._local = threading.local()
        self._lock = threading.Lock()
        self._listener_lock = threading.Lock()
        self._listener = None

    def _new_port(self) -> BurstPort:
        self._check_usable()
        with self._lock:
            # The kernel would refuse it too, but cuts the connections of who has many too many.
            if sum(not port.is_closed for port in self._ports) >= self._max_threads:
                raise NtStatusError(STATUS_TOO_MANY_THREADS)
            number = self._last_thread = self._last_thread + 1
            if len(self._retired) > _RETIRED_KEPT:
                self._fold_retired()
        if number > _MAX_THREAD_NUMBER:
            raise SofthcaError("this session has used up its thread numbers: connect again")
        port = self._make_port(number)
        with self._lock:
            self._ports.add(port)
        if self.closed:
            port.close()
            raise ConnectionClosed(self.name)
        self._local.port = port
        return port

    def _make_port(self, number: int) -> BurstPort:
        return BurstPort(self, number)

    def _make_listener(self) -> CompletionTable:
        assert self._completions is not None
        return CompletionListener(self, self._completions)

    def _fold_retired(self) -> None:
        """Replace the oldest entries by their sum; finalisers may append meanwhile."""
        oldest = [self._retired.pop(0) for _ in range(_RETIRED_KEPT)]
        self._retired.append(_total(oldest))

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(self.name)
        if self.closed:
            raise ConnectionClosed(self.name)


def _figures(port: ThreadPort) -> _Figures:
    """Give a port's counters in the order of ChannelCounters."""
    return (
        port.messages_sent,
        port.messages_received,
        port.bytes_sent,
        port.bytes_received,
        port.late_answers,
    )


def _total(figures: list[_Figures]) -> _Figures:
    """Add up counters position by position."""
    sums = [0] * 5
    for entry in figures:
        for position, value in enumerate(entry):
            sums[position] += value
    return sums[0], sums[1], sums[2], sums[3], sums[4]
