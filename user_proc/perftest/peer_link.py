"""The TCP connection by which the two sides of a tool meet: lines of JSON, on loopback.

Parameters, addresses and results pass here, never the messages that are measured. Its end before
the run is over is the death of the other side, which every waiting loop looks for.

Rules: main thread. What arrives is checked: a stranger may have connected.
Spec: POLLRDHUP in poll(2).
"""

import contextlib
import json
import select
import socket
from collections.abc import Mapping
from typing import Any, Final, Self

from user_proc.perftest.tool_errors import PeerGone, ToolFailed

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 18515

_LONGEST_LINE: Final = 1 << 20
_LONGEST_REASON: Final = 1000
_CONNECT_SECONDS: Final = 5.0
_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


def listen(port: int) -> socket.socket:
    """Open the port a client connects to; ToolFailed if another program has it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise ToolFailed(
            f"cannot listen on {LOOPBACK}:{port} ({error.strerror}): choose another port with -p"
        ) from error
    return listener


def connect(host: str, port: int) -> "PeerLink":
    """Connect to a server of this machine."""
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise ToolFailed(f"the host {host!r} is not known") from error
    if not address.startswith("127."):
        raise ToolFailed(
            f"{host} is another machine: both sides share one kernel, so the host is {LOOPBACK}"
        )
    try:
        made = socket.create_connection((address, port), _CONNECT_SECONDS)
    except OSError as error:
        raise ToolFailed(
            f"no server answers at {host}:{port}: start the same tool there first, without a host"
        ) from error
    return PeerLink(made)


class PeerLink:
    """One side of the connection; a context manager."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: Final = connection
        self._data = bytearray()
        self._poll: Final = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLRDHUP)

    def fileno(self) -> int:
        """Give the descriptor, for a poll together with others."""
        return self._socket.fileno()

    def send(self, **fields: object) -> None:
        """Send a message; PeerGone if nobody is there."""
        try:
            self._socket.sendall(json.dumps(fields).encode() + b"\n")
        except OSError as error:
            raise PeerGone(self._last_words()) from error

    def receive(self) -> Mapping[str, Any]:
        """Wait for the next message; PeerGone if there will be none, or it is an error."""
        while b"\n" not in self._data:
            self._fill()
        line, _, rest = bytes(self._data).partition(b"\n")
        self._data[:] = rest
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ToolFailed("what connected is not this tool: it does not speak JSON") from error
        if not isinstance(message, dict):
            raise ToolFailed("what connected is not this tool: it sends no objects")
        if "error" in message:
            raise PeerGone(" ".join(str(message["error"]).split())[:_LONGEST_REASON])
        return message

    def meet(self, **fields: object) -> Mapping[str, Any]:
        """Exchange messages: whoever leaves knows that the other side has come so far."""
        self.send(**fields)
        return self.receive()

    def look(self) -> bool:
        """Tell whether a message waits; PeerGone if the other side has ended. Waits for nothing."""
        return self.look_within(0.0)

    def look_within(self, seconds: float) -> bool:
        """Look for at most so long."""
        events = self._poll.poll(seconds * 1000)
        if events and events[0][1] & _GONE:
            raise PeerGone(self._last_words())
        return bool(events) or b"\n" in self._data

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the other side has closed its end, for so long at most."""
        with contextlib.suppress(ToolFailed):
            while self.look_within(seconds):
                self._fill()

    def close(self, error: str = "") -> None:
        """Close it; with an error the other side is told why."""
        if error:
            with contextlib.suppress(OSError):
                self._socket.setblocking(False)
                self._socket.sendall(json.dumps({"error": error}).encode() + b"\n")
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close("" if error is None or isinstance(error, PeerGone) else _words(error))

    def _fill(self) -> None:
        if len(self._data) > _LONGEST_LINE:
            raise ToolFailed("what connected is not this tool: its line has no end")
        try:
            data = self._socket.recv(65536)
        except OSError as error:
            raise PeerGone from error
        if not data:
            raise PeerGone
        self._data += data

    def _last_words(self) -> str:
        """Give the reason the other side has sent before its end, if it has."""
        try:
            while True:
                self.receive()
        except PeerGone as gone:
            return gone.reason
        except ToolFailed:
            return ""


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, Exception) else "it was interrupted"


def field(message: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Take a field of a message, which must be of that type."""
    value = message.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ToolFailed(f"the other side speaks another version: {name!r} is missing")
    return value
