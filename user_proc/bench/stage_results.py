"""What the stages of a row's requests took, beside the same row without tracing.

A block's stages are means over the middle half of its requests, by their whole time; a row's are
means over the middle half of its blocks. So the stages add up to what a middle request takes, and
one that was held up by something else counts in none of them.

Rules: traced and untraced blocks alternate, and are compared block by block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from user_proc.bench.row_figures import Figure, paired_difference
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.row_results import Measured, in_us
from user_proc.bench.sample_statistics import median, percentile
from user_proc.bench.stage_times import STAGES

Stages = Mapping[str, float]
_T = TypeVar("_T")


@dataclass(slots=True)
class StageResult:
    """Blocks of a row with tracing off and on, and the stages of the traced requests."""

    spec: RowSpec
    blocks_per_round: int
    untraced: Measured = field(default_factory=Measured)
    traced: Measured = field(default_factory=Measured)
    requests: list[Mapping[str, int]] = field(default_factory=list)
    blocks: list[Stages] = field(default_factory=list)
    incomplete: int = 0

    def add_traced(self, answers: Sequence[Mapping[str, int] | None]) -> None:
        """Add the stages of a traced block's requests."""
        whole = [stages for stages in answers if stages is not None]
        self.requests += whole
        self.blocks.append(_mean_of_middle(whole))
        self.incomplete += len(answers) - len(whole)

    def as_dict(self) -> dict[str, Any]:
        """Return the row's stages as they stand in the document."""
        untraced, traced = self.untraced.samples(), self.traced.samples()
        means = _mean_of_middle(self.blocks)
        cost = self._difference(traced.block_medians(), untraced.block_medians())
        sums = [sum(block.values()) for block in self.blocks]
        gap = self._difference(sums, untraced.block_medians())
        return {
            **self.spec.as_dict(),
            "requests": len(self.requests),
            "incomplete": self.incomplete,
            "stages": [self._stage(name, means) for name in STAGES],
            "sum_us": in_us(sum(means.values())),
            "untraced_p50_us": in_us(untraced.judged_ns()),
            "traced_p50_us": in_us(traced.judged_ns()),
            "tracing_cost_us": cost.as_dict(),
            "sum_over_untraced_us": gap.as_dict(),
            "within_tracing_cost": explains(gap, cost),
            "marks": ["traced"],
        }

    def _difference(self, first: Sequence[float], second: Sequence[float]) -> Figure:
        """Return by how many microseconds blocks exceed those beside them."""
        found = paired_difference(first, second, self.blocks_per_round)
        return Figure(in_us(found.value), in_us(found.low), in_us(found.high))

    def _stage(self, name: str, means: Stages) -> dict[str, Any]:
        total = sum(means.values())
        times = sorted(request[name] for request in self.requests)
        p90 = percentile(times, 90.0)
        return {
            "stage": name,
            "mean_us": in_us(means[name]),
            "share": round(means[name] / total, 4) if total else 0.0,
            "p50_us": in_us(median(times)) if times else None,
            "p90_us": None if p90 is None else in_us(p90),
        }


def explains(gap: Figure, cost: Figure) -> bool:
    """Tell whether the stages add up to the untraced time, within what tracing costs.

    They do when the interval of what is left over meets the range from nothing to the cost.
    """
    return gap.low <= max(0.0, cost.high) and gap.high >= min(0.0, cost.low)


def _mean_of_middle(several: Sequence[Stages]) -> Stages:
    """Return the mean of each stage over the middle half by whole time, nothing for none."""
    middle = _middle_half(several, lambda stages: sum(stages.values()))
    return {name: sum(stages[name] for stages in middle) / (len(middle) or 1) for name in STAGES}


def _middle_half(things: Sequence[_T], size: Callable[[_T], float]) -> Sequence[_T]:
    ordered = sorted(things, key=size)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]
