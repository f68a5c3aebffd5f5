"""The launcher's end of the ranks' connections: a Unix socket, one exchange behind it.

A connection belongs to the rank whose token it shows first. Whatever else comes, a false frame, a
second request before the answer, an answer that is not read, closes that connection and nothing
else; a rank that ends takes its connections with it.

Rules: the launcher's one thread; nothing here blocks.
Spec: unix(7), SO_PEERCRED.
"""

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
from pathlib import Path
from typing import Final

from shared.clock import now_ns
from user_proc.groups.exchange import Exchange, RankId, Replies, require_hello
from user_proc.groups.rank_wire import (
    OK,
    PROTOCOL,
    Answer,
    FrameError,
    FrameReader,
    Hello,
    decode,
    encode,
)

CONNECTIONS_PER_RANK: Final = 4
SILENT_CONNECTIONS: Final = 64
SILENT_NS: Final = 10_000_000_000

_RECEIVE: Final = 64 * 1024
_BACKLOG: Final = 512
_MOST_ACCEPTS: Final = 32  # at a time
_PEER: Final = struct.Struct("iII")


class _Connection:
    """One connection; `who` is None until it has said so."""

    def __init__(self, number: int, link: socket.socket) -> None:
        self.number = number
        self.link = link
        self.reader = FrameReader()
        self.who: RankId | None = None
        self.since_ns = now_ns()


class ExchangeServer:
    """Listens for ranks, and carries their requests to the exchange."""

    def __init__(self, path: Path, exchange: Exchange, selector: selectors.BaseSelector) -> None:
        self.path = path
        self._exchange = exchange
        self._selector = selector
        self._tokens: dict[RankId, str] = {}
        self._connections: dict[int, _Connection] = {}
        self._numbers = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(path))
            self._socket.listen(_BACKLOG)
            selector.register(self._socket, selectors.EVENT_READ, self._accept)
        except BaseException:
            self._socket.close()
            raise

    def new_token(self, who: RankId) -> str:
        """Return what the next process of a rank proves itself by; the last one is void."""
        self.cut_off(who)
        self._exchange.begin_again(who)
        self._tokens[who] = secrets.token_hex(16)
        return self._tokens[who]

    def cut_off(self, who: RankId) -> None:
        """Close the connections of a rank that has ended."""
        self._tokens.pop(who, None)
        for connection in list(self._connections.values()):
            if connection.who == who:
                self._close(connection)

    def leave(self, who: RankId) -> None:
        """Close the connections of a rank that has ended for good, and tell those who wait."""
        self.cut_off(who)
        self._send_all(self._exchange.leave(who))

    def expire(self) -> None:
        """Answer what has waited too long; close what has said nothing."""
        now = now_ns()
        self._send_all(self._exchange.expire(now))
        for connection in list(self._connections.values()):
            if connection.who is None and now - connection.since_ns > SILENT_NS:
                self._close(connection)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` has to be called next."""
        silent = [
            connection.since_ns + SILENT_NS
            for connection in self._connections.values()
            if connection.who is None
        ]
        waiting = self._exchange.next_deadline_ns()
        return min(silent + ([] if waiting is None else [waiting]), default=None)

    def close(self) -> None:
        """Close everything; the socket's name goes, too."""
        for connection in list(self._connections.values()):
            self._close(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._socket)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    # What comes

    def _accept(self) -> None:
        for _ in range(_MOST_ACCEPTS):
            try:
                link, _ = self._socket.accept()
            except OSError:  # nobody there, gone again, or no descriptor left
                return
            if self._is_stranger(link):
                link.close()
                continue
            link.setblocking(False)
            self._numbers += 1
            connection = _Connection(self._numbers, link)
            self._connections[connection.number] = connection
            self._selector.register(
                link, selectors.EVENT_READ, lambda one=connection: self._receive(one)
            )

    def _is_stranger(self, link: socket.socket) -> bool:
        """Tell whether it is another user's, or one silent connection too many."""
        peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        silent = sum(1 for one in self._connections.values() if one.who is None)
        return _PEER.unpack(peer)[1] != os.geteuid() or silent >= SILENT_CONNECTIONS

    def _receive(self, connection: _Connection) -> None:
        """Take what a connection has sent; close it for anything that is wrong with it."""
        if connection.number not in self._connections:
            return
        try:
            data = connection.link.recv(_RECEIVE)
            if not data:
                self._close(connection)
                return
            for body in connection.reader.feed(data):
                self._take(connection, body)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # FrameError is one
            self._close(connection)

    def _take(self, connection: _Connection, body: bytes) -> None:
        message = decode(body)
        if connection.who is None:
            connection.who = self._identify(require_hello(message))
            self._send(connection, Answer(OK, b"", ""))
        elif self._exchange.is_waiting(connection.number):
            raise FrameError("a request came before the one before it was answered")
        else:
            asked = self._exchange.ask(connection.number, connection.who, message, now_ns())
            self._send_all(asked)

    def _identify(self, hello: Hello) -> RankId:
        who = RankId(hello.group, hello.rank)
        token = self._tokens.get(who, "")
        known = token and hmac.compare_digest(token.encode(), hello.token.encode())
        if hello.version != PROTOCOL or not known:
            raise FrameError("nobody of this launch")
        mine = sum(1 for one in self._connections.values() if one.who == who)
        if mine >= CONNECTIONS_PER_RANK:
            raise FrameError("more connections than a rank may have")
        return who

    # What goes

    def _send_all(self, replies: Replies) -> None:
        for number, answer in replies:
            connection = self._connections.get(number)
            if connection is not None:
                self._send(connection, answer)

    def _send(self, connection: _Connection, answer: Answer) -> None:
        """Send an answer; who does not read them until the buffer is full is closed."""
        frame = encode(answer)
        try:
            if connection.link.send(frame) != len(frame):
                self._close(connection)
        except OSError:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._exchange.forget(connection.number)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link)
        connection.link.close()
