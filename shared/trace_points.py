"""A bounded ring of (ns, point, id) trace points, off unless asked for.

Rules: any thread; a hot path asks `trace.enabled` first, so that a ring that is off costs one
attribute read. An entry is one reference stored in a list, which no reader can see half of.
"""

import itertools
from typing import Final, NamedTuple

from shared.clock import now_ns


class TracePoint(NamedTuple):
    """One passage: when, where, and of which request or object."""

    ns: int
    point: str
    id: int


class TraceRing:
    """The last `capacity` trace points."""

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a trace ring needs room for at least one point, not {capacity}")
        self.capacity: Final = capacity
        self.enabled = False
        self._entries: list[TracePoint | None] = [None] * capacity
        self._counter = itertools.count()

    def record(self, point: str, id: int = 0) -> None:  # noqa: A002 - the field's name
        """Note that `id` passes `point` now; nothing is noted while the ring is off."""
        if self.enabled:
            entry = TracePoint(now_ns(), point, id)
            self._entries[next(self._counter) % self.capacity] = entry

    def last(self, n: int | None = None) -> list[TracePoint]:
        """Give the latest `n` points (all when None), oldest first."""
        points = sorted(entry for entry in self._entries if entry is not None)
        return points if n is None else points[max(0, len(points) - n) :]

    def clear(self) -> None:
        """Forget every point."""
        self._entries[:] = [None] * self.capacity


trace: Final = TraceRing()
