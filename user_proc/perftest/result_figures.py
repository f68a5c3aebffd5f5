"""From stamps to figures, by perftest's conventions.

Spec: linux-rdma/perftest, perftest_parameters.c (print_report_lat, print_report_bw). The standard
deviation is not truncated to whole units, as it is there.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_US: Final = 1000.0
_DROPPED: Final = 2  # of the largest samples
_MIB: Final = float(1 << 20)
_NS_PER_S: Final = 1e9

#: Posts by their time, and completions: how many messages were done at which time.
Completed = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Latency:
    """One row; times in microseconds, already halved if the tool halves them."""

    size: int
    iterations: int
    least: float
    most: float
    typical: float
    average: float
    deviation: float
    percentile_99: float
    percentile_999: float


@dataclass(frozen=True, slots=True)
class TimedLatency:
    """One row of a run of given duration."""

    size: int
    iterations: int
    average: float
    per_second: float
    cpu: float | None = None  # percent of all processors, if asked for


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One row; `peak` is None where it was not looked for."""

    size: int
    iterations: int
    peak: float | None  # messages a second, as the next one
    average: float
    cpu: float | None = None  # percent of all processors, if asked for

    def rate(self, messages: float, gigabits: bool) -> float:
        """Give MiB/s or Gb/s."""
        return messages * self.size * 8 / 1e9 if gigabits else messages * self.size / _MIB

    def with_other(self, other: "Bandwidth") -> "Bandwidth":
        """Give both directions together; the iterations are those of one."""
        peak = None if self.peak is None or other.peak is None else self.peak + other.peak
        return replace(self, peak=peak, average=self.average + other.average)


def samples_of(stamps: Sequence[int], halve: bool) -> list[float]:
    """Give the samples in microseconds, in order."""
    unit = _US * (2 if halve else 1)
    return [(later - earlier) / unit for earlier, later in itertools.pairwise(stamps)]


def latency_of(size: int, samples: Sequence[float]) -> Latency:
    """Reduce at least four samples to a row."""
    ordered = sorted(samples)
    count = len(ordered) - _DROPPED
    kept = ordered[:count]
    average = math.fsum(kept) / count
    return Latency(
        size,
        len(samples) + 1,
        ordered[0],
        ordered[count],
        statistics.median(kept),
        average,
        math.sqrt(math.fsum((one - average) ** 2 for one in kept) / count),
        ordered[math.ceil(count * 0.99)],
        ordered[math.ceil(count * 0.999)],
    )


def rate_of(messages: int, nanoseconds: int) -> float:
    """Give messages a second."""
    return messages * _NS_PER_S / max(nanoseconds, 1)


def peak_of(posts: Sequence[int], completed: Completed) -> float:
    """Give the best rate from any post to any later completion, in messages a second.

    The pair with the largest ratio is found without trying all: for a rate r, the pair that gains
    most over r is found in one pass, and its own rate is the next r; it ends when none gains.
    """
    rate = 0.0
    while True:
        better = _best_gain(posts, completed, rate)
        if better <= rate * (1 + 1e-12):
            return rate * _NS_PER_S
        rate = better


def _best_gain(posts: Sequence[int], completed: Completed, rate: float) -> float:
    """Give the rate of the pair that gains most over a rate, both in messages a nanosecond."""
    start = posts[0]
    best, found = -math.inf, rate
    least, least_post, number = math.inf, 0, 0
    for count, when in completed:
        while number < count:  # the posts before this completion
            value = number - rate * (posts[number] - start)
            if value < least:
                least, least_post = value, number
            number += 1
        gain = count - rate * (when - start) - least
        if gain > best and when > posts[least_post]:
            best = gain
            found = (count - least_post) / (when - posts[least_post])
    return found
