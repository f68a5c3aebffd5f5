"""Who keeps unfinished messages in the kernel: found by cutting connections, one process a time.

libzmq keeps the frames of a message until the last one is there, does not bound their number, and
tells nobody of them. Who sends without a pause is seen doing so. Who sends slowly, or has stopped,
is not: libzmq takes what comes at once. But what a connection holds is given back when it is cut.
So while there is too much, the processes lose their connections in turn; where much memory comes
back, there it was. The others connect again by themselves, and only a call that waits for its
answer at that moment is told (user_proc: ConnectionLost).

Rules: the gate's thread; `FinishedMessages.senders` is written by the dispatcher's, too.
Spec: zmq_msg_get(3), ZMQ_SRCFD.
"""

from collections.abc import Iterable
from typing import Final

_LEAST_BYTES: Final = 4 << 20  # given back by who held unfinished messages
_PART: Final = 16  # of all there is, likewise
_MORE_BYTES: Final = 64 << 20  # grown since all were tried: another round


class FinishedMessages:
    """The connections whose messages came in: a list while somebody asks, else None."""

    __slots__ = ("senders",)

    def __init__(self) -> None:
        self.senders: list[int] | None = None


class Suspects:
    """Who has been cut, and what that gave back."""

    def __init__(self) -> None:
        self._tried: set[int] = set()
        self._cut: int | None = None
        self._bytes_before = 0
        self._bytes_after_all = 0

    @property
    def has_been_cut(self) -> bool:
        """Whether it is time to see what the last cut gave back."""
        return self._cut is not None

    def holder(self, used: int) -> int | None:
        """Return the process that was cut last if it held much of what there was, else None."""
        pid, self._cut = self._cut, None
        given_back = self._bytes_before - used
        return pid if given_back > max(_LEAST_BYTES, self._bytes_before // _PART) else None

    def next(self, processes: Iterable[int], used: int) -> int | None:
        """Return whom to cut now; None when all have been, and it has not become much more."""
        for pid in processes:
            if pid not in self._tried:
                self._tried.add(pid)
                self._cut, self._bytes_before = pid, used
                self._bytes_after_all = used
                return pid
        if used > self._bytes_after_all + _MORE_BYTES:
            self._tried.clear()
        return None

    def clear(self) -> None:
        """Forget all: there is not too much any more."""
        self._tried.clear()
        self._cut = None
