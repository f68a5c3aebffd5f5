"""The benchmark's user process at a real kernel: rows, floors, exact counts, errors."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared.envelope import HEADER, MAX_PAYLOAD
from user_proc.bench.full_plan import BASE, extra_floors, plan_rows, stage_rows
from user_proc.bench.row_plan import FloorSpec, Memory, RowSpec
from user_proc.bench.row_results import Usage
from user_proc.bench.stage_times import STAGES
from user_proc.bench.timed_loops import Window
from user_proc.bench.worker_group import Block, WorkerGroup
from user_proc.bench.worker_link import WorkerFailed, WorkerLink
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
COUNT, WARMUP = 9, 2


@pytest.fixture(scope="module")
def workers(private_run: object) -> Iterator[list[WorkerLink]]:
    """Eight user processes of one kernel."""
    with start_kernel("worker-test"), contextlib.ExitStack() as stack:
        links = [WorkerLink("worker-test") for _ in range(8)]
        yield [stack.enter_context(link) for link in links]


def take(workers: list[WorkerLink], which: str, window: Window, processes: int = 1) -> Block:
    return WorkerGroup(workers[:processes]).take(which, window)


def block(workers: list[WorkerLink], which: str, processes: int = 1) -> Usage:
    taken = take(workers, which, Window(COUNT, WARMUP, 10_000_000_000), processes)
    assert len(taken.samples) == COUNT * processes
    assert all(sample > 0 for sample in taken.samples)
    assert taken.elapsed_ns >= max(taken.samples)
    assert taken.used.operations == (COUNT + WARMUP) * processes
    return taken.used


def wire_bytes(row: RowSpec) -> int:
    """What one operation of a row sends both ways."""
    if row.client == "kernel":
        return 0
    carried = 2 * row.payload if row.method == "buffered" and row.payload <= MAX_PAYLOAD else 0
    # An overlapped request that is pended has two answers.
    return (3 if row.depth > 1 else 2) * HEADER.size + carried


@pytest.mark.parametrize("row", plan_rows(), ids=RowSpec.label)
def test_every_row_runs_and_its_copies_are_counted_exactly(workers: list[WorkerLink], row: RowSpec):
    group = WorkerGroup(workers[: row.processes])
    group.prepare(row)
    used = block(workers, "row", row.processes)
    operations = (COUNT + WARMUP) * row.processes
    # Buffered: the input and what Information says. In an arena, direct or raw: none.
    copied = 2 if row.method == "buffered" and row.payload else 0
    if row.memory == "private" and row.method == "neither":
        copied = 2  # by the private road, one to read and one to write
    elif row.memory == "private" and row.method != "buffered":
        copied = 1
    assert row.copies == copied
    assert used.copies == copied * operations
    assert used.bytes_copied == copied * row.payload * operations
    assert used.wire_bytes == wire_bytes(row) * operations
    floor = block(workers, "floor", row.processes)
    if row.floor.name == "echo":
        assert floor.wire_bytes == 2 * (HEADER.size + row.floor.payload) * operations
        assert floor.copies == 0
    group.release()


@pytest.mark.parametrize(("memory", "copied"), [("arena", 2), ("private", 3)])
def test_private_bytes_too_long_for_a_message_are_fetched_before_they_are_buffered(
    workers: list[WorkerLink], memory: Memory, copied: int
):
    row = replace(BASE, memory=memory, payload=4 * MAX_PAYLOAD, completion="inline")
    group = WorkerGroup(workers[:1])
    group.prepare(row)
    used = block(workers, "row")
    assert used.copies == row.copies * used.operations == copied * used.operations
    assert used.bytes_copied == copied * row.payload * used.operations
    assert used.wire_bytes == wire_bytes(row) * used.operations
    group.release()


def test_the_rows_of_a_family_are_taken_in_turn(workers: list[WorkerLink]):
    family = (BASE, replace(BASE, method="neither"), replace(BASE, method="out_direct"))
    group = WorkerGroup(workers[:1])
    group.prepare(*family)
    for index in (0, 1, 2, 2, 1, 0):
        taken = group.take("row", Window(COUNT, WARMUP), index)
        assert taken.used.copies == family[index].copies * (COUNT + WARMUP)
        assert taken.used.wire_bytes == wire_bytes(family[index]) * (COUNT + WARMUP)
    group.release()


@pytest.mark.parametrize("floor", extra_floors(), ids=lambda f: f"{f.name}-{f.payload}")
def test_every_floor_runs(workers: list[WorkerLink], floor: FloorSpec):
    WorkerGroup(workers[:1]).prepare_floor(floor)
    block(workers, "floor")


@pytest.mark.parametrize("depth", [1, 16])
def test_a_block_ends_when_its_time_is_up(workers: list[WorkerLink], depth: int):
    WorkerGroup(workers[:1]).prepare(replace(BASE, depth=depth))
    for which in ("row", "floor"):
        taken = take(workers, which, Window(100_000, 0, 5_000_000))
        assert 5 <= len(taken.samples) < 100_000
        assert taken.elapsed_ns < 1_000_000_000


def test_processor_time_is_measured_on_both_sides(workers: list[WorkerLink]):
    WorkerGroup(workers[:1]).prepare(replace(BASE, completion="inline"))
    taken = take(workers, "row", Window(2_000, 0, 10_000_000_000))
    used, wall = taken.used, sum(taken.samples)
    assert 0 < used.cpu_user_ns <= 2 * wall
    assert 0 < used.cpu_kernel_ns <= 2 * wall
    assert used.cpu_user_system_ns <= used.cpu_user_ns


def test_processes_begin_together(workers: list[WorkerLink]):
    group = WorkerGroup(workers[:4])
    group.prepare(replace(BASE, processes=4))
    taken = group.take("row", Window(200, 5, 10_000_000_000))
    assert len(taken.samples) == 800
    # One after another they would need the time of all samples.
    assert taken.elapsed_ns < sum(taken.samples) / 2
    assert taken.used.cpu_user_ns > 0
    assert taken.used.cpu_kernel_ns > 0
    group.release()


def test_many_in_flight_take_less_time_each_than_one_waits(workers: list[WorkerLink]):
    WorkerGroup(workers[:1]).prepare(replace(BASE, depth=16))
    taken = take(workers, "row", Window(160, 16, 10_000_000_000))
    assert taken.elapsed_ns < sum(taken.samples) / 4


def test_an_open_loop_keeps_its_rate(workers: list[WorkerLink]):
    WorkerGroup(workers[:1]).prepare(BASE)
    taken = take(workers, "row", Window(50, 2, 10_000_000_000, 0, 2_000_000))
    assert len(taken.samples) == 50
    assert taken.elapsed_ns >= 49 * 2_000_000
    assert taken.late_ns >= taken.last_late_ns >= 0


@pytest.mark.parametrize("row", stage_rows(), ids=RowSpec.label)
def test_the_stages_of_a_request_add_up_to_its_time(workers: list[WorkerLink], row: RowSpec):
    group = WorkerGroup(workers[:1])
    group.prepare(row)
    samples, found = group.take_traced(20)
    whole = [(sample, stages) for sample, stages in zip(samples, found, strict=True) if stages]
    assert len(whole) >= 18
    for sample, stages in whole:
        assert list(stages) == list(STAGES)
        assert sum(stages.values()) == sample
        assert all(time >= 0 for time in stages.values())
    _, stages = whole[0]
    assert stages["to the kernel"] > 0 < stages["to the user"]
    assert (stages["dpc"] > 0) == (row.completion != "inline")
    assert (stages["copy out"] > 0) == (row.method == "buffered")
    assert (stages["copy in or map"] > 0) == (row.path != "fast_io")
    group.release()


def test_tracing_is_off_again_after_a_traced_block(workers: list[WorkerLink]):
    group = WorkerGroup(workers[:1])
    group.prepare(BASE)
    group.take_traced(5)
    _, found = group.take_traced(3)
    assert len(found) == 3
    used = block(workers, "row")
    assert used.wire_bytes == wire_bytes(BASE) * (COUNT + WARMUP)


def test_what_the_kernel_refuses_is_told_and_the_worker_goes_on(workers: list[WorkerLink]):
    impossible = RowSpec("kernel", "irp", "neither", "none", "dpc", 2 << 20)
    WorkerGroup(workers[:1]).prepare(impossible)
    with pytest.raises(WorkerFailed, match="STATUS_INVALID_PARAMETER"):
        take(workers, "row", Window(1))
    WorkerGroup(workers[:1]).prepare(BASE)
    block(workers, "row")
