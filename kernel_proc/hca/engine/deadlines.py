"""When something must happen although nobody rings: RNR delays, transport timeouts.

A queue pair has one deadline at most; one that was moved or taken away stays in the heap and is
passed over when it comes up.
"""

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_proc.hca.qp_table import QueuePair


_FEW: Final = 64


class Deadlines:
    """The deadlines of requesters, earliest first."""

    def __init__(self) -> None:
        #: Not empty: there may be a deadline.
        self.heap: Final[list[tuple[int, int, QueuePair]]] = []
        self._count = 0
        self._crowded = _FEW

    def set(self, qp: "QueuePair", when_ns: int) -> None:
        """Wake a queue pair's requester at a time; it replaces the one set before."""
        qp.outgoing.deadline_ns = when_ns
        self._count += 1
        if len(self.heap) >= self._crowded:
            self._forget_stale()
        heapq.heappush(self.heap, (when_ns, self._count, qp))

    def next_ns(self) -> int | None:
        """Return the earliest deadline that still holds."""
        heap = self.heap
        while heap:
            when, _, qp = heap[0]
            if qp.outgoing.deadline_ns == when:
                return when
            heapq.heappop(heap)
        return None

    def due(self, now_ns: int) -> "list[QueuePair]":
        """Take those whose time has come."""
        found = []
        while (when := self.next_ns()) is not None and when <= now_ns:
            qp = heapq.heappop(self.heap)[2]
            qp.outgoing.deadline_ns = 0
            found.append(qp)
        return found

    def _forget_stale(self) -> None:
        """Drop what holds no more, so that queue pairs that are gone are not kept."""
        self.heap[:] = [entry for entry in self.heap if entry[2].outgoing.deadline_ns == entry[0]]
        heapq.heapify(self.heap)
        self._crowded = max(_FEW, 2 * len(self.heap))

    def clear(self) -> None:
        """Forget everything."""
        self.heap.clear()
