"""A buddy allocator over MTT segments: runs of a power of two, aligned to their size.

There is no compaction: a table can have room and no run long enough.

Rules: any IRQL; does not wait.
Spec: Linux mthca_mr.c (mthca_buddy_alloc, mthca_buddy_free).
"""

from typing import Any, Final


class Buddy:
    """2^log_size units in one run at first; the lowest run that fits is split."""

    __slots__ = ("_free", "_used", "log_size")

    def __init__(self, log_size: int) -> None:
        self.log_size: Final = log_size
        self._free: list[dict[int, None]] = [{} for _ in range(log_size + 1)]
        self._free[log_size][0] = None
        self._used: dict[int, int] = {}

    @property
    def used(self) -> int:
        """How many units are given out."""
        return sum(1 << order for order in self._used.values())

    def allocate(self, order: int) -> int | None:
        """Return the first unit of a run of 2^order, None if there is none so long."""
        for found in range(order, self.log_size + 1):
            if self._free[found]:
                start = next(iter(self._free[found]))
                del self._free[found][start]
                break
        else:
            return None
        while found > order:
            found -= 1
            self._free[found][start + (1 << found)] = None
        self._used[start] = order
        return start

    def free(self, start: int) -> None:
        """Give a run back, joined with its free buddies; ValueError if it is not given out."""
        order = self._used.pop(start, None)
        if order is None:
            raise ValueError(f"no run in use starts at {start}")
        while order < self.log_size:
            buddy = start ^ (1 << order)
            if buddy not in self._free[order]:
                break
            del self._free[order][buddy]
            start &= ~(1 << order)
            order += 1
        self._free[order][start] = None

    def inspect(self) -> dict[str, Any]:
        """Return units, used units and the longest free run."""
        longest = max((order for order, runs in enumerate(self._free) if runs), default=-1)
        return {
            "size": 1 << self.log_size,
            "used": self.used,
            "runs": len(self._used),
            "longest_free": 1 << longest if longest >= 0 else 0,
        }
