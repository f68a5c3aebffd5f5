"""The run of the data path's benchmark: every row beside its floor, unloaded and loaded.

Blocks of a row and of its floor are taken in turn, and which comes first alternates, so that a slow
drift of the machine favours neither.

Rules: this process only waits while something is measured.
"""

from collections.abc import Mapping
from typing import Any, Final

from user_proc.bench.bench_run import marks_of
from user_proc.bench.progress_view import Progress
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.row_results import FloorResult
from user_proc.bench.speed.kernel_transfer import transfer_for
from user_proc.bench.speed.speed_answers import answers_of
from user_proc.bench.speed.speed_blocks import Transfer
from user_proc.bench.speed.speed_kernels import OpenRound, SpeedRound, open_round
from user_proc.bench.speed.speed_results import SpeedFloorResult, SpeedResult
from user_proc.bench.speed.speed_rows import EVENT, LOADED, SpeedFloor, SpeedSpec
from user_proc.bench.speed.speed_settings import SpeedSettings
from user_proc.bench.time_share import TimeShare, turns
from user_proc.run_document import RunDocument
from user_proc.run_provenance import begin_provenance, end_provenance

KIND: Final = "speed"
_LEAST_MESSAGES: Final = 5  # the first of a block pays for cold caches
_SHARES: Final = 2  # one block in two is a floor's, and those are shorter


class SpeedRun:
    """One run; `open_kernel` starts kernel and user processes of a round."""

    def __init__(
        self,
        settings: SpeedSettings,
        progress: Progress,
        open_kernel: OpenRound = open_round,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._open = open_kernel
        rows = sorted(settings.rows, key=lambda row: row.load == LOADED)
        self._results = {spec: SpeedResult(spec) for spec in rows}
        self._floors: dict[SpeedFloor, SpeedFloorResult] = {}
        self._spin = 0
        self._load: list[int] = []
        self._steps = settings.rounds * len(rows)
        self._done = 0

    def run(self) -> RunDocument:
        """Perform the run and return its document."""
        provenance = begin_provenance()
        time = TimeShare(self._settings.time_ns, 2 * self._settings.blocks * len(self._results), 3)
        for number in range(self._settings.rounds):
            self._progress.advance(self._done, self._steps, "starting")
            with self._open(self._settings) as round_:
                self._take_round(round_, number, time)
        return self._document(provenance)

    def _take_round(self, round_: SpeedRound, number: int, time: TimeShare) -> None:
        leader, *others = round_.workers
        told = leader.ask("make_words")
        self._spin = told["spin"]
        for worker in (leader, *others):
            worker.ask("map_words", path=told["path"])
        loaded = False
        for result in self._results.values():
            if result.spec.load == LOADED and not loaded:
                loaded = True
                round_.load()
            self._take_row(round_, result, number, time)
        if loaded:
            self._load.append(round_.unload())

    def _take_row(
        self, round_: SpeedRound, result: SpeedResult, number: int, time: TimeShare
    ) -> None:
        spec, settings = result.spec, self._settings
        self._progress.advance(self._done, self._steps, spec.label())
        self._done += 1
        result.spin = self._spin
        transfer = transfer_for(spec, round_.workers)
        transfer.prepare()
        wanted_ns = settings.block_ns * (2 if spec.mode == EVENT else 1)
        row_ns = self._warm_up(transfer, result)
        floor_ns = self._warm_up_floor(transfer)
        for block in range(settings.blocks_per_round):
            for which in turns(number + block):
                limit_ns = min(wanted_ns, time.next_block_ns())
                if which == "row":
                    row_ns = self._row_block(transfer, result, limit_ns / row_ns)
                else:
                    self._floor_block(transfer, result, limit_ns / _SHARES / floor_ns)
        transfer.release()

    def _warm_up(self, transfer: Transfer, result: SpeedResult) -> float:
        """Take blocks that are not counted; return the time of a message of a pair."""
        spec = result.spec
        count = _whole(self._settings.warmup if spec.is_latency else spec.depth * spec.qps, spec)
        for _ in range(2):
            taken = transfer.block(count)
            result.warmup += taken.messages
        return max(1.0, taken.elapsed_ns / count)

    def _warm_up_floor(self, transfer: Transfer) -> float:
        taken = transfer.floor_block(_LEAST_MESSAGES)
        return max(1.0, taken.elapsed_ns / _LEAST_MESSAGES)

    def _row_block(self, transfer: Transfer, result: SpeedResult, fitting: float) -> float:
        """Take a block of as many messages as fit; return the time of a message of a pair."""
        least = _LEAST_MESSAGES if result.spec.is_latency else 2 * result.spec.depth
        count = max(least, min(self._settings.most_operations, round(fitting)))
        count = _whole(count, result.spec)
        taken = transfer.block(count)
        result.add(taken.samples, taken.messages, taken.elapsed_ns)
        result.cpu_ns += taken.cpu_ns
        result.checked += result.spec.pairs
        return max(1.0, taken.elapsed_ns / count)

    def _floor_block(self, transfer: Transfer, result: SpeedResult, fitting: float) -> None:
        count = max(_LEAST_MESSAGES, min(self._settings.floor_operations, round(fitting)))
        taken = transfer.floor_block(count)
        result.floor.add(taken.samples, taken.elapsed_ns)
        floor = result.spec.floor
        known = self._floors.setdefault(floor, SpeedFloorResult(floor))
        known.measured.add(taken.samples, taken.elapsed_ns)

    # The document

    def _document(self, begun: Mapping[str, Any]) -> RunDocument:
        floors = list(self._floors.values())
        rows = [result.as_dict() for result in self._results.values()]
        steady = [FloorResult(FloorSpec("echo", 0), "user", floor.measured) for floor in floors]
        provenance = end_provenance(begun, marks_of(begun, steady, pinned=False))
        provenance["warmup"] = {"blocks_per_row_and_round": 2, "excluded": True}
        settings = {
            **self._settings.as_dict(),
            "spin": self._spin,
            "load_verbs_per_s": self._load,
        }
        return RunDocument(
            KIND,
            provenance,
            settings,
            [floor.as_dict() for floor in floors],
            rows,
            answers=answers_of(rows),
        )


def _whole(count: int, spec: SpeedSpec) -> int:
    """Return a count that is whole chains on every queue pair, at least the one asked for."""
    unit = spec.chain * spec.qps if not spec.is_latency else 1
    return -(-count // unit) * unit
