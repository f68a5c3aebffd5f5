"""What was measured of a row or a floor, and its form in the run document.

Rules: p50 is the judged figure, the median over blocks of the block medians; the other
percentiles are of all samples together. Times are in microseconds, as their names say.
`elapsed_us` is the time of all blocks together: the sum of the samples, unless several requests
were in flight at a time or an open loop waited between them.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.sample_statistics import (
    BlockSamples,
    median_absolute_deviation,
    median_interval,
    moved_by,
    percentile,
)

STEADY: Final = 0.10
_BEHIND_AT_MOST: Final = 0.05
CONVENTION: Final = "round_trip"
_PERCENTILES: Final = (
    ("p90_us", 90.0),
    ("p99_us", 99.0),
    ("p999_us", 99.9),
    ("p9999_us", 99.99),
    ("p99999_us", 99.999),
)


def in_us(nanoseconds: float) -> float:
    """Return nanoseconds as microseconds, three places."""
    return round(nanoseconds / 1000.0, 3)


def known_us(nanoseconds: float | None) -> float | None:
    """Return nanoseconds as microseconds, None as it is."""
    return None if nanoseconds is None else in_us(nanoseconds)


@dataclass(slots=True)
class Usage:
    """What a number of operations used beside time; sums over blocks."""

    operations: int = 0
    copies: int = 0
    bytes_copied: int = 0
    wire_bytes: int = 0
    cpu_user_ns: int = 0
    cpu_user_system_ns: int = 0
    cpu_kernel_ns: int = 0
    cpu_kernel_system_ns: int = 0

    def add(self, other: "Usage") -> None:
        """Add what another block used."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def per_operation(self, name: str) -> float:
        """Return the named sum divided by the operations it was for.

        Processor time is what remains after the cost of reading it; that may be less than none.
        """
        total: int = max(0, getattr(self, name))
        return total / self.operations if self.operations else 0.0


@dataclass(slots=True)
class OpenLoop:
    """How an open loop kept its schedule: a start every `interval_ns`, late or not.

    `late_ns` is the worst delay of a start, `behind_ns` the delays of each block's last start
    added up: what is missing at the end of a block was never made good.
    """

    interval_ns: int
    late_ns: int = 0
    behind_ns: int = 0

    def add(self, late_ns: int, last_late_ns: int) -> None:
        """Add a block."""
        self.late_ns = max(self.late_ns, late_ns)
        self.behind_ns += last_late_ns

    def overloaded(self, count: int) -> bool:
        """Tell whether the starts have fallen behind by more than a twentieth of their time."""
        return self.behind_ns > _BEHIND_AT_MOST * count * self.interval_ns

    def as_dict(self, count: int) -> dict[str, Any]:
        """Return the part of a row that only an open loop has."""
        behind = self.behind_ns / (count * self.interval_ns)
        return {
            "rate_per_s": round(1e9 / self.interval_ns, 1),
            "started_per_s": round(1e9 / (self.interval_ns * (1 + behind)), 1),
            "backlog_max": self.late_ns // self.interval_ns,
            "late_max_us": in_us(self.late_ns),
            "behind": round(behind, 4),
            "overloaded": self.overloaded(count),
        }


@dataclass(slots=True)
class Measured:
    """Blocks of samples of one thing, in the order they were taken, and their time."""

    blocks: "list[array[int]]" = field(default_factory=list)
    elapsed: list[int] = field(default_factory=list)

    @property
    def elapsed_ns(self) -> int:
        """Return the time of all blocks together."""
        return sum(self.elapsed)

    def add(self, samples: "array[int]", elapsed_ns: int) -> None:
        """Add a block."""
        self.blocks.append(samples)
        self.elapsed.append(elapsed_ns)

    def each_us(self) -> list[float]:
        """Return the time per operation of each block."""
        return [
            in_us(elapsed / len(block))
            for block, elapsed in zip(self.blocks, self.elapsed, strict=True)
        ]

    def samples(self) -> BlockSamples:
        """Return the samples taken so far."""
        return BlockSamples(tuple(block for block in self.blocks if len(block)))

    def moved(self) -> float:
        """Return by which part the later half of the blocks differs from the earlier."""
        return moved_by(self.samples().block_medians())

    def marks(self) -> list[str]:
        """Return the mark of a row whose floor these blocks are, if they moved too far."""
        return ["unsteady"] if self.moved() > STEADY else []


@dataclass(slots=True)
class FloorResult:
    """A floor with its blocks; `side` names the process whose clock timed it."""

    spec: FloorSpec
    side: str
    measured: Measured = field(default_factory=Measured)

    def as_dict(self) -> dict[str, Any]:
        """Return the floor as it stands in the document."""
        return {
            "name": self.spec.name,
            "payload": self.spec.payload,
            "depth": self.spec.depth,
            "processes": self.spec.processes,
            **floor_figures(self.measured),
            "side": self.side,
        }


@dataclass(slots=True)
class RowResult:
    """A row with its own blocks, the blocks of its floor, and what its operations used."""

    spec: RowSpec
    row: Measured = field(default_factory=Measured)
    floor: Measured = field(default_factory=Measured)
    usage: Usage = field(default_factory=Usage)
    open_loop: OpenLoop | None = None
    blocks_per_round: int = 1
    warmup: int = 0
    failed: int = 0

    def marks(self) -> list[str]:
        """Return what a reader must know before trusting the row."""
        marks = self.floor.marks()
        if self.usage.copies != self.spec.copies * self.usage.operations:
            marks.append("copies")
        if self.open_loop is not None and self.open_loop.overloaded(self.row.samples().count):
            marks.append("overloaded")
        return marks

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the document."""
        samples, floor = self.row.samples(), self.floor.samples()
        p50, floor_p50 = in_us(samples.judged_ns()), in_us(floor.judged_ns())
        return {
            **self.spec.as_dict(),
            "count": samples.count,
            "blocks": len(samples.blocks),
            "p50_us": p50,
            **tail_of(samples),
            "ops_per_s": round(samples.count * 1e9 / self.row.elapsed_ns, 1),
            "elapsed_us": in_us(self.row.elapsed_ns),
            **self._usage(),
            "floor": self.spec.floor.name,
            "floor_p50_us": floor_p50,
            "ratio": round(p50 / floor_p50, 3) if floor_p50 else None,
            "convention": CONVENTION,
            "counts": self._counts(samples),
            "open_loop": self._open_loop(samples.count),
            **spread_of(samples, floor),
            "block_each_us": self.row.each_us(),
            "round_p99_us": self._round_percentiles(99.0),
            "marks": self.marks(),
        }

    def _usage(self) -> dict[str, Any]:
        used = self.usage.per_operation
        return {
            "copies": round(used("copies"), 3),
            "bytes_copied": round(used("bytes_copied"), 3),
            "wire_bytes": round(used("wire_bytes"), 3),
            "cpu_user_us": in_us(used("cpu_user_ns")),
            "cpu_kernel_us": in_us(used("cpu_kernel_ns")),
            "cpu_user_system_us": in_us(used("cpu_user_system_ns")),
            "cpu_kernel_system_us": in_us(used("cpu_kernel_system_ns")),
        }

    def _open_loop(self, count: int) -> dict[str, Any] | None:
        return None if self.open_loop is None else self.open_loop.as_dict(count)

    def _round_percentiles(self, percent: float) -> list[float | None]:
        """Return a percentile of each round, None where it rests on too few samples."""
        blocks, size = self.row.blocks, self.blocks_per_round
        rounds = [
            BlockSamples(tuple(blocks[first : first + size]))
            for first in range(0, len(blocks), size)
        ]
        return [known_us(percentile(samples.ordered(), percent)) for samples in rounds]

    def _counts(self, samples: BlockSamples) -> dict[str, int]:
        return {
            "measured": samples.count,
            "warmup": self.warmup,
            "failed": self.failed,
            "floor": self.floor.samples().count,
        }


def floor_figures(measured: Measured) -> dict[str, Any]:
    """Return what the document says of the blocks of a floor."""
    samples = measured.samples()
    ordered = samples.ordered()
    return {
        "p50_us": in_us(samples.judged_ns()),
        "p99_us": known_us(percentile(ordered, 99.0)),
        "min_us": in_us(ordered[0]),
        "count": samples.count,
        "blocks": len(samples.blocks),
        "moved": round(measured.moved(), 3),
    }


def tail_of(samples: BlockSamples) -> dict[str, Any]:
    """Return the percentiles of all samples, the extremes, the mean and what it is made of."""
    ordered = samples.ordered()
    return {
        **{name: known_us(percentile(ordered, percent)) for name, percent in _PERCENTILES},
        "max_us": in_us(ordered[-1]),
        "min_us": in_us(ordered[0]),
        "mean_us": in_us(samples.total_ns / samples.count),
        "sum_us": in_us(samples.total_ns),
    }


def spread_of(samples: BlockSamples, floor: BlockSamples) -> dict[str, Any]:
    """Return how far the blocks lie apart, and the histogram of all samples."""
    medians = samples.block_medians()
    low, high = median_interval(medians)
    encoded, dropped = samples.histogram()
    return {
        "p50_interval_us": [in_us(low), in_us(high)],
        "mad_us": in_us(median_absolute_deviation(medians)),
        "block_p50_us": [in_us(value) for value in medians],
        "floor_block_p50_us": [in_us(value) for value in floor.block_medians()],
        "hdr_histogram": encoded,
        "hdr_dropped": dropped,
    }
