"""The socket at which user processes arrive, and their first words.

Whoever connects is identified by the system, says Hello within a time, hands over its own memory
descriptors, and becomes a session; or it is refused with a sentence and hung up on.

Rules: callbacks run in the dispatcher and never wait.
Spec: shared/messages.py; unix(7), SO_PEERCRED.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.packet import Packet, PacketError, close_all, receive_packet, send_packet
from kernel_proc.server.peer import Peer, PeerRefused, check_memory_descriptors, identify
from shared.envelope import MIN_VERSION, VERSION
from shared.message_codec import MessageError, decode_as
from shared.messages import Hello, Refused
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_IO_TIMEOUT,
    STATUS_REVISION_MISMATCH,
    status_name,
)

_BACKLOG: Final = 128
_HELLO_DESCRIPTORS: Final = 2

#: Makes a session of a connection that has said Hello: takes over the connection, the peer and
#: both descriptors, or returns why not and has taken nothing but the descriptors.
Admit = Callable[[socket.socket, Peer, Hello, int, int], "Refused | None"]


class LifelineListener:
    """Accepts connections and keeps the silent ones, bounded in number and in time."""

    def __init__(
        self, processor: Processor, admit: Admit, max_silent: int, hello_timeout_ns: int
    ) -> None:
        self.processor = processor
        self.admit = admit
        self.hello_timeout_ns = hello_timeout_ns
        self.refused: Counter[str] = Counter()
        self._max_silent = max_silent
        self._silent: set[SilentConnection] = set()
        self._socket: socket.socket | None = None
        # Given up for a moment when descriptors run out, to tell the next peer so.
        self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

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
        self.processor.add_source(listener, self._accept)

    def close(self) -> None:
        """Accept nobody any more, and hang up on who has not said Hello."""
        if self._socket is not None:
            self.processor.remove_source(self._socket)
            self._socket.close()
            self._socket = None
        for silent in list(self._silent):
            silent.close()
        self._drop_reserve()

    def forget(self, silent: "SilentConnection") -> None:
        """Note that a connection is not silent any more."""
        self._silent.discard(silent)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            self._refuse_without_descriptor(self._socket)
            return
        connection.setblocking(False)
        if len(self._silent) >= self._max_silent:
            self._refuse_early(
                connection, STATUS_INSUFFICIENT_RESOURCES, "too many connections are silent"
            )
            return
        try:
            peer = identify(connection)
        except PeerRefused as error:
            self._refuse_early(connection, STATUS_ACCESS_DENIED, str(error))
            return
        self._silent.add(SilentConnection(self, connection, peer))

    def _refuse_without_descriptor(self, listener: socket.socket) -> None:
        # The connection stays in the backlog, and the poller awake, until it is accepted.
        self._drop_reserve()
        try:
            connection, _ = listener.accept()
            reason = "the kernel has no descriptors left"
            self._refuse_early(connection, STATUS_INSUFFICIENT_RESOURCES, reason)
        except OSError:
            self.refused["accept failed"] += 1
        # Another OS thread may have been quicker; then there is none until the next time.
        with contextlib.suppress(OSError):
            self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _drop_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _refuse_early(self, connection: socket.socket, status: int, reason: str) -> None:
        self.refused[status_name(status)] += 1
        send_packet(connection, Refused(status, reason))
        connection.close()

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {"silent_connections": len(self._silent), "refused": dict(self.refused)}


class SilentConnection:
    """A connection that has not said Hello yet."""

    def __init__(self, listener: LifelineListener, connection: socket.socket, peer: Peer) -> None:
        self._listener = listener
        self._connection = connection
        self._peer = peer
        self._is_silent = True
        processor = listener.processor
        self._timer = Timer(processor)
        self._timer.set(listener.hello_timeout_ns, dpc=Dpc(processor, self._expired))
        processor.add_source(connection, self._readable)

    def close(self) -> None:
        """Hang up."""
        if self._is_silent:
            self._leave()
            self._connection.close()
            self._peer.close()

    def _leave(self) -> None:
        self._is_silent = False
        self._timer.cancel()
        self._listener.processor.remove_source(self._connection)
        self._listener.forget(self)

    def _expired(self, *_: object) -> None:
        self._refuse(STATUS_IO_TIMEOUT, "no Hello came in time")

    def _refuse(self, status: int, reason: str) -> None:
        if self._is_silent:
            self._listener.refused[status_name(status)] += 1
            send_packet(self._connection, Refused(status, reason[:1000]))
            self.close()

    def _readable(self) -> None:
        try:
            packet = receive_packet(self._connection)
        except PacketError as error:
            self._refuse(STATUS_INVALID_PARAMETER, str(error))
            return
        if packet is None:
            return
        if not packet.data:
            self.close()
            return
        try:
            hello = self._check(packet)
        except MessageError:
            close_all(packet.descriptors)
            self._refuse(STATUS_INVALID_PARAMETER, "the first message was no Hello")
        except PeerRefused as error:
            close_all(packet.descriptors)
            self._refuse(STATUS_ACCESS_DENIED, str(error))
        else:
            self._greet(hello, packet.descriptors)

    def _check(self, packet: Packet) -> Hello:
        hello = decode_as(Hello, packet.data)
        if len(packet.descriptors) != _HELLO_DESCRIPTORS:
            raise PeerRefused(
                f"Hello needs 2 descriptors (/proc/self/mem and /proc/self/maps), "
                f"not {len(packet.descriptors)}"
            )
        check_memory_descriptors(self._peer.pid, *packet.descriptors)
        return hello

    def _greet(self, hello: Hello, descriptors: tuple[int, ...]) -> None:
        if not hello.min_version <= VERSION or not hello.max_version >= MIN_VERSION:
            close_all(descriptors)
            self._refuse(
                STATUS_REVISION_MISMATCH,
                f"the kernel speaks protocol {MIN_VERSION} to {VERSION}, "
                f"the process {hello.min_version} to {hello.max_version}",
            )
            return
        memory, maps = descriptors
        # Let go first: an admitted connection is watched under its session's callback.
        self._leave()
        refused = self._listener.admit(self._connection, self._peer, hello, memory, maps)
        if refused is not None:
            self._listener.refused[status_name(refused.status)] += 1
            send_packet(self._connection, refused)
            self._connection.close()
            self._peer.close()
