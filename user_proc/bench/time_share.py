"""Divides the time a run may take among the blocks it still has to do.

In a closed loop most blocks need far less than an equal share, so each may take a few shares; one
that does takes it from all later ones alike, and the whole still keeps its limit.
"""

from typing import Final

from shared.clock import now_ns

_LEAST_NS: Final = 1_000_000
_LEAST_OPERATIONS: Final = 5


class TimeShare:
    """The time left and the blocks left; a block may take `shares_at_most` equal shares."""

    def __init__(self, limit_ns: int, blocks: int, shares_at_most: int) -> None:
        self._deadline_ns = now_ns() + limit_ns
        self._blocks = blocks
        self._shares_at_most = shares_at_most

    def next_block_ns(self) -> int:
        """Return how long the next block may take, and count it as done."""
        share = self._share_ns()
        self._blocks -= 1
        return max(_LEAST_NS, share)

    def warm_up_ns(self) -> int:
        """Return how long a warm-up may take: as long as the next block, without being one."""
        return max(_LEAST_NS, self._share_ns())

    def _share_ns(self) -> int:
        left = max(0, self._deadline_ns - now_ns())
        return min(left, self._shares_at_most * left // max(1, self._blocks))


def turns(number: int) -> tuple[str, str]:
    """Name floor and row in the order of a turn: it alternates, so that drift favours neither."""
    return ("floor", "row") if number % 2 == 0 else ("row", "floor")


def fitting_count(wanted: int, operation_ns: float, limit_ns: int) -> int:
    """Return how many operations of that length fit into the limit: at least five."""
    fitting = int(limit_ns / operation_ns) if operation_ns > 0 else wanted
    return max(min(wanted, _LEAST_OPERATIONS), min(wanted, fitting))
