"""What the stages of a row's requests took, beside the same row without tracing.

Rules: traced and untraced blocks alternate. A stage's time is its mean over the middle half of the
requests, by their whole time: so the stages add up to what a middle request takes, and one that
was held up by something else counts in none of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from user_proc.bench.row_figures import Figure, RowFigures, difference, draw_block_medians
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.row_results import Measured, in_us
from user_proc.bench.sample_statistics import median, percentile
from user_proc.bench.stage_times import STAGES


@dataclass(slots=True)
class StageResult:
    """Blocks of a row with tracing off and on, and the stages of the traced requests."""

    spec: RowSpec
    blocks_per_round: int
    untraced: Measured = field(default_factory=Measured)
    traced: Measured = field(default_factory=Measured)
    requests: list[Mapping[str, int]] = field(default_factory=list)
    incomplete: int = 0

    def add_traced(self, answers: Sequence[Mapping[str, int] | None]) -> None:
        """Add the stages of a traced block's requests."""
        whole = [stages for stages in answers if stages is not None]
        self.requests += whole
        self.incomplete += len(answers) - len(whole)

    def as_dict(self) -> dict[str, Any]:
        """Return the row's stages as they stand in the document."""
        middle = _middle_half(self.requests)
        times = {name: sum(request[name] for request in middle) for name in STAGES}
        count = len(middle) or 1
        total = sum(times.values())
        untraced, traced = self._figures()
        cost = difference(traced, untraced)
        gap = in_us(total / count) - untraced.p50_us
        return {
            **self.spec.as_dict(),
            "requests": len(self.requests),
            "incomplete": self.incomplete,
            "stages": [self._stage(name, times[name] / count, total / count) for name in STAGES],
            "sum_us": in_us(total / count),
            "untraced_p50_us": untraced.p50_us,
            "traced_p50_us": traced.p50_us,
            "tracing_cost_us": cost.as_dict(),
            "sum_over_untraced_us": round(gap, 3),
            "within_tracing_cost": explains(gap, cost, untraced.p50),
            "marks": ["traced"],
        }

    def _stage(self, name: str, mean_ns: float, total_ns: float) -> dict[str, Any]:
        times = sorted(request[name] for request in self.requests)
        p90 = percentile(times, 90.0)
        return {
            "stage": name,
            "mean_us": in_us(mean_ns),
            "share": round(mean_ns / total_ns, 4) if total_ns else 0.0,
            "p50_us": in_us(median(times)) if times else None,
            "p90_us": None if p90 is None else in_us(p90),
        }

    def _figures(self) -> tuple[RowFigures, RowFigures]:
        untraced, traced = self.untraced.samples(), self.traced.samples()
        medians = [samples.block_medians() for samples in (untraced, traced)]
        draws = draw_block_medians(medians, self.blocks_per_round)
        found = [
            RowFigures({}, in_us(samples.judged_ns()), 0.0, tuple(map(in_us, drawn)), ())
            for samples, drawn in zip((untraced, traced), draws, strict=True)
        ]
        return found[0], found[1]


def explains(gap: float, cost: Figure, untraced: Figure) -> bool:
    """Tell whether the stages add up to the untraced time, within what tracing costs.

    Both ends are widened by the uncertainty of the untraced median itself.
    """
    spread = max(untraced.high - untraced.value, untraced.value - untraced.low)
    return min(0.0, cost.low) - spread <= gap <= max(0.0, cost.high) + spread


def _middle_half(requests: Sequence[Mapping[str, int]]) -> Sequence[Mapping[str, int]]:
    """Return the requests whose whole time is neither in the lowest nor the highest quarter."""
    ordered = sorted(requests, key=lambda stages: sum(stages.values()))
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]
