"""Deadlines of timers and waits, earliest first.

Cancelled entries stay in the heap until they come up or outnumber the live ones.
"""

import heapq
from typing import Final, Protocol

_PURGE_SLACK: Final = 64


class Expiring(Protocol):
    """What a deadline calls."""

    def expire(self) -> None:
        """Act on the deadline; called at DISPATCH_LEVEL."""


class Deadline:
    """One entry; `target` is None once cancelled or expired."""

    __slots__ = ("order", "target", "when_ns")

    def __init__(self, when_ns: int, order: int, target: Expiring) -> None:
        self.when_ns = when_ns
        self.order = order
        self.target: Expiring | None = target

    def __lt__(self, other: "Deadline") -> bool:
        return (self.when_ns, self.order) < (other.when_ns, other.order)


class TimerQueue:
    """All deadlines of one processor."""

    __slots__ = ("_cancelled", "_order", "heap")

    def __init__(self) -> None:
        self.heap: list[Deadline] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self.heap) - self._cancelled

    def add(self, when_ns: int, target: Expiring) -> Deadline:
        """Enter a deadline; equal times expire in order of entry."""
        self._order += 1
        deadline = Deadline(when_ns, self._order, target)
        heapq.heappush(self.heap, deadline)
        return deadline

    def cancel(self, deadline: Deadline) -> bool:
        """Take a deadline out; False if it has expired or was cancelled before."""
        if deadline.target is None:
            return False
        deadline.target = None
        self._cancelled += 1
        if self._cancelled > len(self.heap) - self._cancelled + _PURGE_SLACK:
            self.heap = [entry for entry in self.heap if entry.target is not None]
            heapq.heapify(self.heap)
            self._cancelled = 0
        return True

    def next_ns(self) -> int | None:
        """Return the earliest deadline, None if there is none."""
        heap = self.heap
        while heap and heap[0].target is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0].when_ns if heap else None

    def pop_due(self, now_ns: int) -> Expiring | None:
        """Remove and return the earliest target that is due, None if none is."""
        if not self.heap or self.heap[0].when_ns > now_ns:  # so is every other, cancelled or not
            return None
        when = self.next_ns()
        if when is None or when > now_ns:
            return None
        deadline = heapq.heappop(self.heap)
        target = deadline.target
        deadline.target = None
        return target
