"""What was measured of a row of the data path, and its form in the run document.

Rules: p50 is the judged figure, the median over blocks of the block medians. Of a stream of
messages each block gives one figure, its time by its messages, so such a row has no percentiles.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

from user_proc.bench.row_results import (
    Measured,
    floor_figures,
    in_us,
    known_us,
    spread_of,
    tail_of,
)
from user_proc.bench.sample_statistics import percentile
from user_proc.bench.speed.speed_rows import EVENT, RELAY, RELAY_RETURN, SpeedFloor, SpeedSpec

_GIB: Final = 1 << 30
_CONVENTIONS: Final = {RELAY: "one_way", RELAY_RETURN: "round_trip", "echo": "half_round_trip"}


@dataclass(slots=True)
class SpeedResult:
    """A row with its own blocks and those of its floor.

    `spin` is how many empty looks a poller makes before it yields the processor at each; `checked`
    how many blocks' payloads were compared.
    """

    spec: SpeedSpec
    spin: int = 0
    row: Measured = field(default_factory=Measured)
    floor: Measured = field(default_factory=Measured)
    messages: int = 0
    warmup: int = 0
    checked: int = 0
    cpu_ns: int = 0

    def add(self, samples: "array[int]", messages: int, elapsed_ns: int) -> None:
        """Add a block of so many messages."""
        self.messages += messages
        if not self.spec.is_latency:
            samples = array("Q", [max(1, round(elapsed_ns / messages))])
        self.row.add(samples, elapsed_ns)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the document."""
        spec, samples, floor = self.spec, self.row.samples(), self.floor.samples()
        judged, floor_judged = samples.judged_ns(), floor.judged_ns()
        stream = not spec.is_latency
        bandwidth = spec.bytes * 1e9 / judged / _GIB
        floor_bandwidth = spec.bytes * spec.pairs * 1e9 / max(1.0, floor_judged) / _GIB
        ratio = judged / max(1.0, floor_judged)
        if spec.by_bandwidth:
            ratio = bandwidth / floor_bandwidth
        return {
            **spec.as_dict(),
            "count": self.messages,
            "blocks": len(samples.blocks),
            "p50_us": in_us(judged),
            **tail_of(samples),
            "bw_gib_s": round(bandwidth, 4) if stream else None,
            "msg_per_s": round(1e9 / judged, 1) if stream else None,
            "elapsed_us": in_us(self.row.elapsed_ns),
            "cpu_user_us": in_us(self.cpu_ns / max(1, self.messages)),
            "chain": spec.chain,
            "spin": None if spec.mode == EVENT else self.spin,
            "floor": spec.floor.name,
            "floor_p50_us": in_us(floor_judged),
            "floor_p99_us": known_us(percentile(floor.ordered(), 99.0)),
            "floor_bw_gib_s": round(floor_bandwidth, 4) if spec.by_bandwidth else None,
            "ratio": round(ratio, 4),
            "ratio_of": "bw_gib_s" if spec.by_bandwidth else "p50_us",
            "convention": spec.convention,
            "counts": {
                "measured": self.messages,
                "warmup": self.warmup,
                "failed": 0,
                "payloads_checked": self.checked,
                "floor": floor.count,
            },
            **spread_of(samples, floor),
            "marks": self.floor.marks(),
        }


@dataclass(slots=True)
class SpeedFloorResult:
    """A floor with the blocks of all rows beside which it was taken."""

    spec: SpeedFloor
    measured: Measured = field(default_factory=Measured)

    def as_dict(self) -> dict[str, Any]:
        """Return the floor as it stands in the document."""
        return {
            "name": self.spec.name,
            "payload": self.spec.payload,
            "load": self.spec.load,
            "depth": 1,
            "processes": self.spec.pairs,
            "convention": _CONVENTIONS.get(self.spec.name, "one_copy"),
            **floor_figures(self.measured),
            "side": "user",
        }
