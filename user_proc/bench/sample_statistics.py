"""Figures from samples: percentiles that know when they rest on too little, and their spread.

Rules: samples are integer nanoseconds; nothing here runs while something is being measured.
A percentile that rests on fewer than ten samples is None: it would be one sample's opinion.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SAMPLES_BEHIND_A_PERCENTILE: Final = 10
_HIGHEST_NS: Final = 60_000_000_000
_HISTOGRAM_DIGITS: Final = 3


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("no samples, no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def percentile(ordered: Sequence[int], percent: float) -> int | None:
    """Return the nearest-rank percentile of ordered samples, None when too few lie beyond it."""
    count = len(ordered)
    beyond = count * (100.0 - percent) / 100.0
    # The small allowance keeps 10,000 samples enough for 99.9 in binary arithmetic.
    if beyond + 1e-6 < SAMPLES_BEHIND_A_PERCENTILE:
        return None
    rank = max(1, math.ceil(count * percent / 100.0 - 1e-9))
    return ordered[rank - 1]


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Return the median distance from the median: a spread that one outlier does not move."""
    centre = median(values)
    return median([abs(value - centre) for value in values])


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval that holds the true median, from the order of the values alone.

    The ranks come from the binomial distribution, so no shape of the values is assumed.
    With too few values for that confidence it is the whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        raise ValueError("no samples, no interval")
    allowed = (1.0 - confidence) / 2.0
    cumulative, rank = 0.0, 0
    for below in range(count // 2):
        cumulative += math.comb(count, below) / 2.0**count
        if cumulative > allowed:
            break
        rank = below
    return ordered[rank], ordered[count - 1 - rank]


def moved_by(values: Sequence[float]) -> float:
    """Return by which part the median of the later half differs from that of the earlier half."""
    half = len(values) // 2
    if not half:
        return 0.0
    earlier = median(values[:half])
    return abs(median(values[-half:]) - earlier) / earlier if earlier else 0.0


@dataclass(frozen=True, slots=True)
class BlockSamples:
    """The samples of one row or floor, block by block, in the order they were taken."""

    blocks: "tuple[array[int], ...]"

    @property
    def count(self) -> int:
        """Return how many samples there are in all blocks."""
        return sum(len(block) for block in self.blocks)

    @property
    def total_ns(self) -> int:
        """Return the time of all samples together."""
        return sum(sum(block) for block in self.blocks)

    def ordered(self) -> "array[int]":
        """Return all samples in ascending order."""
        return array("Q", sorted(sample for block in self.blocks for sample in block))

    def block_medians(self) -> list[float]:
        """Return the median of each block that has samples."""
        return [median(block) for block in self.blocks if len(block)]

    def judged_ns(self) -> float:
        """Return the judged figure: the median over blocks of the block medians.

        It is at most the 75th percentile of all samples when blocks are of one size, so it
        stands in order before the 90th.
        """
        return median(self.block_medians())

    def histogram(self) -> tuple[str, int]:
        """Return an HDR histogram of all samples in base64, and how many did not fit in it."""
        from hdrh.histogram import HdrHistogram  # only the end of a run pays for it

        histogram = HdrHistogram(1, _HIGHEST_NS, _HISTOGRAM_DIGITS)
        dropped = 0
        for block in self.blocks:
            for sample in block:
                dropped += not histogram.record_value(max(sample, 1))
        encoded: bytes = histogram.encode()
        return encoded.decode("ascii"), dropped
