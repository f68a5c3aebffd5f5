"""What was measured of a verb, and its form in the run document.

Rules: p50 is the judged figure, the median over blocks of the block medians. Command times are
medians over passes of the sum of a verb's commands: `command_us` is what the driver waited,
`device_us` what they were in execution in the HCA, `asked_us` what the latency model asked for.
`boundary_us` is the rest of the verb: p50 less the device's time.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.row_results import (
    CONVENTION,
    Measured,
    Usage,
    in_us,
    spread_of,
    tail_of,
)
from user_proc.bench.sample_statistics import median
from user_proc.bench.verbs.verb_operations import StepCommands

CONTROL_MIX: Final = "control_mix"


@dataclass(frozen=True, slots=True)
class VerbSpec:
    """A row: which verb, asked by whom, under which model, by how many processes.

    A registration also says how many bytes, how their page frames lie, and whose memory it is.
    """

    verb: str
    client: str
    latency_model: str
    processes: int = 1
    bytes: int | None = None
    layout: str | None = None
    memory: str | None = None

    @property
    def floor(self) -> FloorSpec:
        """Return the floor this row is shown beside: an echo, or in the kernel a thread switch."""
        if self.client == "kernel":
            return FloorSpec("thread_switch", 0)
        return FloorSpec("echo", 64, 1, self.processes)

    def as_dict(self) -> dict[str, Any]:
        """Return the row's factors as JSON values."""
        return asdict(self)

    def label(self) -> str:
        """Return the row in words."""
        words = [self.client, self.verb]
        if self.bytes is not None:
            words += [f"{self.bytes} B", str(self.memory), str(self.layout)]
        if self.processes > 1:
            words.append(f"{self.processes} processes")
        return " ".join((*words, f"model {self.latency_model}"))


@dataclass(slots=True)
class CommandTimes:
    """The commands of a verb: the usual ones, and the times of each pass."""

    names: Counter[tuple[str, ...]] = field(default_factory=Counter)
    took_ns: list[int] = field(default_factory=list)
    asked_ns: list[int] = field(default_factory=list)
    device_ns: list[int] = field(default_factory=list)

    def add(self, commands: StepCommands) -> None:
        """Add those of a block."""
        self.names[tuple(commands.names)] += len(commands.took_ns)
        self.took_ns += commands.took_ns
        self.asked_ns += commands.asked_ns
        self.device_ns += commands.device_ns

    def add_all(self, steps: Sequence[StepCommands]) -> None:
        """Add those of a block whose steps are one operation."""
        self.add(
            StepCommands(
                [name for step in steps for name in step.names],
                [sum(times) for times in zip(*(step.took_ns for step in steps), strict=True)],
                [sum(times) for times in zip(*(step.asked_ns for step in steps), strict=True)],
                [sum(times) for times in zip(*(step.device_ns for step in steps), strict=True)],
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the part of a row that tells of commands."""
        ((names, _),) = self.names.most_common(1) or [((), 0)]
        known = bool(self.took_ns)
        return {
            "commands": list(names),
            "command_us": in_us(median(self.took_ns)) if known else None,
            "asked_us": in_us(median(self.asked_ns)) if known else None,
            "device_us": in_us(median(self.device_ns)) if known else None,
        }


@dataclass(slots=True)
class VerbResult:
    """A row with its own blocks and those of its floor.

    An operation of the control mix is `verbs` verbs, and what counts there is how many are done in
    a second: its ratio is that of the rates, where a verb's is that of the times.
    """

    spec: VerbSpec
    verbs: int = 1
    row: Measured = field(default_factory=Measured)
    floor: Measured = field(default_factory=Measured)
    commands: CommandTimes = field(default_factory=CommandTimes)
    usage: Usage = field(default_factory=Usage)
    warmup: int = 0

    def add(self, samples: "array[int]", elapsed_ns: int) -> None:
        """Add a block."""
        self.row.add(samples, elapsed_ns)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the document."""
        samples, floor = self.row.samples(), self.floor.samples()
        p50, floor_p50 = in_us(samples.judged_ns()), in_us(floor.judged_ns())
        commands = self.commands.as_dict()
        rate = self._rate(self.row) * self.verbs
        floor_rate = self._rate(self.floor)
        by_rate = self.spec.verb == CONTROL_MIX
        ratio = rate / floor_rate if by_rate else p50 / floor_p50
        device = commands["device_us"]
        return {
            **asdict(self.spec),
            "verbs_per_operation": self.verbs,
            "count": samples.count,
            "blocks": len(samples.blocks),
            "p50_us": p50,
            **tail_of(samples),
            "ops_per_s": round(rate, 1),
            "elapsed_us": in_us(self.row.elapsed_ns),
            **commands,
            "boundary_us": None if device is None else round(max(0.0, p50 - device), 3),
            "cpu_user_us": self._processor_us("cpu_user_ns"),
            "cpu_kernel_us": self._processor_us("cpu_kernel_ns"),
            "floor": self.spec.floor.name,
            "floor_p50_us": floor_p50,
            "floor_ops_per_s": round(floor_rate, 1),
            "ratio": round(ratio, 4),
            "ratio_of": "ops_per_s" if by_rate else "p50_us",
            "convention": CONVENTION,
            "counts": {
                "measured": samples.count,
                "warmup": self.warmup,
                "failed": 0,
                "floor": floor.count,
            },
            **spread_of(samples, floor),
            "marks": self.floor.marks(),
        }

    def _processor_us(self, name: str) -> float | None:
        if not self.usage.operations:
            return None
        return in_us(self.usage.per_operation(name))

    @staticmethod
    def _rate(measured: Measured) -> float:
        """Return operations a second: the median over blocks, all processes together."""
        return median(
            [
                len(block) * 1e9 / max(1, elapsed)
                for block, elapsed in zip(measured.blocks, measured.elapsed, strict=True)
            ]
        )
