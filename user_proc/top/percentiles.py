"""Percentiles of counts by bucket: each is the longest time of the bucket it lies in."""

from collections.abc import Mapping
from typing import Any, Final

_SHARES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "longest": 1.0}
_NS_PER_US: Final = 1000


def request_percentiles(before: Mapping[int, int], after: Mapping[int, int]) -> dict[str, Any]:
    """Return how many requests were timed between two looks, and their times in microseconds.

    None for a time if there was no request.
    """
    counts = {up_to: count - before.get(up_to, 0) for up_to, count in sorted(after.items())}
    timed = sum(counts.values())
    return {"timed": timed, **{name: _at(counts, timed, _SHARES[name]) for name in _SHARES}}


def _at(counts: Mapping[int, int], total: int, share: float) -> float | None:
    passed = 0
    for up_to, count in counts.items():
        passed += count
        if count and passed >= share * total:
            return round(up_to / _NS_PER_US, 1)
    return None
