"""A copy that should not be there is noticed: a filter driver makes one, and the run is marked."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tests.drivers.extra_copy
from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import BenchSettings, tiny_run
from user_proc.bench.full_plan import BASE, kernel_row
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.worker_group import WorkerGroup
from user_proc.bench.worker_link import WorkerLink
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

ROWS = (
    BASE,
    replace(BASE, payload=0),
    replace(BASE, method="neither"),
    replace(BASE, method="out_direct"),
    kernel_row("irp_built"),
)


class OneWorker:
    def __init__(self, link: WorkerLink) -> None:
        self._group = WorkerGroup([link])

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        return self._group


def marks_with(drivers: list[str]) -> dict[RowSpec, list[str]]:
    """Run a few rows in a kernel with these drivers; return the marks about copies."""

    @contextlib.contextmanager
    def open_round(settings: BenchSettings) -> Iterator[OneWorker]:
        kernel = start_kernel("copies-test", settings={"driver": drivers})
        with kernel, WorkerLink("copies-test") as link:
            yield OneWorker(link)

    settings = replace(tiny_run(), rounds=1, rows=ROWS, floors=())
    document = BenchRun(settings, open_round, NoProgress()).run()
    return {
        spec: [mark for mark in row["marks"] if mark == "copies"]
        for spec, row in zip(ROWS, document.rows, strict=True)
    }


def test_no_row_makes_more_copies_than_its_method_has():
    assert set(map(tuple, marks_with([]).values())) == {()}


def test_a_driver_that_copies_once_more_is_noticed():
    driver = f"{Path(tests.drivers.extra_copy.__file__)}:driver_entry"
    marks = marks_with([driver])
    # Only a payload that is buffered is copied; the kernel client sends below the filter.
    assert [spec for spec, found in marks.items() if found] == [BASE]
