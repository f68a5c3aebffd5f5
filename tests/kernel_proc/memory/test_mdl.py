"""MDLs: fields and flags, locking, mapping, chains, and the misuses that stop the machine."""

import gc
import mmap
import os
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.memory.mdl import (
    IO_MODIFY_ACCESS,
    IO_READ_ACCESS,
    IO_WRITE_ACCESS,
    LARGEST_MDL,
    MDL_MAPPED_TO_SYSTEM_VA,
    MDL_PAGES_LOCKED,
    MDL_SOURCE_IS_NONPAGED_POOL,
    MDL_WRITE_OPERATION,
    Mdl,
    allocate_mdl,
    build_for_nonpaged_pool,
    check_no_locked_pages,
    free_mdl,
    map_locked_pages,
    probe_and_lock_pages,
    unlock_pages,
    unmap_locked_pages,
)
from kernel_proc.memory.pool import PAGED_POOL
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.bugcheck import (
    DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    PROCESS_HAS_LOCKED_PAGES,
    BugCheck,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import KERNEL_MODE, USER_MODE
from shared.nt_status import STATUS_SUCCESS, STATUS_WORKING_SET_QUOTA

PAGE = mmap.PAGESIZE
BASE = 0x7000_0000_0000
GIB = 1 << 30


class Request:
    """What an IRP is to an MDL."""

    def __init__(self) -> None:
        self.mdl_address: Mdl | None = None


def describe(kernel: Any, buffer: Any, length: int, *more: Any, **keywords: Any) -> Mdl:
    mdl = kernel.run(lambda: allocate_mdl(kernel.processor, buffer, length, *more, **keywords))
    assert isinstance(mdl, Mdl)
    return mdl


def lock(kernel: Any, mdl: Mdl, operation: int = IO_WRITE_ACCESS, mode: int = USER_MODE) -> None:
    kernel.run(probe_and_lock_pages, mdl, mode, operation)


def arena(kernel: Any, base: int = BASE, pages: int = 2) -> memoryview:
    view = memoryview(bytearray(b"a" * pages * PAGE))
    assert kernel.space.add_arena(1, base, len(view), view) == STATUS_SUCCESS
    return view


def stopped(routine: Callable[..., Any], *args: Any) -> BugCheck:
    with pytest.raises(BugCheck) as caught:
        routine(*args)
    return caught.value


# --- allocation ----------------------------------------------------------------------------------


def test_k3_an_mdl_of_2_gib_is_not_made(kernel: Any):
    run, processor = kernel.run, kernel.processor
    assert run(allocate_mdl, processor, BASE, 2 * GIB) is None
    assert run(allocate_mdl, processor, BASE, LARGEST_MDL + 1) is None
    assert run(allocate_mdl, processor, BASE, LARGEST_MDL) is not None
    assert run(allocate_mdl, processor, BASE, -1) is None


def test_k3b_an_mdl_has_the_byte_count_asked_for_and_no_next(kernel: Any):
    mdl = describe(kernel, BASE + 100, 5000)
    assert (mdl.byte_count, mdl.next) == (5000, None)
    assert (mdl.start_va, mdl.byte_offset) == (BASE, 100)
    assert mdl.virtual_address == BASE + 100
    assert mdl.page_count == 2
    assert (mdl.process, mdl.mapped_system_va) == (None, None)


def test_k3c_an_mdl_made_with_an_irp_is_its_mdl_address(kernel: Any):
    irp = Request()
    mdl = describe(kernel, BASE, 100, irp)
    assert irp.mdl_address is mdl


def test_a_primary_buffer_takes_the_place_of_the_irps_mdl(kernel: Any):
    irp = Request()
    first, second = describe(kernel, BASE, 1, irp), describe(kernel, BASE, 2, irp)
    assert irp.mdl_address is second
    assert (first.next, second.next) == (None, None)


def test_a_secondary_buffer_goes_to_the_end_of_the_irps_chain(kernel: Any):
    irp = Request()
    first = describe(kernel, BASE, 1, irp, secondary_buffer=True)
    second = describe(kernel, BASE, 2, irp, secondary_buffer=True)
    third = describe(kernel, BASE, 3, irp, secondary_buffer=True)
    assert irp.mdl_address is first
    assert (first.next, second.next, third.next) == (second, third, None)


@pytest.mark.parametrize(
    ("offset", "length", "pages"),
    [(0, 0, 0), (0, 1, 1), (0, PAGE, 1), (1, PAGE, 2), (PAGE - 1, 2, 2), (5, 3 * PAGE, 4)],
)
def test_the_pages_an_mdl_spans(kernel: Any, offset: int, length: int, pages: int):
    assert describe(kernel, BASE + offset, length).page_count == pages


# --- pool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_type", [0, PAGED_POOL])
def test_k4_an_mdl_built_for_nonpaged_pool_is_not_locked(kernel: Any, pool_type: int):
    block = kernel.run(kernel.pool.allocate, 100, "K4  ", pool_type)
    mdl = describe(kernel, block, 100)
    kernel.run(build_for_nonpaged_pool, mdl)
    assert not mdl.mdl_flags & MDL_PAGES_LOCKED
    assert mdl.mdl_flags & MDL_SOURCE_IS_NONPAGED_POOL
    assert mdl.virtual_address == block.address
    assert kernel.process.locked_pages == 0


def test_k4_verifier_stops_at_paged_pool_built_as_nonpaged(verified: Any):
    block = verified.run(verified.pool.allocate, 100, "K4  ", PAGED_POOL)
    mdl = describe(verified, block, 100)
    stop = stopped(verified.run, build_for_nonpaged_pool, mdl)
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x7F)


def test_a_mapping_of_pool_is_the_pool_itself(kernel: Any):
    block = kernel.run(kernel.pool.allocate, 100, "test")
    mdl = describe(kernel, block, 60)
    kernel.run(build_for_nonpaged_pool, mdl)
    mapping = kernel.run_at(DISPATCH_LEVEL, map_locked_pages, mdl)
    assert mapping.length == 60
    mapping.view[:4] = b"pool"
    mapping.write(4, b"!")
    assert block[:6] == b"pool!\0"
    assert mapping.read(0, 5) == b"pool!"
    with pytest.raises(AccessViolation):
        mapping.read(58, 3)


@pytest.mark.parametrize("buffer", ["user", "too short"])
def test_what_is_no_pool_cannot_be_built_as_pool(kernel: Any, buffer: str):
    block = kernel.run(kernel.pool.allocate, 10, "test")
    mdl = describe(kernel, BASE if buffer == "user" else block, 11)
    assert stopped(kernel.run, build_for_nonpaged_pool, mdl).code == KMODE_EXCEPTION_NOT_HANDLED


def test_pageable_kernel_memory_is_locked_for_the_kernel_only(kernel: Any):
    block = kernel.run(kernel.pool.allocate, 100, "page", PAGED_POOL)
    mdl = describe(kernel, block, 100)
    with pytest.raises(AccessViolation):
        lock(kernel, mdl, IO_READ_ACCESS, USER_MODE)
    assert not mdl.mdl_flags & MDL_PAGES_LOCKED
    lock(kernel, mdl, IO_READ_ACCESS, KERNEL_MODE)
    assert mdl.mdl_flags & MDL_PAGES_LOCKED
    assert mdl.process is None
    assert kernel.process.locked_pages == 0
    kernel.run(map_locked_pages, mdl).write(0, b"x")
    assert block[0] == ord("x")
    kernel.run(unlock_pages, mdl)


# --- user memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "written"),
    [(IO_READ_ACCESS, 0), (IO_WRITE_ACCESS, 1), (IO_MODIFY_ACCESS, 1)],
)
def test_locking_sets_flags_and_counts_pages(kernel: Any, operation: int, written: int):
    arena(kernel)
    mdl = describe(kernel, BASE + PAGE - 1, 2)
    lock(kernel, mdl, operation)
    assert mdl.mdl_flags & MDL_PAGES_LOCKED
    assert bool(mdl.mdl_flags & MDL_WRITE_OPERATION) == bool(written)
    assert mdl.process is kernel.process
    assert kernel.process.locked_pages == 2
    kernel.run(unlock_pages, mdl)
    assert not mdl.mdl_flags & (MDL_PAGES_LOCKED | MDL_WRITE_OPERATION)
    assert (mdl.process, kernel.process.locked_pages) == (None, 0)


def test_a_mapping_of_an_arena_is_the_arena_itself_at_any_level(kernel: Any):
    view = arena(kernel)
    mdl = describe(kernel, BASE + 10, PAGE)
    lock(kernel, mdl)
    mapping = kernel.run_at(DISPATCH_LEVEL, map_locked_pages, mdl)
    assert mdl.mdl_flags & MDL_MAPPED_TO_SYSTEM_VA
    assert kernel.run(map_locked_pages, mdl) is mapping
    kernel.run_at(DISPATCH_LEVEL, mapping.write, 2, b"xyz")
    assert bytes(view[11:16]) == b"axyza"
    mapping.view[PAGE - 1] = ord("E")
    assert view[10 + PAGE - 1] == ord("E")
    kernel.run_at(DISPATCH_LEVEL, unlock_pages, mdl)
    assert not mdl.mdl_flags & MDL_MAPPED_TO_SYSTEM_VA
    with pytest.raises(ValueError, match="released"):
        mapping.read(0, 1)


@pytest.mark.parametrize("with_arena", [False, True])
def test_a_mapping_of_private_memory_goes_the_private_road(kernel: Any, raw: Any, with_arena: bool):
    start = raw.map(3)
    if with_arena:
        view = arena(kernel, start + PAGE, 1)
    mdl = describe(kernel, start + 10, 3 * PAGE - 20)
    lock(kernel, mdl)
    assert kernel.process.locked_pages == 3
    mapping = kernel.run(map_locked_pages, mdl)
    assert mapping.view is None
    kernel.run(mapping.write, 0, b"begin")
    kernel.run(mapping.write, PAGE, b"middle")
    assert raw.peek(start + 10, 5) == b"begin"
    assert kernel.run(mapping.read, PAGE, 6) == b"middle"
    if with_arena:
        assert bytes(view[10:16]) == b"middle"
    assert stopped(kernel.run_at, DISPATCH_LEVEL, mapping.read, 0, 1).code == 0x0A
    kernel.processor.bug_checked = None
    kernel.run(unlock_pages, mdl)
    with pytest.raises(ValueError, match="the mapping has ended"):
        kernel.run(mapping.write, 0, b"late")


def test_a_private_page_unmapped_after_locking_faults_when_touched(kernel: Any, raw: Any):
    start = raw.map(2)
    mdl = describe(kernel, start, 2 * PAGE)
    lock(kernel, mdl)
    mapping = kernel.run(map_locked_pages, mdl)
    raw.unmap(start + PAGE, 1)
    assert kernel.run(mapping.read, 0, PAGE) == bytes(PAGE)
    with pytest.raises(AccessViolation):
        kernel.run(mapping.read, PAGE - 1, 2)


@pytest.mark.parametrize("mode", [USER_MODE, KERNEL_MODE])
@pytest.mark.parametrize("address", [0, PAGE - 1, 0x7FFF_FFFF_FFFF, 0xFFFF_9000_0000_0000, 2**64])
def test_addresses_outside_user_space_cannot_be_locked(kernel: Any, address: int, mode: int):
    mdl = describe(kernel, address, 100)
    with pytest.raises(AccessViolation):
        lock(kernel, mdl, IO_READ_ACCESS, mode)
    assert kernel.process.locked_pages == 0
    assert not mdl.mdl_flags & MDL_PAGES_LOCKED


def test_pages_without_the_right_are_locked_for_what_they_allow(kernel: Any, raw: Any):
    start = raw.map(2)
    raw.protect(start + PAGE, 1, mmap.PROT_READ)
    mdl = describe(kernel, start, 2 * PAGE)
    with pytest.raises(AccessViolation) as caught:
        lock(kernel, mdl, IO_WRITE_ACCESS)
    assert caught.value.address == start + PAGE
    assert (kernel.process.locked_pages, kernel.space.locked_mdls) == (0, {})
    lock(kernel, mdl, IO_READ_ACCESS)
    assert kernel.process.locked_pages == 2


def test_nothing_can_be_locked_without_a_process_or_without_bytes(kernel: Any):
    mdl = describe(kernel, BASE, 100)
    with pytest.raises(AccessViolation, match="no process"):
        kernel.processor.run_thread(probe_and_lock_pages, mdl, USER_MODE, IO_READ_ACCESS)
    with pytest.raises(AccessViolation, match="no bytes"):
        lock(kernel, describe(kernel, BASE, 0))


def test_the_pages_one_process_can_have_locked_are_bounded(kernel: Any, raw: Any):
    kernel.process.most_locked_pages = 3
    start = raw.map(4)
    first = describe(kernel, start, 2 * PAGE)
    lock(kernel, first)
    second = describe(kernel, start + PAGE, 2 * PAGE)
    with pytest.raises(RaisedStatus) as caught:
        lock(kernel, second)
    assert caught.value.status == STATUS_WORKING_SET_QUOTA
    assert kernel.process.locked_pages == 2
    kernel.run(unlock_pages, first)
    lock(kernel, second)


def test_an_arena_freed_while_locked_lives_until_unlocked(kernel: Any):
    total = MemoryQuota(16 * PAGE)
    table = ArenaTable(kernel.space, kernel.lane, total)
    grant = kernel.run(table.allocate, 2 * PAGE)
    table.mapped(grant.arena_id, BASE)
    first, second = describe(kernel, BASE, PAGE), describe(kernel, BASE + PAGE, PAGE)
    lock(kernel, first)
    lock(kernel, second)
    assert kernel.space.inspect()["arenas"][0]["locks"] == 2
    mapping = kernel.run(map_locked_pages, second)
    mapping.write(0, b"kept")
    assert kernel.run(table.free, grant.arena_id) == STATUS_SUCCESS
    with pytest.raises(AccessViolation):
        kernel.run(kernel.space.read, BASE, 1)
    kernel.run_at(DISPATCH_LEVEL, unlock_pages, first)
    assert mapping.read(0, 4) == b"kept"
    assert total.used == 2 * PAGE
    kernel.run_at(DISPATCH_LEVEL, unlock_pages, second)
    assert total.used == 2 * PAGE  # emptying may wait, which an unlocker may not
    kernel.run(table.close)
    assert total.used == 0
    assert os.fstat(grant.descriptor).st_blocks == 0
    os.close(grant.descriptor)


def test_what_was_freed_while_locked_is_no_longer_charged_at_the_next_request(kernel: Any):
    total = MemoryQuota(2 * PAGE)
    table = ArenaTable(kernel.space, kernel.lane, total)
    grant = kernel.run(table.allocate, 2 * PAGE)
    table.mapped(grant.arena_id, BASE)
    mdl = describe(kernel, BASE, 1)
    lock(kernel, mdl)
    kernel.run(table.free, grant.arena_id)
    kernel.run(unlock_pages, mdl)
    os.close(grant.descriptor)
    again = kernel.run(table.allocate, 2 * PAGE)
    assert again.status == STATUS_SUCCESS
    os.close(again.descriptor)
    kernel.run(table.close)


# --- misuse --------------------------------------------------------------------------------------


def locked(kernel: Any) -> Mdl:
    arena(kernel)
    mdl = describe(kernel, BASE, PAGE)
    lock(kernel, mdl)
    return mdl


def pool_mdl(kernel: Any) -> Mdl:
    mdl = describe(kernel, kernel.run(kernel.pool.allocate, 64, "test"), 64)
    kernel.run(build_for_nonpaged_pool, mdl)
    return mdl


def test_verifier_unlock_of_an_mdl_never_locked(verified: Any):
    stop = stopped(verified.run, unlock_pages, describe(verified, BASE, 1))
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x7C)


def test_verifier_unlock_of_nonpaged_pool(verified: Any):
    stop = stopped(verified.run, unlock_pages, pool_mdl(verified))
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x7D)


@pytest.mark.parametrize("make", [locked, pool_mdl])
def test_verifier_lock_of_an_mdl_locked_or_built_for_pool(
    verified: Any, make: Callable[[Any], Mdl]
):
    mdl = make(verified)
    stop = stopped(verified.run, probe_and_lock_pages, mdl, KERNEL_MODE, IO_READ_ACCESS)
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0xB0)


def test_verifier_mapping_of_pages_not_locked(verified: Any):
    stop = stopped(verified.run, map_locked_pages, describe(verified, BASE, 1))
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x140)


def test_unlocking_twice_stops_any_machine(kernel: Any):
    mdl = locked(kernel)
    kernel.run(unlock_pages, mdl)
    assert stopped(kernel.run, unlock_pages, mdl).code == PROCESS_HAS_LOCKED_PAGES


def test_unlocking_nonpaged_pool_stops_any_machine(kernel: Any):
    assert stopped(kernel.run, unlock_pages, pool_mdl(kernel)).code == PROCESS_HAS_LOCKED_PAGES


@pytest.mark.parametrize("make", [locked, pool_mdl])
def test_locking_what_needs_no_locking_stops_any_machine(kernel: Any, make: Callable[[Any], Mdl]):
    mdl = make(kernel)
    stop = stopped(kernel.run, probe_and_lock_pages, mdl, KERNEL_MODE, IO_READ_ACCESS)
    assert stop.code == KMODE_EXCEPTION_NOT_HANDLED


def test_mapping_pages_not_locked_stops_any_machine(kernel: Any):
    stop = stopped(kernel.run, map_locked_pages, describe(kernel, BASE, 1))
    assert stop.code == KMODE_EXCEPTION_NOT_HANDLED


@pytest.mark.parametrize(
    ("irql", "routine", "arguments", "verifier_code"),
    [
        (DISPATCH_LEVEL, probe_and_lock_pages, (USER_MODE, IO_READ_ACCESS), 0x70),
        (DEVICE_LEVEL, map_locked_pages, (), 0x76),
        (DEVICE_LEVEL, unmap_locked_pages, (), 0x79),
        (DEVICE_LEVEL, unlock_pages, (), 0x78),
        (DEVICE_LEVEL, build_for_nonpaged_pool, (), None),
        (DEVICE_LEVEL, free_mdl, (), None),
    ],
)
@pytest.mark.parametrize("verifier", [False, True])
def test_each_routine_has_its_highest_irql(
    new_kernel: Callable[..., Any],
    verifier: bool,
    irql: int,
    routine: Callable[..., Any],
    arguments: tuple[Any, ...],
    verifier_code: int | None,
):
    kernel = new_kernel(verifier=verifier, private=None)
    stop = stopped(kernel.run_at, irql, routine, describe(kernel, BASE, 1), *arguments)
    if verifier and verifier_code is not None:
        assert (stop.code, stop.parameters[0]) == (
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            verifier_code,
        )
        assert stop.parameters[1] == irql
    else:
        assert (stop.code, stop.parameters[1]) == (IRQL_NOT_LESS_OR_EQUAL, irql)


def test_an_mdl_is_allocated_at_dispatch_level_at_most(kernel: Any):
    assert kernel.run_at(DISPATCH_LEVEL, allocate_mdl, kernel.processor, BASE, 1) is not None
    stop = stopped(kernel.run_at, DEVICE_LEVEL, allocate_mdl, kernel.processor, BASE, 1)
    assert stop.code == IRQL_NOT_LESS_OR_EQUAL


def test_nonpageable_memory_may_be_locked_at_dispatch_level(kernel: Any):
    block = kernel.run(kernel.pool.allocate, 64, "test")
    mdl = describe(kernel, block, 64)
    kernel.run_at(DISPATCH_LEVEL, probe_and_lock_pages, mdl, KERNEL_MODE, IO_WRITE_ACCESS)
    assert mdl.mdl_flags & MDL_PAGES_LOCKED


def test_user_memory_may_be_locked_at_apc_level(kernel: Any, raw: Any):
    mdl = describe(kernel, raw.map(1), 64)
    kernel.run_at(APC_LEVEL, probe_and_lock_pages, mdl, USER_MODE, IO_WRITE_ACCESS)
    assert kernel.process.locked_pages == 1


# --- the end of a process ------------------------------------------------------------------------


def test_a_process_without_locked_pages_may_end(kernel: Any):
    mdl = locked(kernel)
    kernel.run(unlock_pages, mdl)
    kernel.run(free_mdl, mdl)
    check_no_locked_pages(kernel.process)


def test_a_process_that_ends_with_locked_pages_stops_the_machine(kernel: Any):
    locked(kernel)
    stop = stopped(check_no_locked_pages, kernel.process)
    assert stop.code == PROCESS_HAS_LOCKED_PAGES
    assert stop.parameters[:2] == (kernel.process.number, 1)


def test_verifier_tells_which_mdl_was_left_locked(verified: Any):
    mdl = locked(verified)
    verified.run(free_mdl, mdl)  # freeing it does not unlock its pages
    stop = stopped(check_no_locked_pages, verified.process)
    assert stop.code == DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS
    assert stop.parameters[2:] == (mdl.virtual_address, 1)


def test_a_freed_mdl_of_pool_lets_go_of_it(kernel: Any):
    mdl = pool_mdl(kernel)
    mapping = kernel.run(map_locked_pages, mdl)
    kernel.run(free_mdl, mdl)
    gc.collect()
    with pytest.raises(ValueError, match="released"):
        mapping.read(0, 1)
