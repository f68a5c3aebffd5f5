"""A lifeline whose peer has not said Hello yet, or whose Hello is being heard.

Whatever waits on the peer, its words with their descriptors and the closing of the connection, is
left to a lane of its own, which becomes the session's. A peer can thus hold one OS thread, its
own slot, and nobody else.

Rules: dispatcher's OS thread; never waits.
"""

import contextlib
import socket
from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.hello import Greeting, hear_hello
from kernel_proc.server.packet import close_all, has_ended, send_packet
from kernel_proc.server.peer import Peer
from shared.messages import Refused
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_IO_TIMEOUT

if TYPE_CHECKING:
    from kernel_proc.server.lifeline_listener import LifelineListener

_TOO_LATE: Final = Refused(STATUS_IO_TIMEOUT, "no Hello came in time")
_TOO_MANY: Final = Refused(STATUS_IO_TIMEOUT, "too many connections are silent")
_NO_THREAD: Final = Refused(
    STATUS_INSUFFICIENT_RESOURCES,
    "the kernel has no thread or descriptor left for it: end some of its processes",
)


class SilentConnection:
    """One connection, its peer, and the lane that is to hear it."""

    def __init__(
        self, listener: "LifelineListener", connection: socket.socket, peer: Peer, lane: Lane
    ) -> None:
        processor = listener.processor
        self._listener = listener
        self._processor = processor
        self._connection = connection
        self._peer = peer
        self._lane = lane
        self._is_silent = True
        self._since_ns = processor.clock.now_ns()
        self._if_late = _TOO_LATE
        self._timer = Timer(processor)
        # The DPC does not end it: what that takes belongs to PASSIVE_LEVEL.
        self._expiry = Dpc(processor, lambda *_: processor.post(self._expired))
        self._timer.set(listener.hello_timeout_ns, dpc=self._expiry)
        processor.add_source(connection, self._readable)

    def hurry(self, limit_ns: int) -> None:
        """Let it be silent for `limit_ns` in all, because others wait for its place."""
        if self._is_silent:
            self._if_late = _TOO_MANY
            left_ns = self._since_ns + limit_ns - self._processor.clock.now_ns()
            self._timer.set(max(1, left_ns), dpc=self._expiry)

    def refuse(self, refused: Refused | None) -> None:
        """Say why, if there is something to say, and hang up."""
        if not self._is_silent:
            return
        if refused is not None:
            self._listener.count(refused)
            send_packet(self._connection, refused)
        self._leave()
        # The peer hears of it now. The closing may take for ever: what is queued goes with it.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._lane.later(self._connection.close, lambda: self._listener.forget(self))
        self._lane.close()
        self._peer.close()

    def _leave(self) -> None:
        self._is_silent = False
        self._timer.cancel()
        self._processor.remove_source(self._connection)

    def _expired(self) -> None:
        self.refuse(self._if_late)

    def _readable(self) -> None:
        if has_ended(self._connection):
            self.refuse(None)
            return
        self._processor.remove_source(self._connection)
        name = f"Hello of process {self._peer.pid}"
        create_system_thread(self._processor, self._hear, name=name)

    def _hear(self) -> None:
        # On a system thread of its own.
        connection, pid = self._connection, self._peer.pid
        try:
            heard = self._lane.run(hear_hello, connection, pid, discard=_give_up)
        except RaisedStatus:
            self.refuse(_NO_THREAD)
            return
        if not self._is_silent:  # given up meanwhile
            _give_up(heard)
        elif isinstance(heard, Greeting):
            self._introduce(heard)
        else:
            self.refuse(heard)

    def _introduce(self, greeting: Greeting) -> None:
        refused = self._listener.admit(self._connection, self._peer, greeting, self._lane)
        if refused is not None:
            self.refuse(refused)
            return
        # From here everything is the session's.
        self._is_silent = False
        self._timer.cancel()
        self._listener.forget(self)


def _give_up(heard: Greeting | Refused | None) -> None:
    if isinstance(heard, Greeting):
        close_all((heard.memory, heard.maps))  # files of procfs, whose closing never waits
