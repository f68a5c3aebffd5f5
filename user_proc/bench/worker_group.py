"""The user processes that take a row together: one, or several that begin at the same moment.

Rules: processes of a group share a kernel. The kernel's counters are read around the whole block
when there are several, because each would see the others' operations in its own.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from shared.clock import now_ns
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.row_results import Usage
from user_proc.bench.timed_loops import Window

# Until the command has reached a process and it waits for the moment to begin.
_GATHERING_NS: Final = 3_000_000


class Worker(Protocol):
    """What a group needs of a link to a worker process."""

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        """Have a command carried out."""

    def send(self, do: str, **values: Any) -> None:
        """Give a command."""

    def receive(self) -> Mapping[str, Any]:
        """Return the answer to the command given."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of a row or floor gave, all processes together."""

    samples: "array[int]"
    elapsed_ns: int
    used: Usage
    late_ns: int = 0
    last_late_ns: int = 0


class WorkerGroup:
    """The processes a row or floor asks for."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def prepare(self, *rows: RowSpec) -> None:
        """Get every process ready for the rows of a family and their floors."""
        self.ask_all("prepare", rows=[row.as_dict() for row in rows])

    def prepare_floor(self, floor: FloorSpec) -> None:
        """Get every process ready for a floor alone."""
        self.ask_all("prepare_floor", floor=floor.as_dict())

    def release(self) -> None:
        """Have every process let go of what its rows needed."""
        self.ask_all("release")

    def take(self, which: str, window: Window, index: int = 0) -> Block:
        """Take a block of one of the rows, or of its floor."""
        if len(self._workers) == 1:
            answer = self._workers[0].ask(
                "block", index=index, which=which, counted=True, window=asdict(window)
            )
            return Block(
                array("Q", answer["samples"]),
                answer["elapsed_ns"],
                Usage(**answer["used"]),
                answer["late_ns"],
                answer["last_late_ns"],
            )
        return self._take_together(which, window, index)

    def take_traced(self, count: int) -> tuple["array[int]", list[Mapping[str, int] | None]]:
        """Take a block with tracing on; return its samples and each request's stages."""
        answer = self._workers[0].ask("traced", count=count)
        return array("Q", answer["samples"]), answer["stages"]

    def _take_together(self, which: str, window: Window, index: int) -> Block:
        leader = self._workers[0]
        before = leader.ask("counters")
        begin_ns = now_ns() + _GATHERING_NS * len(self._workers)
        window = replace(window, begin_ns=begin_ns)
        answers = self.ask_all(
            "block", index=index, which=which, counted=False, window=asdict(window)
        )
        after = leader.ask("counters")
        samples = array("Q")
        used = Usage()
        for answer in answers:
            samples.extend(answer["samples"])
            used.add(Usage(**answer["used"]))
        used.add(_kernel_usage(before, after))
        return Block(samples, max(answer["elapsed_ns"] for answer in answers), used)

    def ask_all(self, do: str, **values: Any) -> list[Mapping[str, Any]]:
        """Have every process carry out a command, at the same time; return the answers."""
        for worker in self._workers:
            worker.send(do, **values)
        return [worker.receive() for worker in self._workers]


def _kernel_usage(before: Mapping[str, Any], after: Mapping[str, Any]) -> Usage:
    """Return what the kernel used between two readings, less what a reading costs."""
    cost = after["cost"]
    return Usage(
        **{
            name: value - before["totals"][name] - cost.get(name, 0)
            for name, value in after["totals"].items()
        }
    )
