"""How many connections each process may have at the request socket.

libzmq accepts whoever connects, and ends the process when there is no descriptor for one more. It
tells of each connection it has accepted; a thread here counts them by process and shuts down what
is too many. A process may have what its sessions may need. All who have no session share a few,
for they are nobody yet; those that had one count among them, and the greediest is shut out first.

libzmq waits for this thread when it is too far ahead, so at most `AHEAD` connections exist that
have not been judged: with as many descriptors in reserve, accept always finds one.

Nor does libzmq bound a message that is not finished: its frames are, their number is not. When
the kernel's own memory passes a limit that nothing else can bring it to, who holds it is found by
trying (`unfinished_messages.py`), and loses its sessions. What that leaves is given back to the
system.

Rules: an OS thread of its own; a connection is judged through a duplicate of its descriptor, which
cannot come to mean another one meanwhile.
Spec: zmq_socket_monitor(3); unix(7), SO_PEERCRED.
"""

import contextlib
import fcntl
import os
import socket
import struct
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import zmq

from kernel_proc.server.process_memory import give_back_unused, machine_bytes, private_bytes
from kernel_proc.server.unfinished_messages import FinishedMessages, Suspects

#: Events libzmq queues before it waits: its own bound for a monitor, and one here.
AHEAD: Final = 1001

_LOOK_MS: Final = 1000
_TRIM_ABOVE: Final = 128 << 20
_SAMPLES: Final = 5
_SAMPLE_SECONDS: Final = 0.01
_SETTLES: Final = 3  # a connection ends in turns of its two threads
_SETTLE_SECONDS: Final = 1.0

_EVENT: Final = struct.Struct("=Hi")  # event, descriptor
_CREDENTIALS: Final = struct.Struct("3i")
_INT: Final = struct.Struct("i")
_ADDRESS: Final = "inproc://connection-gate"

#: Says how many sessions each process has, by process id; called in the gate's thread.
CountSessions = Callable[[], Counter[int]]
#: Has something done by the thread of the ROUTER, soon.
Ask = Callable[[Callable[[], object]], object]


class ConnectionGate:
    """Judges the connections of one ROUTER at `path`; a session may have `allowed` of them."""

    def __init__(
        self,
        count_sessions: CountSessions,
        path: str,
        allowed: int,
        strangers: int,
        ask: Ask,
        on_flood: Callable[[int], object] = lambda pid: None,
        flood_bytes: int | None = None,
    ) -> None:
        self.turned_away = 0
        self.floods = 0
        self._ask = ask
        self._on_flood = on_flood
        self._flood_bytes = machine_bytes() // 4 if flood_bytes is None else flood_bytes
        self._next_look = 0.0
        self._somebody_left = False
        self._count_sessions = count_sessions
        self._path = path
        self._allowed = allowed
        self._strangers = strangers
        self._owners: dict[int, int] = {}  # processes, by descriptor
        self._held: Counter[int] = Counter()
        self._thread: threading.Thread | None = None
        self._finished = FinishedMessages()
        self._suspects = Suspects()
        self._router: Any = None
        self._events: zmq.Socket[bytes] | None = None

    def watch(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        router: Any,
        finished: FinishedMessages,
    ) -> None:
        """Begin; before the ROUTER is bound, which tells in `finished`. Ends with the context."""
        self._finished = finished
        self._router = router
        router.monitor(_ADDRESS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        events = context.socket(zmq.PAIR)
        events.setsockopt(zmq.RCVHWM, 1)
        events.setsockopt(zmq.RCVTIMEO, _LOOK_MS)
        events.connect(_ADDRESS)
        self._events = events
        self._thread = threading.Thread(
            target=self._run, args=(events,), name="connection gate", daemon=True
        )
        self._thread.start()

    def _run(self, events: "zmq.Socket[bytes]") -> None:
        try:
            while True:
                if not self._take_event(events) or time.monotonic() >= self._next_look:
                    self._look_at_memory()
        except zmq.ContextTerminated:
            events.close(linger=0)

    def _take_event(self, events: "zmq.Socket[bytes]", flags: int = 0) -> bool:
        try:
            event, descriptor = _EVENT.unpack(events.recv_multipart(flags)[0])
        except zmq.Again:
            return False
        self._forget(descriptor)  # also before its number is given again
        if event == zmq.EVENT_ACCEPTED:
            self._judge(descriptor)
        return True

    def _forget(self, descriptor: int) -> None:
        self._suspects.ended(descriptor)
        owner = self._owners.pop(descriptor, None)
        if owner is not None:
            self._somebody_left = True
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]

    def _judge(self, descriptor: int) -> None:
        connection = _duplicate(descriptor)
        if connection is None:
            return
        with connection:
            pid = self._owner_of(connection)
            if pid is None:  # it has been closed, and its number is something else's
                return
            sessions = self._count_sessions()
            self._owners[descriptor] = pid
            self._held[pid] += 1
            if sessions[pid] and self._held[pid] > sessions[pid] * self._allowed:
                self._turn_away(connection)
            greediest = self._greediest_stranger(sessions)
            if greediest == pid:
                self._turn_away(connection)
            elif greediest is not None:
                self._turn_out(greediest)

    def _greediest_stranger(self, sessions: Counter[int]) -> int | None:
        # Who without a session has most, if they have too many together.
        strangers = Counter({pid: n for pid, n in self._held.items() if not sessions[pid]})
        if strangers.total() <= self._strangers:
            return None
        return max(strangers, key=lambda pid: strangers[pid])

    def _turn_out(self, pid: int) -> None:
        for descriptor, owner in self._owners.items():
            if owner == pid:
                connection = _duplicate(descriptor)
                if connection is not None:
                    with connection:
                        if self._owner_of(connection) == owner:
                            self._turn_away(connection)

    def _look_at_memory(self) -> None:
        self._next_look = time.monotonic() + _LOOK_MS / 1000
        with contextlib.suppress(OSError):  # no descriptor to look with
            if self._somebody_left and private_bytes() > _TRIM_ABOVE:
                self._somebody_left = False
                give_back_unused()
            if self._suspects.has_been_cut:
                self._judge_suspect()
            if private_bytes() <= self._flood_bytes:
                self._suspects.clear()
            else:
                self._cut_next_suspect()

    def _seen_sending(self) -> list[int]:
        """Return who has bytes waiting again and again, and finishes no message."""
        seen: Counter[int] = Counter()
        came: list[int] = []
        self._finished.senders = came
        for _ in range(_SAMPLES):
            seen.update(descriptor for descriptor in self._owners if _has_input(descriptor))
            time.sleep(_SAMPLE_SECONDS)
        self._finished.senders = None
        sending = {one for one, times in seen.items() if times > 1} - set(came)
        return [self._owners[one] for one in sending]

    def _judge_suspect(self) -> None:
        is_settled = self._settle()
        give_back_unused()
        used, long_ones = private_bytes(), self._finished.long_ones
        # What has ended by now, too, may have given it back.
        for _ in range(2 * AHEAD):
            if self._events is None or not self._take_event(self._events, zmq.DONTWAIT):
                break
        holder = self._suspects.holder(used, long_ones)
        if holder is not None and is_settled:
            self._end_flood(holder)

    def _settle(self) -> bool:
        """Have libzmq let go of what was cut: it does so in the ROUTER's thread, which looks.

        False if that thread has other things to do: then it may come back whenever it pleases.
        """
        for _ in range(_SETTLES):
            has_looked = threading.Event()
            self._ask(partial(_look, self._router, has_looked))
            if not has_looked.wait(_SETTLE_SECONDS):
                return False
            time.sleep(_SAMPLE_SECONDS)
        return True

    def _cut_next_suspect(self) -> None:
        sending = self._seen_sending()
        used, long_ones = private_bytes(), self._finished.long_ones
        pid = self._suspects.next(self._owners, sending, used, long_ones)
        if pid is not None:
            self._turn_out(pid)

    def _end_flood(self, pid: int) -> None:
        self.floods += 1
        self._turn_out(pid)
        self._on_flood(pid)

    def _turn_away(self, connection: socket.socket) -> None:
        # The socket's own thread finds the end of the connection, and closes it.
        self.turned_away += 1
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _owner_of(self, connection: socket.socket) -> int | None:
        try:
            path = connection.getsockname()
            size = _CREDENTIALS.size
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        except OSError:
            return None
        if path != self._path:
            return None
        pid: int = _CREDENTIALS.unpack(raw)[0]
        return pid

    def inspect(self) -> dict[str, int]:
        """Return plain figures."""
        return {
            "connections": len(self._owners),
            "turned_away": self.turned_away,
            "floods": self.floods,
        }


def _look(router: Any, has_looked: threading.Event) -> None:
    with contextlib.suppress(zmq.ZMQError):  # it has been closed
        router.get(zmq.EVENTS)
    has_looked.set()


def _has_input(descriptor: int) -> bool:
    # libzmq takes at once what comes, unless there is no end of it.
    connection = _duplicate(descriptor)
    if connection is None:
        return False
    with connection:
        waiting = bytearray(_INT.size)
        try:
            fcntl.ioctl(connection, termios.FIONREAD, waiting)
        except OSError:
            return False
        count: int = _INT.unpack(waiting)[0]
        return count > 0


def _duplicate(descriptor: int) -> socket.socket | None:
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # its number is something else's by now
        os.close(duplicate)
        return None
