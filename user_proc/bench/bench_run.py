"""The IRP benchmark: rounds of a fresh kernel and a fresh user process, floor and row in turn.

A round takes every row, in the order of the plan or backwards; a row's blocks alternate with
blocks of its floor, and which of the two goes first alternates as well. So neither a slow drift
of the machine nor what a block leaves behind favours one of them.

Rules: this process only waits while something is measured.
"""

from array import array
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.progress_view import Progress
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.row_results import STEADY, FloorResult, Measured, RowResult, Usage
from user_proc.bench.sample_statistics import median
from user_proc.bench.time_share import TimeShare, fitting_count
from user_proc.bench.worker_link import WorkerLink
from user_proc.run_document import RunDocument
from user_proc.run_provenance import begin_provenance, end_provenance, is_virtual

KIND: Final = "irp"
_USER_FLOORS: Final = ("echo", "user_clock", "sample_store")
_BUSY_PER_CORE: Final = 0.5
_WARMUP_LIMIT_NS: Final = 1_000_000_000
_FIRST_BLOCK_GUESS_NS: Final = 1_000.0

OpenRound = Callable[[BenchSettings], AbstractContextManager[WorkerLink]]


class BenchRun:
    """One run of the benchmark; `open_round` starts a kernel and a user process."""

    def __init__(self, settings: BenchSettings, open_round: OpenRound, progress: Progress) -> None:
        self._settings = settings
        self._open_round = open_round
        self._progress = progress
        self._rows = {spec: RowResult(spec) for spec in settings.rows}
        self._row_floors = {row.floor: _floor_result(row.floor) for row in settings.rows}
        self._floors = {spec: _floor_result(spec) for spec in settings.floors}
        self._operation_ns: dict[tuple[object, str], float] = {}
        blocks_each = settings.rounds * settings.blocks_per_round
        self._time = TimeShare(
            settings.time_limit_ns, blocks_each * (2 * len(self._rows) + len(self._floors))
        )
        self._steps = settings.rounds * (len(self._rows) + len(self._floors))
        self._done = 0

    def run(self) -> RunDocument:
        """Perform the run and return its document."""
        provenance = begin_provenance()
        for number in range(self._settings.rounds):
            with self._open_round(self._settings) as worker:
                self._round(worker, number)
        return self._document(provenance)

    def _round(self, worker: WorkerLink, number: int) -> None:
        """Take every row once, the floors without a row spread among them."""
        rows = list(self._rows.values())
        floors = list(self._floors.values())
        if number % 2:
            rows.reverse()
        every = max(1, len(rows) // (len(floors) or 1))
        for index, row in enumerate(rows):
            if index % every == 0 and floors:
                self._take_floor(worker, floors.pop(0))
            self._take_row(worker, row, number)
        for floor in floors:
            self._take_floor(worker, floor)

    def _take_row(self, worker: WorkerLink, result: RowResult, number: int) -> None:
        spec = result.spec
        self._step(spec.label())
        worker.ask("prepare", row=spec.as_dict())
        self._warm_up(worker, (spec, "floor"), "floor")
        self._warm_up(worker, (spec, "row"), "row")
        result.warmup += self._settings.warmup_per_round
        for block in range(self._settings.blocks_per_round):
            for which in ("floor", "row") if (number + block) % 2 == 0 else ("row", "floor"):
                answer = self._block(worker, (spec, which), which)
                samples = array("Q", answer["samples"])
                if which == "row":
                    result.row.blocks.append(samples)
                    result.usage.add(Usage(**answer["used"]))
                else:
                    result.floor.blocks.append(samples)
                    self._row_floors[spec.floor].measured.blocks.append(samples)

    def _take_floor(self, worker: WorkerLink, result: FloorResult) -> None:
        spec = result.spec
        self._step(f"floor {spec.name} {spec.payload} B")
        worker.ask("prepare_floor", floor=spec.as_dict())
        self._warm_up(worker, (spec, "floor"), "floor")
        for _ in range(self._settings.blocks_per_round):
            answer = self._block(worker, (spec, "floor"), "floor")
            result.measured.blocks.append(array("Q", answer["samples"]))

    def _warm_up(self, worker: WorkerLink, key: tuple[object, str], which: str) -> None:
        """Run without keeping samples, and learn how long an operation takes."""
        wanted = self._settings.warmup_operations
        count = fitting_count(
            wanted, self._operation_ns.get(key, _FIRST_BLOCK_GUESS_NS), _WARMUP_LIMIT_NS
        )
        answer = worker.ask("block", which=which, count=count, warmup=0, limit_ns=_WARMUP_LIMIT_NS)
        self._operation_ns[key] = median(answer["samples"])

    def _block(self, worker: WorkerLink, key: tuple[object, str], which: str) -> Mapping[str, Any]:
        limit_ns = self._time.next_block_ns()
        count = fitting_count(
            self._settings.operations_per_block, self._operation_ns[key], limit_ns
        )
        warmup = self._settings.block_warmup_operations
        return worker.ask("block", which=which, count=count, warmup=warmup, limit_ns=limit_ns)

    def _step(self, text: str) -> None:
        self._progress.advance(self._done, self._steps, text)
        self._done += 1

    # The document

    def _document(self, begun: Mapping[str, Any]) -> RunDocument:
        floors = [*self._row_floors.values(), *self._floors.values()]
        rows = [result.as_dict() for result in self._rows.values()]
        marks = self._marks(begun, floors)
        marks += [mark for row in rows for mark in row["marks"]]
        provenance = end_provenance(begun, marks)
        provenance["warmup"] = {
            "operations_per_row_and_round": self._settings.warmup_per_round,
            "excluded": True,
        }
        return RunDocument(
            KIND,
            provenance,
            self._settings.as_dict(),
            [floor.as_dict() for floor in floors],
            rows,
        )

    def _marks(self, begun: Mapping[str, Any], floors: list[FloorResult]) -> list[str]:
        marks = []
        if any(floor.measured.moved() > STEADY for floor in floors):
            marks.append("unsteady")
        if self._settings.kernel_cpu is None:
            marks.append("unpinned")
        if is_virtual():
            marks.append("virtual")
        if begun["load_before"][0] > _BUSY_PER_CORE * (begun["machine"]["cores"] or 1):
            marks.append("busy")
        return marks


def _floor_result(spec: FloorSpec) -> FloorResult:
    side = "user" if spec.name in _USER_FLOORS else "kernel"
    return FloorResult(spec, side, Measured())
