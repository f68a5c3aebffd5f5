"""The socket where users knock: accepts connections and bounds those that are silent.

Who finds every place taken waits in the backlog. Meanwhile those inside are given less time, so
that a place falls free soon; a connection that has said Hello needs none.

Rules: dispatcher's OS thread; never waits.
Spec: unix(7); shared/messages.py (Hello, Refused).
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.hello import Greeting
from kernel_proc.server.packet import send_packet
from kernel_proc.server.peer import Peer, PeerRefused, identify
from kernel_proc.server.silent_connection import SilentConnection
from shared.messages import Refused
from shared.nt_status import status_name

_BACKLOG: Final = 128
_HURRY_NS: Final = 200_000_000  # for a Hello while others wait; it follows the connect at once
_PAUSE_NS: Final = 50_000_000  # before the next attempt to accept without descriptors

#: Makes a session of a connection that has said Hello: takes over the connection, the peer, the
#: lane and both descriptors, or returns why not and has taken nothing but the descriptors.
Admit = Callable[[socket.socket, Peer, Greeting, Lane], "Refused | None"]


class LifelineListener:
    """Accepts connections and keeps the silent ones, bounded in number and in time."""

    def __init__(
        self,
        processor: Processor,
        admit: Admit,
        make_lane: Callable[[str], Lane],
        max_silent: int,
        hello_timeout_ns: int,
    ) -> None:
        self.processor = processor
        self.admit = admit
        self.hello_timeout_ns = hello_timeout_ns
        self.refused: Counter[str] = Counter()
        self._make_lane = make_lane
        self._max_silent = max_silent
        self._silent: set[SilentConnection] = set()
        self._socket: socket.socket | None = None
        self._is_accepting = False
        self._pause = Timer(processor)
        self._pause_over = Dpc(processor, lambda *_: processor.post(self._accept_again))

    def listen(self, path: Path) -> None:
        """Bind and listen; nobody but this user can reach the socket at any moment."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        old_mask = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
        except BaseException:
            listener.close()
            raise
        finally:
            os.umask(old_mask)
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._socket = listener
        self._accept_again()

    def close(self) -> None:
        """Accept nobody any more, and hang up on who has not said Hello."""
        self._stop_accepting()
        self._pause.cancel()
        if self._socket is not None:
            self._close_in_lane(self._socket, "lane of the listener")
            self._socket = None
        for silent in list(self._silent):
            silent.refuse(None)

    def forget(self, silent: SilentConnection) -> None:
        """Note that a connection is not silent any more, or has been closed."""
        self._silent.discard(silent)
        self._accept_again()

    def count(self, refused: Refused) -> None:
        """Note a refusal."""
        self.refused[status_name(refused.status)] += 1

    def _accept_again(self) -> None:
        if self._socket is not None and not self._is_accepting and not self._is_full:
            self._is_accepting = True
            self.processor.add_source(self._socket, self._accept)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self.processor.remove_source(self._socket)

    @property
    def _is_full(self) -> bool:
        return len(self._silent) >= self._max_silent

    def _accept(self) -> None:
        assert self._socket is not None
        if self._is_full:
            self._stop_accepting()
            for silent in self._silent:
                silent.hurry(_HURRY_NS)
            return
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            # No descriptors. Who knocks stays in the backlog; the poller would not sleep.
            self.refused["accept failed"] += 1
            self._stop_accepting()
            self._pause.set(_PAUSE_NS, dpc=self._pause_over)
            return
        connection.setblocking(False)
        try:
            peer = identify(connection)
        except PeerRefused as error:
            self._turn_away(connection, Refused(error.status, str(error)))
            return
        lane = self._make_lane(f"lane of process {peer.pid}")
        self._silent.add(SilentConnection(self, connection, peer, lane))

    def _turn_away(self, connection: socket.socket, refused: Refused) -> None:
        self.count(refused)
        send_packet(connection, refused)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self._close_in_lane(connection, "lane of a stranger")

    def _close_in_lane(self, closing: socket.socket, name: str) -> None:
        # What is queued there goes with it, and that can take for ever.
        lane = self._make_lane(name)
        lane.later(closing.close)
        lane.close()

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {"silent_connections": len(self._silent), "refused": dict(self.refused)}
