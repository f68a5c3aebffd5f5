"""Figures of samples as they stand in a row: microseconds, the middle and how far the rest lies.

Rules: samples are integer nanoseconds of the machine's real clock.
"""

import math
from collections.abc import Sequence
from statistics import median


def in_us(nanoseconds: float) -> float:
    """Return microseconds with three digits behind the point."""
    return round(nanoseconds / 1_000, 3)


def rank(ordered: Sequence[int], percent: float) -> int:
    """Return the nearest-rank percentile of ordered samples."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(name: str, samples: Sequence[int]) -> dict[str, float]:
    """Return median and 10th to 90th percentile distance: the tails of few samples say nothing."""
    ordered = sorted(samples)
    return {
        f"{name}_us": in_us(median(ordered)),
        f"{name}_jitter_us": in_us(rank(ordered, 90) - rank(ordered, 10)),
    }


def listed(names: Sequence[str], none: str = "none") -> str:
    """Return names as a sentence has them."""
    if len(names) < 2:
        return names[0] if names else none
    return f"{', '.join(names[:-1])} and {names[-1]}"
