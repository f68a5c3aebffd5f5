"""What a stress run found and counted, as the parts of its run document."""

from dataclasses import dataclass, field
from typing import Any, Final

from user_proc.bench.sample_statistics import percentile
from user_proc.stress.findings import CORRUPT, DIED, DOUBLED, HANG, LOST, WRONG

_NS_OF_US: Final = 1000


@dataclass(slots=True)
class Figures:
    """What the clients of one count did, and how long control verbs and echoes took meanwhile."""

    clients: int
    seconds: float = 0.0
    operations: int = 0
    completions: int = 0
    kills: int = 0
    lives: int = 0
    control: list[int] = field(default_factory=list)
    floor: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def total(self) -> dict[str, Any]:
        """Return the row of this count."""
        seconds = self.seconds or 1.0
        control, floor = sorted(self.control), sorted(self.floor)
        return {
            "clients": self.clients,
            "seconds": round(self.seconds, 3),
            "operations": self.operations,
            "completions": self.completions,
            "operations_per_s": round(self.operations / seconds),
            "completions_per_s": round(self.completions / seconds),
            "kills": self.kills,
            "lives": self.lives,
            "control_p50_us": _micros(percentile(control, 50)),
            "control_p99_us": _micros(percentile(control, 99)),
            "floor_p50_us": _micros(percentile(floor, 50)),
            "floor_p99_us": _micros(percentile(floor, 99)),
            "samples": len(control),
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding, and by which program of which client: all that is needed to see it again."""

    clients: int
    place: int
    life: int
    seed: int
    step: int
    kind: str
    text: str
    steps: list[Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "clients": self.clients,
            "place": self.place,
            "life": self.life,
            "seed": self.seed,
            "step": self.step,
            "kind": self.kind,
            "text": self.text,
            "steps": self.steps,
        }


@dataclass(slots=True)
class StressResult:
    """A whole run; `counts` one count of clients after the other."""

    seed: int
    counts: list[Figures] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    reduced: dict[str, Any] | None = None

    @property
    def good(self) -> bool:
        """Tell whether nothing was found and nothing was left."""
        return not self.failures and not self.leaks

    def _found(self, kind: str) -> int:
        return sum(one.kind == kind for one in self.failures)

    def parts(self) -> dict[str, Any]:
        """Return the parts; `clients` and latencies are those of the largest count."""
        totals = [one.total() for one in self.counts]
        largest = max(totals, key=lambda one: one["clients"])
        return {
            "seed": self.seed,
            "clients": largest["clients"],
            "seconds": round(sum(one["seconds"] for one in totals), 3),
            "operations": sum(one["operations"] for one in totals),
            "completions": sum(one["completions"] for one in totals),
            "lost": self._found(LOST),
            "doubled": self._found(DOUBLED),
            "corrupt": self._found(CORRUPT),
            "wrong": self._found(WRONG) + self._found(DIED),
            "hangs": self._found(HANG),
            "kills": sum(one["kills"] for one in totals),
            "leaks": self.leaks,
            "control_p99_us": largest["control_p99_us"],
            "floor_p99_us": largest["floor_p99_us"],
            "rows": [row for one in self.counts for row in one.rows],
            "counts": totals,
            "failures": [one.as_dict() for one in self.failures],
            "reduced": self.reduced,
        }


def _micros(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / _NS_OF_US, 1)
