"""Who keeps unfinished messages in the kernel: found by cutting connections, one process a time.

libzmq keeps the frames of a message until the last one is there, does not bound their number, and
tells nobody of them. But what a connection holds is given back when it is cut. So while there is
too much, the processes lose their connections in turn, who is seen sending without a pause before
the silent; where much memory comes back, there it was. The others connect again by themselves, and
only a call that waits for its answer at that moment is told (user_proc: ConnectionLost).

To be seen sending proves nothing: on a busy machine libzmq's thread leaves everybody's bytes lying.
Nor does memory that somebody else can have given back: whose connection ended meanwhile, or who
finished a message of many frames. Then nobody is the holder, and the round goes on.

Rules: the gate's thread; the dispatcher writes `FinishedMessages`, too.
Spec: zmq_msg_get(3), ZMQ_SRCFD.
"""

from collections.abc import Iterable
from typing import Final

_LEAST_BYTES: Final = 4 << 20  # given back by who held unfinished messages
_PART: Final = 16  # of all there is, likewise
_MORE_BYTES: Final = 64 << 20  # grown since all were tried: another round


class FinishedMessages:
    """What the dispatcher tells of messages that came in.

    `senders`: their connections, a list while somebody asks, else None. `long_ones` counts
    messages with more frames than any may have, twice each: it is odd while one is being skipped.
    """

    __slots__ = ("long_ones", "senders")

    def __init__(self) -> None:
        self.senders: list[int] | None = None
        self.long_ones = 0


class Suspects:
    """Who has been cut, and what that gave back."""

    def __init__(self) -> None:
        self._tried: set[int] = set()
        self._cut: int | None = None
        self._others: set[int] = set()
        self._has_other_cause = False
        self._long_before = 0
        self._bytes_before = 0
        self._bytes_after_all = 0

    @property
    def has_been_cut(self) -> bool:
        """Whether it is time to see what the last cut gave back."""
        return self._cut is not None

    def ended(self, descriptor: int) -> None:
        """Note the end of a connection: one of the others may have held what comes back."""
        if descriptor in self._others:
            self._others.remove(descriptor)
            self._has_other_cause = True

    def holder(self, used: int, long_ones: int) -> int | None:
        """Return the process that was cut last if it alone held much of what there was."""
        pid, self._cut = self._cut, None
        if self._has_other_cause or long_ones != self._long_before or long_ones & 1:
            return None
        given_back = self._bytes_before - used
        return pid if given_back > max(_LEAST_BYTES, self._bytes_before // _PART) else None

    def next(
        self, owners: dict[int, int], first: Iterable[int], used: int, long_ones: int
    ) -> int | None:
        """Return whom to cut now; None when all have been, and it has not become much more.

        `owners` are processes by connection; the latest is tried first, but for those in `first`.
        """
        for pid in (*first, *reversed(owners.values())):
            if pid not in self._tried:
                self._tried.add(pid)
                self._cut, self._bytes_before, self._long_before = pid, used, long_ones
                self._others = {one for one, owner in owners.items() if owner != pid}
                self._has_other_cause = False
                self._bytes_after_all = used
                return pid
        if used > self._bytes_after_all + _MORE_BYTES:
            self._tried.clear()
        return None

    def clear(self) -> None:
        """Forget all: there is not too much any more."""
        self._tried.clear()
        self._cut = None
