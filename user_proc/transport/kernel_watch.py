"""Whether the kernel behind this connection still lives: its pidfd, and the lifeline's other end.

The pidfd is opened between connecting and the kernel's Welcome, and the pid comes from the
socket's credentials: the Welcome shows that this very process was alive after the pidfd was
opened, so it cannot mean a stranger with the same pid.

Rules: any thread; `look` never waits, `look_for_the_end` may. The lifeline's owner closes it after
this.
Spec: pidfd_open(2), poll(2), socket(7) SO_PEERCRED.
"""

import os
import select
import socket
import struct
from typing import Final, NoReturn

from user_proc.errors import ConnectionClosed, KernelDied

_CREDENTIALS: Final = struct.Struct("iII")
_CLOSED: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL
_GONE: Final = _CLOSED | select.POLLRDHUP
_END_MS: Final = 5_000  # between the ends of two descriptors of a process that is gone


def peer_pid(lifeline: socket.socket) -> int:
    """Give the pid of the process that listens at the other end; 0 if this namespace hides it."""
    data = lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


class KernelWatch:
    """A look at one kernel, for every place that waits for it."""

    def __init__(self, name: str, lifeline: socket.socket) -> None:
        self.name: Final = name
        self.pid: Final = peer_pid(lifeline)
        self._lifeline: Final = lifeline
        try:
            self._pidfd = os.pidfd_open(self.pid) if self.pid else -1
        except ProcessLookupError:
            raise KernelDied(name) from None

    @property
    def pidfd(self) -> int:
        """The kernel's pidfd, -1 when there is none; readable when the kernel has ended."""
        return self._pidfd

    def look(self) -> None:
        """Raise KernelDied if the kernel ended or closed the session."""
        self._look(0)

    def look_for_the_end(self) -> NoReturn:
        """Raise why the completions have ended; the lifeline ends before them, or soon after."""
        self._look(_END_MS)
        raise KernelDied(self.name, "sends no more completions to this process")

    def _look(self, wait_ms: int) -> None:
        lifeline = self._lifeline.fileno()
        if lifeline < 0:
            raise ConnectionClosed(self.name)
        poll = select.poll()  # one object must not be polled by two threads at once
        poll.register(lifeline, _GONE)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        gone = [descriptor for descriptor, _ in poll.poll(wait_ms)]
        if self._pidfd in gone:
            raise KernelDied(self.name)
        if gone:  # a process that ends closes its files first, so it may be that too
            raise KernelDied(self.name, "has closed this session")

    def wait_for_the_end(self, seconds: float) -> bool:
        """Wait until the kernel has closed its end of the lifeline, or has ended.

        It says that it ends a session by shutting down one direction, which `look` sees. It
        closes the connection when it has run the session down, and only this counts here.
        """
        lifeline = self._lifeline.fileno()
        if lifeline < 0:
            return False
        poll = select.poll()
        poll.register(lifeline, _CLOSED)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(round(seconds * 1000)))

    def close(self) -> None:
        """Give the pidfd back."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
