"""Rows of a run document compared: differences and ratios of their medians, with intervals.

Rows of one family had their blocks taken in turn, so they are compared block by block: the figure
is the median of the differences of blocks next to each other, and what the machine did to both is
in none of them. User rows of different families are set right by their floors, if they have the
same: from each block goes by how much the echo beside it was slower than in the whole run.

The spread comes from a bootstrap: rounds are drawn with replacement, the same rounds for every
row, because rows of one round share their processes; then blocks within each round drawn. A
figure's interval holds the middle 95 % of what the draws give.

Rules: made from a document's rows alone; the draws are the same for the same document.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub, truediv
from typing import Any, Final

from user_proc.bench.full_plan import family_of
from user_proc.bench.row_plan import FloorSpec, RowSpec, row_of
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
class Gap:
    """A difference or ratio of two rows, and what each draw makes of it."""

    figure: Figure
    draws: tuple[float, ...]


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


def paired_difference(
    first: Sequence[float], second: Sequence[float], blocks_per_round: int
) -> Figure:
    """Return by how much blocks of one kind exceed those of another taken next to them."""
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    return interval_of(median(gaps), Resampler(blocks_per_round).draw(gaps, median))


class RowBook:
    """The rows of a document, found by their factors; overloaded ones are left out."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], blocks_per_round: int) -> None:
        self._rows = {row_of(dict(row)): row for row in rows if "overloaded" not in row["marks"]}
        self._floors = _floor_medians(self._rows)
        self._resampler = Resampler(blocks_per_round)

    def has(self, *specs: RowSpec) -> bool:
        """Tell whether the run took all of these rows."""
        return all(spec in self._rows for spec in specs)

    def p50_us(self, spec: RowSpec) -> float:
        """Return the judged figure of a row."""
        return float(self._rows[spec]["p50_us"])

    def p50(self, spec: RowSpec) -> Figure:
        """Return the judged figure of a row with its interval."""
        draws = self._resampler.draw(self._rows[spec]["block_p50_us"], median)
        return interval_of(self.p50_us(spec), draws)

    def each(self, spec: RowSpec) -> Figure:
        """Return a row's time per operation: less than the other where several are in flight."""
        blocks = self._rows[spec]["block_each_us"]
        return interval_of(median(blocks), self._resampler.draw(blocks, median))

    def difference(self, first: RowSpec, second: RowSpec) -> Gap:
        """Return by how many microseconds the first row takes longer."""
        return self._gap(first, second, "block_p50_us", sub)

    def difference_each(self, first: RowSpec, second: RowSpec) -> Gap:
        """Return by how many microseconds an operation of the first row costs more time."""
        return self._gap(first, second, "block_each_us", sub)

    def ratio(self, first: RowSpec, second: RowSpec) -> Gap:
        """Return how many times the second row's time the first one's is."""
        return self._gap(first, second, "block_p50_us", truediv)

    def _gap(
        self,
        first: RowSpec,
        second: RowSpec,
        name: str,
        by: Callable[[float, float], float],
    ) -> Gap:
        one, other = self._blocks(first, name), self._blocks(second, name)
        if family_of(first) == family_of(second):
            gaps = [by(a, b) for a, b in zip(one, other, strict=True)]
            draws = self._resampler.draw(gaps, median)
            return Gap(interval_of(median(gaps), draws), draws)
        if first.client == "user" and first.floor == second.floor and name == "block_p50_us":
            one, other = self._set_right(first, one), self._set_right(second, other)
        pairs = zip(*(self._resampler.draw(row, median) for row in (one, other)), strict=True)
        draws = tuple(by(a, b) for a, b in pairs)
        return Gap(interval_of(by(median(one), median(other)), draws), draws)

    def _blocks(self, spec: RowSpec, name: str) -> list[float]:
        blocks: list[float] = self._rows[spec][name]
        return blocks

    def _set_right(self, spec: RowSpec, blocks: Sequence[float]) -> list[float]:
        """Return a row's blocks less what their floors say the machine did meanwhile."""
        usual = self._floors[spec.floor]
        floors = self._rows[spec]["floor_block_p50_us"]
        return [block - (floor - usual) for block, floor in zip(blocks, floors, strict=True)]


def _floor_medians(rows: Mapping[RowSpec, Mapping[str, Any]]) -> dict[FloorSpec, float]:
    """Return the median over the whole run of each floor the rows stand beside."""
    blocks: dict[FloorSpec, list[float]] = {}
    for spec, row in rows.items():
        blocks.setdefault(spec.floor, []).extend(row["floor_block_p50_us"])
    return {floor: median(values) for floor, values in blocks.items()}


def crossing(sizes: Sequence[int], gaps: Sequence[Gap]) -> Figure:
    """Return the size from which the differences are above zero, up to the largest.

    Between two measured sizes the difference is taken to be a straight line. Zero stands for "at
    the smallest size already", infinity for "at no size measured".
    """
    value = _crosses(sizes, [gap.figure.value for gap in gaps])
    draws = zip(*(gap.draws for gap in gaps), strict=True)
    return interval_of(value, (_crosses(sizes, drawn) for drawn in draws))


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
