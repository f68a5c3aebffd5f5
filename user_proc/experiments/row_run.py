"""Rows of the IRP benchmark as an experiment takes them: a plan of its own, the same loops.

Rules: kernels and user processes are this run's own, and are ended with it.
Spec: docs/benchmark.md.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.own_kernel import kernel_with, start_workers
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.row_figures import RowBook
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.worker_group import WorkerGroup
from user_proc.bench.worker_link import WorkerLink
from user_proc.experiments.experiment import Progress, Row

_SECOND: Final = 1_000_000_000
_ROUNDS: Final = {True: 3, False: 5}
_BLOCKS: Final = {True: 5, False: 3}
_OPERATIONS: Final = {True: 40, False: 400}
_WARM_UP: Final = {True: 20, False: 200}
_LIMIT_NS: Final = {True: 4 * _SECOND, False: 60 * _SECOND}

KernelOptions = Mapping[str, object]


class _Told(NoProgress):
    """Hands the benchmark's progress on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def advance(self, done: int, total: int, text: str) -> None:
        """Tell how far the run is."""
        self._progress(done, total, text)


class _Round:
    """One kernel with these options; user processes as rows ask for them."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self._name = name
        self._stack = stack
        self._workers: list[WorkerLink] = []

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        """Return so many user processes; a row for verifier mode has no place here."""
        if verifier:
            raise ValueError("the kernel of an experiment's rows has one mode")
        missing = processes - len(self._workers)
        if missing > 0:
            self._workers += start_workers(self._stack, self._name, missing)
        return WorkerGroup(self._workers[:processes])


def take_rows(
    plan: Sequence[RowSpec], quick: bool, progress: Progress, options: KernelOptions
) -> list[Row]:
    """Measure the rows of a plan; `measured` of each has all the benchmark knows of it."""
    settings = BenchSettings(
        mode="experiment",
        rounds=_ROUNDS[quick],
        blocks_per_round=_BLOCKS[quick],
        operations_per_block=_OPERATIONS[quick],
        warmup_operations=_WARM_UP[quick],
        block_warmup_operations=3,
        time_limit_ns=_LIMIT_NS[quick],
        rows=tuple(plan),
        floors=(),
    )

    @contextlib.contextmanager
    def opened(settings: BenchSettings) -> Iterator[_Round]:
        with contextlib.ExitStack() as stack:
            kernel = kernel_with({"spin_us": settings.kernel_spin_us, **options})
            yield _Round(stack.enter_context(kernel).name, stack)

    document = BenchRun(settings, opened, _Told(progress)).run()
    return [_row_of(row, settings.blocks_per_round) for row in document.rows]


def _row_of(row: Mapping[str, Any], blocks_per_round: int) -> Row:
    low, high = row["p50_interval_us"]
    return {
        "client": row["client"],
        "path": row["path"],
        "method": row["method"],
        "memory": row["memory"],
        "completion": row["completion"],
        "payload": row["payload"],
        "p50_us": row["p50_us"],
        "low_us": low,
        "high_us": high,
        "ops_per_s": round(row["ops_per_s"]),
        "copies": row["copies"],
        "cpu_us": row["cpu_user_us"] + row["cpu_kernel_us"],
        "measured": {**row, "blocks_per_round": blocks_per_round},
    }


def book_of(rows: Sequence[Row]) -> RowBook:
    """Return the rows for comparing: differences are those of blocks taken in turn."""
    measured = [row["measured"] for row in rows if "measured" in row]
    return RowBook(measured, measured[0]["blocks_per_round"] if measured else 1)
