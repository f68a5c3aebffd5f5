"""Two runs compared, row by row: slower, faster, or no change shown.

The spread is a bootstrap over each run's rounds, which are fresh processes, and the blocks in
them. A change is called one when its interval leaves zero out and it is larger than a twentieth
and than a tenth of a microsecond: percentages of very small numbers mean nothing.

Rules: made from two documents of one kind alone. Runs that differ in what a row depends on are not
compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from user_proc.bench.row_figures import Figure, Resampler, interval_of
from user_proc.bench.row_identity import AnySpec, spec_of
from user_proc.bench.sample_statistics import median

RELATIVE_FLOOR: Final = 0.05
ABSOLUTE_FLOOR_US: Final = 0.1
NO_CHANGE: Final = "no change shown"

_SETTINGS: Final = (
    "tool", "loop", "rate_per_s", "transport", "wait_mode", "spin_ns", "payload_touched",
    "kernel_cpu", "user_cpu",
)  # fmt: skip
_MARKS: Final = ("overloaded", "unsteady", "copies", "unpinned", "busy")


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one figure of a row."""

    before_us: float
    after_us: float
    difference: Figure
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Return the change as JSON values."""
        return {
            "before_us": self.before_us,
            "after_us": self.after_us,
            "difference_us": self.difference.as_dict(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that both runs took; `p99` is None where a round has too few samples for one."""

    spec: AnySpec
    p50: Change
    p99: Change | None


def unequal(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return in what the runs differ that a row's time depends on."""
    return list(_differences(before, after))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before["kind"] != after["kind"]:
        yield f"kind: {before['kind']} and {after['kind']}"
    for name in _SETTINGS:
        one, other = before["settings"].get(name), after["settings"].get(name)
        if one != other:
            yield f"{name}: {one} and {other}"
    for part, names in (
        ("python", ("implementation", "version", "gil")),
        ("machine", ("processor", "cores", "architecture", "governor")),
    ):
        for name in names:
            one, other = before["provenance"][part][name], after["provenance"][part][name]
            if one != other:
                yield f"{part} {name}: {one} and {other}"
    marks = [set(document["provenance"]["marks"]) for document in (before, after)]
    for mark in _MARKS:
        if (mark in marks[0]) != (mark in marks[1]):
            yield f"only one run is marked {mark!r}"


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[RowChange]:
    """Return what became of each row both runs took, in the order of the first."""
    others = {spec_of(after["kind"], row): row for row in after["rows"]}
    sizes = [document["settings"]["blocks_per_round"] for document in (before, after)]
    changes = []
    for row in before["rows"]:
        spec = spec_of(before["kind"], row)
        if spec in others:
            other = others[spec]
            p50 = judge(row["block_p50_us"], other["block_p50_us"], sizes)
            changes.append(RowChange(spec, p50, _p99(row, other)))
    return changes


def _p99(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change | None:
    rounds = [row.get("round_p99_us", [None]) for row in (before, after)]
    if any(value is None for values in rounds for value in values):
        return None
    return judge(rounds[0], rounds[1], (1, 1))


def judge(before: Sequence[float], after: Sequence[float], sizes: Sequence[int]) -> Change:
    """Return what became of a figure, given each run's values and how many make a round."""
    draws = [
        Resampler(size, seed).draw(values, median)
        for seed, (values, size) in enumerate(zip((before, after), sizes, strict=True))
    ]
    old, new = median(before), median(after)
    change = interval_of(new - old, (b - a for a, b in zip(*draws, strict=True)))
    size = abs(change.value)
    verdict = NO_CHANGE
    if change.shown and size >= ABSOLUTE_FLOOR_US and size >= RELATIVE_FLOOR * old:
        verdict = "slower" if change.value > 0 else "faster"
    return Change(old, new, change, verdict)
