"""The run of the verbs' benchmark: every verb by model and client, registrations, the control mix.

Blocks of a row and of its floor are taken in turn, and which comes first alternates, so that a slow
drift of the machine favours neither.

Rules: this process only waits while something is measured.
"""

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from shared.clock import now_ns
from shared.verb_program import pack_program
from user_proc.bench.bench_run import marks_of
from user_proc.bench.progress_view import Progress
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.row_results import FloorResult
from user_proc.bench.sample_statistics import median
from user_proc.bench.time_share import TimeShare, turns
from user_proc.bench.timed_loops import Window
from user_proc.bench.verbs.verb_answers import answers_of
from user_proc.bench.verbs.verb_kernels import OpenPart, open_part
from user_proc.bench.verbs.verb_operations import StepCommands
from user_proc.bench.verbs.verb_programs import Program, control_mix, every_verb, registration
from user_proc.bench.verbs.verb_results import CONTROL_MIX, VerbResult, VerbSpec
from user_proc.bench.verbs.verb_settings import SLOW_MODEL, VerbsSettings
from user_proc.bench.worker_group import Worker, WorkerGroup
from user_proc.bench.worker_link import WorkerRefused
from user_proc.run_document import RunDocument
from user_proc.run_provenance import begin_provenance, end_provenance

KIND: Final = "verbs"
CLIENTS: Final = ("user", "kernel")
MEMORIES: Final = ("arena", "private", "kernel")
_MS: Final = 1_000_000
_NO_LIMIT_NS: Final = 60_000_000_000
_FEW_PASSES: Final = 10
_LEAST_OPERATIONS: Final = 2  # the first of a block pays for cold caches
_MOST_OPERATIONS: Final = 200


class VerbsRun:
    """One run; `open_part` starts kernels and user processes, `room` is memory it may take."""

    def __init__(
        self,
        settings: VerbsSettings,
        progress: Progress,
        room: int,
        open_kernel: OpenPart = open_part,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._open = open_kernel
        self._sizes = [size for size in settings.sizes if 3 * size <= room]
        self._skipped = [
            f"{size} B: not enough free memory" for size in settings.sizes if 3 * size > room
        ]
        if settings.base_model is None:
            self._skipped.append(f"registrations and the control mix: not under {SLOW_MODEL}")
        self._results: dict[VerbSpec, VerbResult] = {}
        self._floors: dict[FloorSpec, FloorResult] = {}
        self._life: dict[str, list[int]] = {"start": [], "open": []}
        cells = len(settings.layouts) * len(self._sizes) * len(MEMORIES)
        each_round = len(settings.models) * len(CLIENTS) + cells + len(settings.processes)
        self._steps = settings.rounds * each_round
        self._done = 0

    def run(self) -> RunDocument:
        """Perform the run and return its document."""
        provenance = begin_provenance()
        for number in range(self._settings.rounds):
            for model in self._settings.models:
                self._verbs_under(model, number)
            base = self._settings.base_model
            if base is not None:
                self._scattered_registrations(base, number)
                self._mixes(base, number)
        return self._document(provenance)

    # Every verb

    def _verbs_under(self, model: str, number: int) -> None:
        settings = self._settings
        if model == SLOW_MODEL and number:
            return  # a few passes are enough: the model's times are constants
        begin = now_ns()
        with self._open(settings, model, settings.layouts[0], 1) as workers:
            if not number:
                self._life["start"].append(now_ns() - begin)
            group = WorkerGroup(workers)
            for client in CLIENTS:
                self._step(f"verbs of a {client} client, model {model}")
                self._every_verb(group, model, client, number)
            (answer,) = group.ask_all("opens", count=settings.opens)
            self._life["open"] += answer["open_ns"]
            if model == settings.base_model:
                self._registrations(group, model, settings.layouts[0], number)

    def _every_verb(self, group: WorkerGroup, model: str, client: str, number: int) -> None:
        settings = self._settings
        program = every_verb().for_client(client)
        results = [
            self._result(VerbSpec(step.row, client, model)) if step.row else None
            for step in program.steps
        ]
        known = [result for result in results if result is not None]
        _prepare(group, program, client, known[0].spec.floor)
        slow = model == SLOW_MODEL
        blocks = 1 if slow else settings.blocks_per_round
        passes = settings.slow_passes if slow else settings.passes_per_block
        time = TimeShare(self._verbs_share_ns(), 2 * blocks, 3)
        if not slow:
            self._warm_up(group, settings.warmup_passes, known)
        for block in range(blocks):
            for which in turns(number + block):
                if which == "floor":
                    self._floor_block(group, known, time.next_block_ns())
                else:
                    window = Window(passes, 0, time.next_block_ns())
                    self._step_block(group, results, window)
        group.release()

    def _verbs_share_ns(self) -> int:
        """Return the time of one client under one model in one round."""
        settings = self._settings
        return settings.verbs_ns // (settings.rounds * len(CLIENTS) * len(settings.models))

    def _step_block(
        self, group: WorkerGroup, results: Sequence[VerbResult | None], window: Window
    ) -> None:
        """Take a block of passes: samples and commands for every row at once."""
        (answer,) = group.ask_all("steps", window=asdict(window))
        for result, column in zip(results, answer["samples"], strict=True):
            if result is not None:
                result.add(array("Q", column), sum(column))
        for result, of_step in zip(results, _commands(answer), strict=False):
            if result is not None:
                result.commands.add(of_step)

    def _warm_up(self, group: WorkerGroup, passes: int, results: Sequence[VerbResult]) -> None:
        group.take("floor", Window(self._settings.floor_operations))
        group.ask_all("steps", window=asdict(Window(passes)))
        for result in results:
            result.warmup += passes

    def _floor_block(
        self, group: WorkerGroup, results: Sequence[VerbResult], limit_ns: int
    ) -> None:
        spec = results[0].spec.floor
        window = Window(self._settings.floor_operations, 5, limit_ns)
        taken = group.take("floor", window)
        self._floor(spec).measured.add(taken.samples, taken.elapsed_ns)
        for result in results:
            result.floor.add(taken.samples, taken.elapsed_ns)

    # Registrations

    def _scattered_registrations(self, model: str, number: int) -> None:
        for layout in self._settings.layouts[1:] if self._sizes else ():
            with self._open(self._settings, model, layout, 1) as workers:
                self._registrations(WorkerGroup(workers), model, layout, number)

    def _registrations(self, group: WorkerGroup, model: str, layout: str, number: int) -> None:
        settings = self._settings
        cells = [
            (size, memory)
            for size, memory in itertools.product(self._sizes, MEMORIES)
            if memory != "kernel" or size <= settings.largest_kernel_region
        ]
        share = settings.registration_ns // (settings.rounds * len(settings.layouts))
        time = TimeShare(share, len(cells) * settings.blocks_per_round * 2, 3)
        for size, memory in cells[:: 1 if number % 2 == 0 else -1]:
            self._step(f"registration of {size} B, {memory} memory, {layout}")
            client = "kernel" if memory == "kernel" else "user"
            spec = VerbSpec("reg_mr", client, model, 1, size, layout, memory)
            try:
                self._registration(group, spec, number, time)
            except WorkerRefused as refused:
                self._skipped.append(f"{size} B, {memory}, {layout}: {refused}")

    def _registration(
        self, group: WorkerGroup, spec: VerbSpec, number: int, time: TimeShare
    ) -> None:
        program = registration(spec.bytes or 0)
        results = [VerbResult(replace(spec, verb=row)) for row in program.rows]
        place = {"memory": spec.memory, "length": spec.bytes} if spec.client == "user" else {}
        _prepare(group, program, spec.client, spec.floor, **place)
        self._warm_up(group, 1, results)
        for block in range(self._settings.blocks_per_round):
            for which in turns(number + block):
                limit_ns = time.next_block_ns()
                if which == "floor":
                    self._floor_block(group, results, limit_ns)
                else:
                    window = Window(self._settings.passes_per_block, 0, limit_ns)
                    self._step_block(group, results, window)
        group.release()
        for result in results:
            self._keep(result)

    # The mix

    def _mixes(self, model: str, number: int) -> None:
        settings = self._settings
        if not settings.processes:
            return
        share = settings.mix_ns // settings.rounds
        time = TimeShare(share, len(settings.processes) * settings.blocks_per_round * 2, 3)
        most = max(settings.processes)
        with self._open(settings, model, settings.layouts[0], most) as workers:
            commands: list[StepCommands] = []
            for processes in sorted(settings.processes):
                self._step(f"control mix, {processes} processes")
                spec = VerbSpec(CONTROL_MIX, "user", model, processes)
                self._mix(workers[:processes], self._result(spec), number, time, commands)

    def _mix(
        self,
        workers: Sequence[Worker],
        result: VerbResult,
        number: int,
        time: TimeShare,
        commands: list[StepCommands],
    ) -> None:
        settings, group = self._settings, WorkerGroup(workers)
        mix = control_mix()
        result.verbs = len(mix.steps)
        _prepare(group, mix, "user", result.spec.floor)
        if not commands:  # only one process's verbs can be told apart
            commands += _commands(workers[0].ask("steps", window=asdict(Window(_FEW_PASSES))))
        if commands:
            result.commands.add_all(commands)
        each_ns = median(group.take("row", Window(1)).samples)
        echo_ns = median(group.take("floor", Window(settings.floor_operations)).samples)
        result.warmup += len(workers)
        for block in range(settings.blocks_per_round):
            for which in turns(number + block):
                share_ns = time.next_block_ns()
                one_ns = each_ns if which == "row" else echo_ns
                count = min(_MOST_OPERATIONS, max(_LEAST_OPERATIONS, round(share_ns / one_ns)))
                window = Window(count, 0, _NO_LIMIT_NS)
                taken = group.take(which, window)
                if which == "floor":
                    self._floor(result.spec.floor).measured.add(taken.samples, taken.elapsed_ns)
                    result.floor.add(taken.samples, taken.elapsed_ns)
                else:
                    result.add(taken.samples, taken.elapsed_ns)
                    result.usage.add(taken.used)
        group.release()

    # Results

    def _result(self, spec: VerbSpec) -> VerbResult:
        return self._results.setdefault(spec, VerbResult(spec))

    def _keep(self, result: VerbResult) -> None:
        """Add what a round measured to the row; a cell that was refused midway leaves nothing."""
        kept = self._result(result.spec)
        for mine, other in ((kept.row, result.row), (kept.floor, result.floor)):
            for block, elapsed in zip(other.blocks, other.elapsed, strict=True):
                mine.add(block, elapsed)
        for times in ("took_ns", "asked_ns", "device_ns"):
            getattr(kept.commands, times).extend(getattr(result.commands, times))
        kept.commands.names += result.commands.names
        kept.warmup += result.warmup

    def _floor(self, spec: FloorSpec) -> FloorResult:
        side = "kernel" if spec.name == "thread_switch" else "user"
        return self._floors.setdefault(spec, FloorResult(spec, side))

    def _step(self, text: str) -> None:
        self._progress.advance(min(self._done, self._steps), self._steps, text)
        self._done += 1

    def _document(self, begun: Mapping[str, Any]) -> RunDocument:
        floors = list(self._floors.values())
        rows = [result.as_dict() for result in self._results.values()]
        provenance = end_provenance(begun, marks_of(begun, floors, pinned=False))
        provenance["warmup"] = {
            "passes_per_row_and_round": self._settings.warmup_passes,
            "excluded": True,
        }
        settings = {**self._settings.as_dict(), "not_measured": self._skipped}
        return RunDocument(
            KIND,
            provenance,
            settings,
            [floor.as_dict() for floor in floors],
            rows,
            answers=answers_of(rows),
            kernel=self._kernel_life(),
        )

    def _kernel_life(self) -> dict[str, Any]:
        opens, starts = self._life["open"], self._life["start"]
        return {
            "start_and_connect_ms": round(median(starts) / _MS, 2) if starts else None,
            "opens": len(opens),
            "open_device_ms": round(median(opens) / _MS, 3),
            "open_device_max_ms": round(max(opens) / _MS, 3),
        }


def _prepare(
    group: WorkerGroup, program: Program, client: str, floor: FloorSpec, **place: Any
) -> None:
    group.ask_all(
        "prepare_program",
        setup=pack_program(program.setup).hex(),
        program=pack_program(one.step for one in program.steps).hex(),
        client=client,
        floor=floor.as_dict(),
        **place,
    )


def _commands(answer: Mapping[str, Any]) -> list[StepCommands]:
    """Return the commands of each step; none at all if they could not be told apart."""
    return [StepCommands(**one) for one in answer["commands"] or []]
