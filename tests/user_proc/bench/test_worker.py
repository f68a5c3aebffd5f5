"""The benchmark's user process at a real kernel: rows, floors, exact counts, errors."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.envelope import HEADER
from user_proc.bench.row_plan import FloorSpec, RowSpec, extra_floors, plan_rows
from user_proc.bench.worker_link import WorkerFailed, WorkerLink
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
COUNT, WARMUP = 9, 2


@pytest.fixture(scope="module")
def worker(private_run: object) -> Iterator[WorkerLink]:
    with start_kernel("worker-test"), WorkerLink("worker-test") as link:
        yield link


def block(worker: WorkerLink, which: str) -> dict[str, Any]:
    answer = worker.ask("block", which=which, count=COUNT, warmup=WARMUP, limit_ns=10_000_000_000)
    assert len(answer["samples"]) == COUNT
    assert all(sample > 0 for sample in answer["samples"])
    assert answer["used"].pop("operations") == COUNT + WARMUP
    return dict(answer["used"])


@pytest.mark.parametrize("row", plan_rows(), ids=RowSpec.label)
def test_every_row_runs_and_its_bytes_are_counted_exactly(worker: WorkerLink, row: RowSpec):
    worker.ask("prepare", row=row.as_dict())
    used = block(worker, "row")
    operations = COUNT + WARMUP
    # Buffered: a copy in and one back. By the private road: one to read, one to write.
    copied = row.method == "buffered" or row.memory == "private"
    assert used["copies"] == (2 * operations if copied and row.payload else 0)
    assert used["bytes_copied"] == (2 * row.payload * operations if copied else 0)
    if row.client == "user":
        carried = 2 * row.payload if row.method == "buffered" else 0
        assert used["wire_bytes"] == (2 * HEADER.size + carried) * operations
    else:
        assert used["wire_bytes"] == 0
    floor = block(worker, "floor")
    if row.floor.name == "echo":
        assert floor["wire_bytes"] == 2 * (HEADER.size + row.floor.payload) * operations
        assert floor["copies"] == 0


@pytest.mark.parametrize("floor", extra_floors(), ids=lambda f: f"{f.name}-{f.payload}")
def test_every_floor_runs(worker: WorkerLink, floor: FloorSpec):
    worker.ask("prepare_floor", floor=floor.as_dict())
    block(worker, "floor")


def test_a_block_ends_when_its_time_is_up(worker: WorkerLink):
    worker.ask("prepare", row=plan_rows()[0].as_dict())
    answer = worker.ask("block", which="row", count=100_000, warmup=0, limit_ns=5_000_000)
    assert 5 <= len(answer["samples"]) < 100_000
    assert sum(answer["samples"]) < 1_000_000_000


def test_processor_time_is_measured_on_both_sides(worker: WorkerLink):
    worker.ask("prepare", row=RowSpec("user", "irp", "buffered", "arena", "inline", 64).as_dict())
    answer = worker.ask("block", which="row", count=2_000, warmup=0, limit_ns=10_000_000_000)
    used = answer["used"]
    wall = sum(answer["samples"])
    assert 0 < used["cpu_user_ns"] <= 2 * wall
    assert 0 < used["cpu_kernel_ns"] <= 2 * wall
    assert used["cpu_user_system_ns"] <= used["cpu_user_ns"]


def test_what_the_kernel_refuses_is_told_and_the_worker_goes_on(worker: WorkerLink):
    impossible = RowSpec("kernel", "irp", "neither", "none", "dpc", 2 << 20)
    worker.ask("prepare", row=impossible.as_dict())
    with pytest.raises(WorkerFailed, match="STATUS_INVALID_PARAMETER"):
        worker.ask("block", which="row", count=1, warmup=0, limit_ns=1_000_000)
    worker.ask("prepare", row=plan_rows()[0].as_dict())
    block(worker, "row")
