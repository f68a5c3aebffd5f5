"""The IRP benchmark: rounds of fresh kernels and user processes, floor and row in turn.

A round takes every family of rows, in one order or backwards. The blocks of a family's rows are
taken in turn, forwards and backwards, each beside a block of its floor, and which of the two goes
first alternates as well. So neither a slow drift of the machine nor what a block leaves behind
favours one of them.

Rules: this process only waits while something is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Protocol

from user_proc.bench.answers import answers_of
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.full_plan import families
from user_proc.bench.progress_view import Progress
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.row_results import STEADY, FloorResult, Measured, OpenLoop, RowResult
from user_proc.bench.sample_statistics import median
from user_proc.bench.stage_results import StageResult
from user_proc.bench.time_share import TimeShare, fitting_count, turns
from user_proc.bench.timed_loops import Window
from user_proc.bench.worker_group import Block, WorkerGroup
from user_proc.run_document import RunDocument
from user_proc.run_provenance import begin_provenance, end_provenance, is_virtual

KIND: Final = "irp"
_USER_FLOORS: Final = ("echo", "user_clock", "sample_store")
_BUSY_PER_CORE: Final = 0.5
_WARMUP_LIMIT_NS: Final = 1_000_000_000
_FIRST_BLOCK_GUESS_NS: Final = 1_000.0
_TRACED_AT_MOST: Final = 200  # requests a block: their points must fit into the rings


class Round(Protocol):
    """Fresh kernels and user processes."""

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        """Return so many user processes of a kernel in the mode asked for."""


OpenRound = Callable[[BenchSettings], AbstractContextManager[Round]]


class BenchRun:
    """One run of the benchmark; `open_round` starts kernels and user processes."""

    def __init__(self, settings: BenchSettings, open_round: OpenRound, progress: Progress) -> None:
        self._settings = settings
        self._open_round = open_round
        self._progress = progress
        self._rows = {spec: self._row_result(spec) for spec in settings.rows}
        self._row_floors = {row.floor: _floor_result(row.floor) for row in settings.rows}
        self._floors = {spec: _floor_result(spec) for spec in settings.floors}
        self._stages = {
            spec: StageResult(spec, settings.blocks_per_round) for spec in settings.stage_rows
        }
        self._operation_ns: dict[tuple[object, str], float] = {}
        blocks_each = settings.rounds * settings.blocks_per_round
        self._time = TimeShare(
            settings.time_limit_ns,
            blocks_each * (2 * len(self._rows) + len(self._floors)),
            1 if settings.interval_ns else 3,
        )
        each_round = len(self._rows) + len(self._floors) + len(self._stages)
        self._steps = settings.rounds * each_round
        self._done = 0

    def _row_result(self, spec: RowSpec) -> RowResult:
        settings = self._settings
        schedule = OpenLoop(settings.interval_ns) if settings.interval_ns else None
        return RowResult(spec, open_loop=schedule, blocks_per_round=settings.blocks_per_round)

    def run(self) -> RunDocument:
        """Perform the run and return its document."""
        provenance = begin_provenance()
        for number in range(self._settings.rounds):
            with self._open_round(self._settings) as round_:
                self._round(round_, number)
        return self._document(provenance)

    def _round(self, round_: Round, number: int) -> None:
        """Take every row once, the floors without a row spread among them."""
        rows = families(self._rows)
        floors = list(self._floors.values())
        if number % 2:
            rows.reverse()
        every = max(1, len(rows) // (len(floors) or 1))
        for index, family in enumerate(rows):
            if index % every == 0 and floors:
                self._take_floor(round_, floors.pop(0))
            self._take_family(round_, [self._rows[spec] for spec in family], number)
        for floor in floors:
            self._take_floor(round_, floor)
        for stages in self._stages.values():
            self._take_stages(round_, stages, number)

    def _take_family(self, round_: Round, family: Sequence[RowResult], number: int) -> None:
        specs = [result.spec for result in family]
        group = round_.group(specs[0].verifier, specs[0].processes)
        group.prepare(*specs)
        for index, spec in enumerate(specs):
            self._step(spec.label())
            self._warm_up(group, spec, "floor", index)
            self._warm_up(group, spec, "row", index)
        for block in range(self._settings.blocks_per_round):
            turn = number + block
            for index, result in list(enumerate(family))[:: 1 if turn % 2 == 0 else -1]:
                for which in turns(turn):
                    self._add(result, which, self._block(group, result.spec, which, index))
        for result in family:
            result.warmup += self._settings.warmup_per_round * result.spec.processes
        group.release()

    def _add(self, result: RowResult, which: str, taken: Block) -> None:
        if which == "floor":
            result.floor.add(taken.samples, taken.elapsed_ns)
            self._row_floors[result.spec.floor].measured.add(taken.samples, taken.elapsed_ns)
            return
        result.row.add(taken.samples, taken.elapsed_ns)
        result.usage.add(taken.used)
        if result.open_loop is not None:
            result.open_loop.add(taken.late_ns, taken.last_late_ns)

    def _take_floor(self, round_: Round, result: FloorResult) -> None:
        spec = result.spec
        self._step(f"floor {spec.name} {spec.payload} B")
        group = round_.group(False, 1)
        group.prepare_floor(spec)
        self._warm_up(group, spec, "floor")
        for _ in range(self._settings.blocks_per_round):
            taken = self._block(group, spec, "floor")
            result.measured.add(taken.samples, taken.elapsed_ns)

    def _take_stages(self, round_: Round, result: StageResult, number: int) -> None:
        """Take blocks of a row without tracing and with it, in turn."""
        spec = result.spec
        self._step(f"stages of {spec.label()}")
        group = round_.group(spec.verifier, spec.processes)
        group.prepare(spec)
        self._warm_up(group, spec, "row")
        count = fitting_count(
            min(self._settings.operations_per_block, _TRACED_AT_MOST),
            self._operation_ns[spec, "row"],
            self._time.warm_up_ns(),
        )
        for block in range(self._settings.blocks_per_round):
            for traced in (False, True) if (number + block) % 2 == 0 else (True, False):
                # Both kinds begin as cold or warm as the other.
                window = Window(count, self._settings.block_warmup_operations)
                if traced:
                    group.take("row", replace(window, count=window.warmup or 1, warmup=0))
                    samples, stages = group.take_traced(count)
                    result.traced.add(samples, sum(samples))
                    result.add_traced(stages)
                else:
                    taken = group.take("row", window)
                    result.untraced.add(taken.samples, taken.elapsed_ns)
        group.release()

    def _warm_up(
        self, group: WorkerGroup, spec: RowSpec | FloorSpec, which: str, index: int = 0
    ) -> None:
        """Run without keeping samples, and learn how long an operation takes."""
        operation_ns = self._operation_ns.get((spec, which), _FIRST_BLOCK_GUESS_NS)
        limit_ns = min(_WARMUP_LIMIT_NS, self._time.warm_up_ns())
        count = fitting_count(self._settings.warmup_operations, operation_ns, limit_ns)
        taken = group.take(which, Window(count, 0, limit_ns), index)
        self._operation_ns[spec, which] = median(taken.samples)

    def _block(
        self, group: WorkerGroup, spec: RowSpec | FloorSpec, which: str, index: int = 0
    ) -> Block:
        """Take a block of as many operations as its share of the time holds.

        Requests in flight together take their time together. Several processes have the time
        that all their operations need one after another, so that none ends long before the rest.
        """
        settings = self._settings
        limit_ns = self._time.next_block_ns()
        each_ns = self._operation_ns[spec, which] / spec.depth
        # An open loop is a matter of user rows: all floors and kernel rows stay closed.
        interval_ns = settings.interval_ns if _is_scheduled(spec) else 0
        count = fitting_count(settings.operations_per_block, max(each_ns, interval_ns), limit_ns)
        if spec.processes > 1:
            limit_ns = min(limit_ns, round(count * each_ns / spec.processes))
        warmup = settings.block_warmup_operations
        return group.take(which, Window(count, warmup, limit_ns, 0, interval_ns), index)

    def _step(self, text: str) -> None:
        self._progress.advance(self._done, self._steps, text)
        self._done += 1

    # The document

    def _document(self, begun: Mapping[str, Any]) -> RunDocument:
        floors = [*self._row_floors.values(), *self._floors.values()]
        rows = [result.as_dict() for result in self._rows.values()]
        settings = self._settings.as_dict()
        marks = marks_of(begun, floors, self._settings.kernel_cpu is not None)
        marks += [mark for row in rows for mark in row["marks"]]
        provenance = end_provenance(begun, marks)
        provenance["warmup"] = {
            "operations_per_row_and_round": self._settings.warmup_per_round,
            "excluded": True,
        }
        return RunDocument(
            KIND,
            provenance,
            settings,
            [floor.as_dict() for floor in floors],
            rows,
            stages=[result.as_dict() for result in self._stages.values()],
            answers=answers_of(rows, settings["blocks_per_round"]),
        )


def marks_of(begun: Mapping[str, Any], floors: Sequence[FloorResult], pinned: bool) -> list[str]:
    """Return what a reader must know of the whole run before trusting its figures."""
    marks = []
    if any(floor.measured.moved() > STEADY for floor in floors):
        marks.append("unsteady")
    if not pinned:
        marks.append("unpinned")
    if is_virtual():
        marks.append("virtual")
    if begun["load_before"][0] > _BUSY_PER_CORE * (begun["machine"]["cores"] or 1):
        marks.append("busy")
    return marks


def _is_scheduled(spec: RowSpec | FloorSpec) -> bool:
    return spec.name == "echo" if isinstance(spec, FloorSpec) else spec.client == "user"


def _floor_result(spec: FloorSpec) -> FloorResult:
    side = "user" if spec.name in _USER_FLOORS else "kernel"
    return FloorResult(spec, side, Measured())
