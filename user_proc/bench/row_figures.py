"""Rows of a run document compared: differences and ratios of their medians, with intervals.

The spread comes from a bootstrap: rounds are drawn with replacement, the same rounds for every
row, because rows of one round share their processes; then blocks within each round drawn. A
figure's interval holds the middle 95 % of what the draws give.

Rules: made from a document's rows alone; the draws are the same for the same document.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from user_proc.bench.row_plan import RowSpec, row_of
from user_proc.bench.sample_statistics import median

RESAMPLES: Final = 1_000
_SEED: Final = 20051118
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Tell whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def as_dict(self, places: int = 3) -> dict[str, float]:
        """Return the figure as JSON values."""
        return {
            "value": round(self.value, places),
            "low": round(self.low, places),
            "high": round(self.high, places),
        }


def interval_of(value: float, draws: Iterable[float]) -> Figure:
    """Return a figure with the interval its draws give."""
    ordered = sorted(draws)
    cut = int(len(ordered) * _TAIL)
    return Figure(value, ordered[cut], ordered[len(ordered) - 1 - cut])


@dataclass(frozen=True, slots=True)
class RowFigures:
    """A row's medians: of one request, and of the time per operation; and what draws make of them.

    Both are medians over blocks, so that a block in which the machine did something else does not
    decide.
    """

    row: Mapping[str, Any]
    p50_us: float
    each_us: float
    p50_draws: tuple[float, ...]
    each_draws: tuple[float, ...]

    @property
    def p50(self) -> Figure:
        """Return the median of one request."""
        return interval_of(self.p50_us, self.p50_draws)

    @property
    def each(self) -> Figure:
        """Return the time per operation: less than the other where several are in flight."""
        return interval_of(self.each_us, self.each_draws)


class Resampler:
    """Draws rounds, the same ones for every row, and blocks within them.

    Rows of different runs have different rounds: each run then has a resampler with its own seed.
    """

    def __init__(self, blocks_per_round: int, seed: int = 0) -> None:
        self._size = blocks_per_round
        self._random = random.Random(_SEED + seed)
        self._rounds: dict[int, list[list[int]]] = {}

    def draw(
        self, blocks: Sequence[float], judge: Callable[[Sequence[float]], float]
    ) -> tuple[float, ...]:
        """Return what `judge` makes of each resample of the blocks' figures."""
        size = self._size
        rounds = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        choices = self._random.choices
        return tuple(
            judge([value for number in drawn for value in choices(rounds[number], k=size)])
            for drawn in self._rounds_drawn(len(rounds))
        )

    def _rounds_drawn(self, count: int) -> list[list[int]]:
        if count not in self._rounds:
            self._rounds[count] = [
                self._random.choices(range(count), k=count) for _ in range(RESAMPLES)
            ]
        return self._rounds[count]


def draw_block_medians(
    rows: Iterable[Sequence[float]], blocks_per_round: int
) -> list[tuple[float, ...]]:
    """Return the medians of resampled blocks for each of some rows taken in the same rounds."""
    resampler = Resampler(blocks_per_round)
    return [resampler.draw(blocks, median) for blocks in rows]


class RowBook:
    """The rows of a document, found by their factors; overloaded ones are left out."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], blocks_per_round: int) -> None:
        self._rows = {row_of(dict(row)): row for row in rows if "overloaded" not in row["marks"]}
        self._figures: dict[RowSpec, RowFigures] = {}
        self._resampler = Resampler(blocks_per_round)

    def find(self, spec: RowSpec) -> RowFigures | None:
        """Return a row's figures, None when the run did not take it."""
        row = self._rows.get(spec)
        if row is None:
            return None
        if spec not in self._figures:
            self._figures[spec] = RowFigures(
                row,
                row["p50_us"],
                median(row["block_each_us"]),
                self._resampler.draw(row["block_p50_us"], median),
                self._resampler.draw(row["block_each_us"], median),
            )
        return self._figures[spec]

    def pair(self, first: RowSpec, second: RowSpec) -> tuple[RowFigures, RowFigures] | None:
        """Return two rows' figures if both were taken."""
        one, other = self.find(first), self.find(second)
        return None if one is None or other is None else (one, other)


def difference(first: RowFigures, second: RowFigures) -> Figure:
    """Return by how many microseconds the first row's median is larger."""
    return interval_of(
        first.p50_us - second.p50_us,
        (a - b for a, b in zip(first.p50_draws, second.p50_draws, strict=True)),
    )


def ratio(first: RowFigures, second: RowFigures) -> Figure:
    """Return how many times the second row's median the first one's is."""
    return interval_of(
        first.p50_us / second.p50_us,
        (a / b for a, b in zip(first.p50_draws, second.p50_draws, strict=True)),
    )


def difference_each(first: RowFigures, second: RowFigures) -> Figure:
    """Return by how many microseconds an operation of the first row costs more time."""
    return interval_of(
        first.each_us - second.each_us,
        (a - b for a, b in zip(first.each_draws, second.each_draws, strict=True)),
    )


def crossing(sizes: Sequence[int], gaps: Sequence[tuple[RowFigures, RowFigures]]) -> Figure:
    """Return the size from which the first row of each pair takes longer, up to the largest.

    Between two measured sizes the difference is taken to be a straight line. Zero stands for "at
    the smallest size already", infinity for "at no size measured".
    """
    value = _crosses(sizes, [one.p50_us - other.p50_us for one, other in gaps])
    draws = zip(
        *(zip(one.p50_draws, other.p50_draws, strict=True) for one, other in gaps), strict=True
    )
    return interval_of(value, (_crosses(sizes, [a - b for a, b in drawn]) for drawn in draws))


def _crosses(sizes: Sequence[int], gaps: Sequence[float]) -> float:
    if gaps[-1] <= 0:
        return float("inf")
    index = len(gaps) - 1
    while index and gaps[index - 1] > 0:
        index -= 1
    if not index:
        return 0.0
    below, above = gaps[index - 1], gaps[index]
    return sizes[index - 1] - below * (sizes[index] - sizes[index - 1]) / (above - below)
