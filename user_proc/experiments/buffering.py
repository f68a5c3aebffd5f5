"""Experiment `buffering`: at which size do two copies cost more than reaching the caller's memory?

METHOD_BUFFERED is compared with METHOD_NEITHER, which moves the same bytes both ways, in an arena
and in private memory. The two direct methods move them one way, and stand beside for reading only.

Rules: a method wins at a size if the interval of the difference leaves zero out.
Spec: docs/transfer-methods.md; docs/benchmark.md (how differences and crossings are taken).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from user_proc.bench.full_plan import BASE, KIB
from user_proc.bench.row_figures import Figure, Gap, RowBook, crossing
from user_proc.bench.row_plan import Memory, Method, RowSpec
from user_proc.bench.wording import about_size, payload_text
from user_proc.experiments.experiment import Progress, Row
from user_proc.experiments.row_run import KernelOptions, book_of, take_rows

MEMORIES: Final[tuple[Memory, ...]] = ("arena", "private")
METHODS: Final[tuple[Method, ...]] = ("buffered", "neither")
QUICK_SIZES: Final = (64, 4 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)
SIZES: Final = (64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)
_DIRECT: Final[tuple[Method, ...]] = ("in_direct", "out_direct")
_OPEN: Final = "open"


def _spec(memory: Memory, method: Method, size: int) -> RowSpec:
    return replace(BASE, memory=memory, method=method, payload=size, completion="inline")


class Buffering:
    """The experiment; `sizes` replaces those of a quick or full run."""

    name = "buffering"
    question = "Which transfer method wins at which size, in an arena and in private memory?"

    def __init__(
        self,
        sizes: Sequence[int] | None = None,
        memories: Sequence[Memory] = MEMORIES,
        options: KernelOptions | None = None,
    ) -> None:
        self._sizes = sizes
        self._memories = memories
        self._options = options or {}

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure every method at every size; `wins` tells against the other of its kind."""
        sizes = self._sizes or (QUICK_SIZES if quick else SIZES)
        methods = METHODS if quick else (*METHODS, *_DIRECT)
        plan = [
            _spec(memory, method, size)
            for memory in self._memories
            for size in sizes
            for method in methods
        ]
        rows = take_rows(plan, quick, progress, self._options)
        book = book_of(rows)
        for row in rows:
            row["wins"] = _wins(book, row)
        return rows

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say who wins where, and from which size mapping does."""
        book = book_of(rows)
        sentences = []
        for memory in dict.fromkeys(row["memory"] for row in rows):
            sizes = sorted({row["payload"] for row in rows if row["memory"] == memory})
            gaps = [_gap(book, memory, size) for size in sizes]
            winners = [
                f"{_winner(gap.figure)} at {payload_text(size)}"
                for size, gap in zip(sizes, gaps, strict=True)
            ]
            sentences.append(
                f"{memory.capitalize()}: {', '.join(winners)}; {_crossing(sizes, gaps)}."
            )
        return " ".join(sentences)


def _gap(book: RowBook, memory: Memory, size: int) -> Gap:
    """Return by how much buffering takes longer."""
    return book.difference(_spec(memory, "buffered", size), _spec(memory, "neither", size))


def _winner(figure: Figure) -> str:
    if not figure.shown:
        return _OPEN
    return "neither" if figure.value > 0 else "buffered"


def _wins(book: RowBook, row: Row) -> str:
    if row["method"] not in METHODS:
        return "one way"
    winner = _winner(_gap(book, row["memory"], row["payload"]).figure)
    return _OPEN if winner == _OPEN else "yes" if winner == row["method"] else "no"


def _crossing(sizes: Sequence[int], gaps: Sequence[Gap]) -> str:
    """Say from which size mapping wins; infinity means at none that was measured."""
    if len(sizes) < 2:
        return "one size shows no crossing"
    found = crossing(sizes, gaps)
    if found.low == math.inf:
        return f"mapping wins at no size up to {payload_text(sizes[-1])}"
    low, high = (_bound(value, sizes) for value in (found.low, found.high))
    value = _bound(found.value, sizes)
    return f"mapping wins from {value} on (95 % interval {low} to {high})"


def _bound(value: float, sizes: Sequence[int]) -> str:
    if value == math.inf:
        return f"above {payload_text(sizes[-1])}"
    return f"{payload_text(sizes[0])} or less" if value <= sizes[0] else about_size(value)
