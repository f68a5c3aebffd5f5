"""The kernel's end of the socket by which a user takes the completions of its requests.

Each session has a pair of connected sockets of its own; the user's end goes with the Welcome. One
packet is one completion, header and payload together. What the socket does not take at once is
kept by the session, and goes on when there is room. Nothing can be sent the other way: the user's
send fails there.

Rules: dispatcher's OS thread; never waits.
Spec: shared/envelope.py, KIND_COMPLETION; unix(7), SOCK_SEQPACKET; epoll(7).
"""

import errno
import select
import socket
from collections.abc import Callable
from typing import Final

from kernel_proc.scheduling.processor import Processor
from kernel_proc.server.answers import FULL, GONE, SENT
from shared.envelope import HEADER, MAX_PAYLOAD

_LARGEST: Final = HEADER.size + MAX_PAYLOAD
_ROOM: Final = 256 << 10  # bytes asked of the system; it grants twice as much, or as it is limited
_OVERHEAD: Final = 4096  # of the largest packet, in the system's reckoning
_NO_ROOM: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EINTR})
_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class CompletionSocket:
    """One session's pair; OSError if there are no descriptors, or packets cannot be that long.

    `user_end` is to be passed on and given up by `passed_on`.
    """

    __slots__ = ("_call", "_connection", "_processor", "_room", "_send", "user_end")

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._call: Callable[[], object] | None = None
        self._connection, self.user_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._send = self._connection.send
        try:
            self._connection.shutdown(socket.SHUT_RD)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
            granted = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            if granted < _LARGEST + _OVERHEAD:
                raise OSError(
                    errno.EMSGSIZE, f"a socket takes {granted} bytes: net.core.wmem_max is too low"
                )
            self._room = select.epoll()
            self._room.register(self._connection.fileno(), select.EPOLLOUT)
        except BaseException:
            self._connection.close()
            self.user_end.close()
            raise

    def passed_on(self) -> None:
        """Give up this process's copy of the user's end."""
        self.user_end.close()

    def send(self, header: bytes, payload: bytes | None) -> int:
        """Hand a completion over; FULL if there is no room, GONE if nobody will read it."""
        try:
            self._send(header + payload if payload else header, _FLAGS)
        except OSError as error:
            return FULL if error.errno in _NO_ROOM else GONE
        return SENT

    def when_room(self, call: Callable[[], object]) -> None:
        """Call once when there is room again; again and again is the same as once."""
        if self._call is None and not self._room.closed:
            self._processor.add_source(self._room, self._has_room)
        self._call = call

    def _has_room(self) -> None:
        self._processor.remove_source(self._room)
        call, self._call = self._call, None
        if call is not None:
            call()

    def close(self) -> None:
        """Tell the user that nothing more will come; what was sent can still be read."""
        if self._room.closed:
            return
        self._processor.remove_source(self._room)
        self._call = None
        self._room.close()
        self._connection.close()
        self.user_end.close()
