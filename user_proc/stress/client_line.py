"""The line between a client and whoever watches it: JSON objects, one a line, both ways.

Rules: one thread on each side. Neither waits for the other but where it says so.
"""

import json
import select
import socket
from collections.abc import Mapping
from typing import Any, Final

_PIECE: Final = 1 << 16

Words = dict[str, Any]


class LineClosed(Exception):
    """The other end is gone."""


class Line:
    """One end."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket: Final = connection
        self._read = b""

    def fileno(self) -> int:
        """Return the descriptor, for who waits for several."""
        return self.socket.fileno()

    def tell(self, words: Mapping[str, Any]) -> None:
        """Say something; LineClosed if nobody listens any more."""
        try:
            self.socket.sendall(json.dumps(words).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LineClosed from error

    def heard(self) -> list[Words]:
        """Return what has been said meanwhile; LineClosed once there will be no more."""
        try:
            data = self.socket.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise LineClosed from error
        if not data:
            raise LineClosed
        *lines, self._read = (self._read + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, seconds: float | None = None) -> list[Words]:
        """Wait for something to be said; nothing if the time is over before."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return []
        return self.heard()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
