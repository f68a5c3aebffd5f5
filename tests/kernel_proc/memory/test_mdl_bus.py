"""The runs of an MDL: arenas, private memory, both, kernel memory; in a row and scattered."""

import os
import time
from itertools import pairwise
from typing import Any

import pytest

from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus, BusRun, FrameMap
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.mdl import (
    IO_WRITE_ACCESS,
    Mdl,
    allocate_mdl,
    build_for_nonpaged_pool,
    map_locked_pages,
    mdl_bus_runs,
    probe_and_lock_pages,
    unlock_pages,
)
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_INVALID_ADDRESS, STATUS_SUCCESS

PAGE = 4096


class OnBus:
    """A process whose memory a device can reach."""

    def __init__(self, kernel: Any, largest_run: int | None = None, frames: int = 1 << 20) -> None:
        self.kernel = kernel
        self.bus = kernel.space.bus = Bus(PageFrameAllocator(frames, largest_run))
        self.arenas = ArenaTable(kernel.space, kernel.lane, MemoryQuota(1 << 40), 1 << 40)

    def place_arena(self, base: int, pages: int) -> int:
        grant = self.kernel.run(self.arenas.allocate, pages * PAGE)
        assert grant.status == STATUS_SUCCESS
        os.close(grant.descriptor)
        assert self.arenas.mapped(grant.arena_id, base) == STATUS_SUCCESS
        return int(grant.arena_id)

    def lock(self, address: int, length: int) -> Mdl:
        mdl = allocate_mdl(self.kernel.processor, address, length)
        assert mdl is not None
        self.kernel.run(probe_and_lock_pages, mdl, USER_MODE, IO_WRITE_ACCESS)
        return mdl

    def close(self) -> None:
        self.kernel.run(self.arenas.close)
        self.kernel.space.close()
        assert self.bus.segments == {}
        assert self.bus.frames.used == 0


@pytest.fixture(params=[None, 1, 3], ids=["in a row", "scattered", "in threes"])
def on_bus(kernel: Any, request: pytest.FixtureRequest) -> Any:
    machine = OnBus(kernel, request.param)
    yield machine
    machine.close()


def check_runs(runs: list[BusRun], length: int, largest_run: int | None) -> None:
    assert sum(size for _, size in runs) == length
    if largest_run is None:
        assert len(runs) == 1
    else:
        assert all(size <= largest_run * PAGE for _, size in runs)
    for (start, size), (following, _) in pairwise(runs):
        assert following == start + size
        assert following % PAGE == 0


def test_an_arena_has_frames_and_a_segment_while_it_lives(on_bus: OnBus):
    base = 0x7000_0000_0000
    arena = on_bus.place_arena(base, 8)
    assert on_bus.bus.frames.used == 8
    mdl = on_bus.lock(base + 100, 6 * PAGE)
    runs = mdl_bus_runs(mdl)
    assert runs[0][0] == 1 << SEGMENT_SHIFT | 100
    check_runs(runs, 6 * PAGE, on_bus.bus.frames.largest_run)
    assert on_bus.kernel.run(on_bus.arenas.free, arena) == STATUS_SUCCESS
    assert mdl_bus_runs(mdl) == runs  # locked memory stays on the bus
    unlock_pages(mdl)
    on_bus.kernel.run(on_bus.arenas.allocate, -1)
    on_bus.kernel.run(on_bus.arenas.close)
    assert on_bus.bus.segments == {}


def test_private_pages_get_frames_when_locked_and_one_segment_a_process(on_bus: OnBus, raw: Any):
    address = raw.map(7)
    assert on_bus.bus.segments == {}
    first = on_bus.lock(address + 50, 5 * PAGE)
    second = on_bus.lock(address, 7 * PAGE)
    assert len(on_bus.bus.segments) == 1
    assert on_bus.bus.frames.used == first.page_count + second.page_count == 13
    for mdl, start, length in ((first, address + 50, 5 * PAGE), (second, address, 7 * PAGE)):
        runs = mdl_bus_runs(mdl)
        assert runs[0][0] == 1 << SEGMENT_SHIFT | start
        check_runs(runs, length, on_bus.bus.frames.largest_run)
    unlock_pages(first)
    unlock_pages(second)
    assert on_bus.bus.frames.used == 0


def test_a_buffer_across_arena_and_private_memory_has_runs_of_both(kernel: Any, raw: Any):
    on_bus = OnBus(kernel)
    address = raw.map(6)
    on_bus.place_arena(address + 2 * PAGE, 2)
    mdl = on_bus.lock(address + PAGE, 5 * PAGE)
    arena, private = 1 << SEGMENT_SHIFT, 2 << SEGMENT_SHIFT
    assert mdl_bus_runs(mdl) == [
        (private | address + PAGE, PAGE),
        (arena, 2 * PAGE),
        (private | address + 4 * PAGE, 2 * PAGE),
    ]
    unlock_pages(mdl)
    on_bus.close()


def test_kernel_memory_is_described_like_pool_and_reaches_the_device(kernel: Any):
    memory = KernelMemory(Bus(PageFrameAllocator(1 << 20)), None, 1 << 20, 1 << 16)
    buffer = memory.allocate_contiguous(3 * PAGE)
    assert buffer is not None
    mdl = allocate_mdl(kernel.processor, buffer, 2 * PAGE + 1)
    assert mdl is not None
    build_for_nonpaged_pool(mdl)
    assert mdl_bus_runs(mdl) == [(buffer.bus_address, 2 * PAGE + 1)]
    map_locked_pages(mdl).write(PAGE, b"seen")
    assert bytes(buffer.view[PAGE : PAGE + 4]) == b"seen"
    memory.free(buffer)
    memory.close()


def test_what_no_device_reaches_has_no_runs(kernel: Any, raw: Any):
    pool = kernel.pool.allocate(100, "Test")
    described = allocate_mdl(kernel.processor, pool, 100)
    assert described is not None
    build_for_nonpaged_pool(described)
    unlocked = allocate_mdl(kernel.processor, raw.map(1), 10)
    locked = allocate_mdl(kernel.processor, raw.map(1), 10)  # of a process without a bus
    kernel.run(probe_and_lock_pages, locked, USER_MODE, IO_WRITE_ACCESS)
    for mdl in (described, unlocked, locked):
        assert mdl is not None
        with pytest.raises(RaisedStatus) as caught:
            mdl_bus_runs(mdl)
        assert caught.value.status == STATUS_INVALID_ADDRESS
    assert locked is not None
    unlock_pages(locked)


def test_frames_that_run_out_refuse_lock_and_arena_and_leave_nothing(kernel: Any, raw: Any):
    on_bus = OnBus(kernel, frames=4)
    address = raw.map(8)
    mdl = allocate_mdl(kernel.processor, address, 5 * PAGE)
    assert mdl is not None
    with pytest.raises(RaisedStatus) as caught:
        kernel.run(probe_and_lock_pages, mdl, USER_MODE, IO_WRITE_ACCESS)
    assert caught.value.status == STATUS_INSUFFICIENT_RESOURCES
    assert (kernel.process.locked_pages, kernel.space.locked_mdls) == (0, {})
    grant = kernel.run(on_bus.arenas.allocate, 5 * PAGE)
    assert grant.status == STATUS_INSUFFICIENT_RESOURCES
    assert on_bus.arenas.inspect()["held"] == 0
    mdl = on_bus.lock(address, 4 * PAGE)
    unlock_pages(mdl)
    on_bus.close()


def test_a_gibibyte_in_a_row_costs_next_to_nothing():
    # Only the description: no memory of that size is touched.
    bus = Bus(PageFrameAllocator())
    runs = bus.frames.allocate(1 << 18)
    scattered = PageFrameAllocator(largest_run=1).allocate(1 << 18)
    assert runs is not None
    assert scattered is not None
    started = time.process_time()
    assert FrameMap(runs).split(PAGE, 0, 1 << 30) == [(PAGE, 1 << 30)]
    assert len(FrameMap(scattered).split(PAGE, 0, 1 << 30)) == 1 << 18
    assert time.process_time() - started < 2.0
