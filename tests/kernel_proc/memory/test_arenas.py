"""Arenas: granting, placing, freeing, quotas, and failures of the system."""

import errno
import fcntl
import gc
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.arenas import ArenaGrant, ArenaTable
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, BugCheck
from kernel_proc.scheduling.irql import APC_LEVEL
from shared.nt_status import (
    STATUS_CONFLICTING_ADDRESSES,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_NO_MEMORY,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
)
from shared.segment import map_segment

PAGE = mmap.PAGESIZE
BASE = 0x7000_0000_0000
MIB = 1 << 20


class Arenas:
    """A table under test; grants' descriptors are closed at the end."""

    def __init__(self, kernel: Any, *, limit: int = 16 * MIB, total: int = 64 * MIB) -> None:
        self.kernel = kernel
        self.total = MemoryQuota(total)
        self.table = ArenaTable(kernel.space, kernel.lane, self.total, limit, most_arenas=4)
        self.descriptors: list[int] = []

    def allocate(self, length: int) -> ArenaGrant:
        grant: ArenaGrant = self.kernel.run(self.table.allocate, length)
        if grant.descriptor >= 0:
            self.descriptors.append(grant.descriptor)
        return grant

    def granted(self, length: int) -> ArenaGrant:
        grant = self.allocate(length)
        assert grant.status == STATUS_SUCCESS
        return grant

    def free(self, arena_id: int) -> int:
        status: int = self.kernel.run(self.table.free, arena_id)
        return status

    def close(self) -> None:
        self.kernel.run(self.table.close)
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def new_arenas(new_kernel: Callable[..., Any]) -> Iterator[Callable[..., Arenas]]:
    made: list[Arenas] = []

    def make(**limits: int) -> Arenas:
        made.append(Arenas(new_kernel(verifier=False, private=None), **limits))
        return made[-1]

    yield make
    for arenas in made:
        arenas.close()


@pytest.fixture
def arenas(new_arenas: Callable[..., Arenas]) -> Arenas:
    return new_arenas()


def test_a_granted_arena_is_whole_pages_reserved_sealed_and_shared(arenas: Arenas):
    grant = arenas.granted(PAGE + 1)
    assert grant.length == 2 * PAGE
    status = os.fstat(grant.descriptor)
    assert (status.st_size, status.st_blocks * 512) == (2 * PAGE, 2 * PAGE)
    seals = fcntl.fcntl(grant.descriptor, fcntl.F_GET_SEALS)
    assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    for size in (PAGE, 3 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(grant.descriptor, size)
    assert arenas.table.mapped(grant.arena_id, BASE) == STATUS_SUCCESS
    user = map_segment(grant.descriptor, grant.length)
    user[5:10] = b"hello"
    assert arenas.kernel.run(arenas.kernel.space.read, BASE + 5, 5) == b"hello"
    arenas.kernel.run(arenas.kernel.space.write, BASE + 2 * PAGE - 2, b"ok")
    assert user[-2:] == b"ok"
    user.close()


def test_an_arena_has_no_address_before_it_is_placed(arenas: Arenas):
    arenas.granted(PAGE)
    with pytest.raises(AccessViolation):
        arenas.kernel.run(arenas.kernel.space.read, BASE, 1)


def test_ids_are_never_used_again(arenas: Arenas):
    first = arenas.granted(PAGE)
    assert arenas.free(first.arena_id) == STATUS_SUCCESS
    assert arenas.granted(PAGE).arena_id != first.arena_id
    assert arenas.free(first.arena_id) == STATUS_INVALID_PARAMETER
    assert arenas.table.mapped(first.arena_id, BASE) == STATUS_INVALID_PARAMETER


@pytest.mark.parametrize("length", [0, -1, 2**63, 2**80])
def test_a_length_that_no_memory_has_is_refused(arenas: Arenas, length: int):
    assert arenas.allocate(length).status == STATUS_INVALID_PARAMETER
    assert arenas.total.used == 0


@pytest.mark.parametrize("base", [0, BASE + 1, -PAGE, 0x8000_0000_0000, 2**64 - PAGE])
def test_a_place_outside_user_space_is_refused_and_another_may_be_told(arenas: Arenas, base: int):
    grant = arenas.granted(PAGE)
    assert arenas.table.mapped(grant.arena_id, base) == STATUS_INVALID_PARAMETER
    assert arenas.table.mapped(grant.arena_id, BASE) == STATUS_SUCCESS
    assert arenas.table.mapped(grant.arena_id, BASE + PAGE) == STATUS_INVALID_PARAMETER


def test_two_arenas_cannot_be_at_one_place(arenas: Arenas):
    first, second = arenas.granted(2 * PAGE), arenas.granted(2 * PAGE)
    assert arenas.table.mapped(first.arena_id, BASE) == STATUS_SUCCESS
    assert arenas.table.mapped(second.arena_id, BASE + PAGE) == STATUS_CONFLICTING_ADDRESSES
    assert arenas.table.mapped(second.arena_id, BASE + 2 * PAGE) == STATUS_SUCCESS


def test_the_quota_of_the_process_is_checked_before_anything_is_reserved(
    new_arenas: Callable[..., Arenas], monkeypatch: pytest.MonkeyPatch
):
    arenas = new_arenas(limit=3 * PAGE)
    kept = arenas.granted(2 * PAGE)
    with monkeypatch.context() as patch:
        patch.delattr(os, "memfd_create")
        assert arenas.allocate(2 * PAGE).status == STATUS_QUOTA_EXCEEDED
        assert arenas.allocate(1 << 60).status == STATUS_QUOTA_EXCEEDED
    arenas.granted(PAGE)
    assert arenas.allocate(1).status == STATUS_QUOTA_EXCEEDED
    arenas.free(kept.arena_id)
    arenas.granted(2 * PAGE)
    assert arenas.table.quota.used == arenas.total.used == 3 * PAGE


def test_the_quota_of_the_kernel_bounds_all_processes_together(
    new_kernel: Callable[..., Any], new_arenas: Callable[..., Arenas]
):
    first = new_arenas(total=3 * PAGE)
    second = new_arenas()
    second.table = ArenaTable(second.kernel.space, second.kernel.lane, first.total, 16 * MIB)
    first.granted(2 * PAGE)
    assert second.allocate(2 * PAGE).status == STATUS_INSUFFICIENT_RESOURCES
    assert second.table.quota.used == 0
    second.granted(PAGE)


def test_the_number_of_arenas_is_bounded(arenas: Arenas):
    grants = [arenas.granted(PAGE) for _ in range(4)]
    assert arenas.allocate(PAGE).status == STATUS_INSUFFICIENT_RESOURCES
    arenas.free(grants[0].arena_id)
    arenas.granted(PAGE)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (errno.ENOSPC, STATUS_NO_MEMORY),
        (errno.ENOMEM, STATUS_NO_MEMORY),
        (errno.EMFILE, STATUS_INSUFFICIENT_RESOURCES),
        (errno.ENFILE, STATUS_INSUFFICIENT_RESOURCES),
    ],
)
def test_memory_that_cannot_be_reserved_is_a_status_and_leaves_nothing(
    arenas: Arenas, monkeypatch: pytest.MonkeyPatch, code: int, status: int
):
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", refused)
    grant = arenas.allocate(PAGE)
    assert (grant.status, grant.descriptor) == (status, -1)
    assert os.listdir("/proc/self/fd") == before
    assert arenas.table.inspect()["held"] == arenas.total.used == 0
    monkeypatch.undo()
    arenas.granted(PAGE)


def test_the_systems_own_limit_is_a_status(arenas: Arenas):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        assert arenas.allocate(2 * MIB).status == STATUS_NO_MEMORY
        assert arenas.granted(MIB).length == MIB
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_mapping_the_system_refuses_is_a_status(arenas: Arenas, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(mmap, "mmap", refused)
    assert arenas.allocate(PAGE).status == STATUS_NO_MEMORY
    assert os.listdir("/proc/self/fd") == before
    assert arenas.total.used == 0


def test_an_unforeseen_exception_takes_nothing_from_the_quota(
    arenas: Arenas, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(ZeroDivisionError):
        arenas.allocate(PAGE)
    assert arenas.total.used == 0


def test_freed_memory_is_taken_even_from_a_user_that_keeps_it_mapped(arenas: Arenas):
    grant = arenas.granted(MIB)
    user = map_segment(grant.descriptor, grant.length)
    user[:] = b"u" * MIB
    assert os.fstat(grant.descriptor).st_blocks * 512 == MIB
    assert arenas.free(grant.arena_id) == STATUS_SUCCESS
    assert os.fstat(grant.descriptor).st_blocks == 0
    assert user[:4] == bytes(4)
    user.close()


def test_a_view_lent_before_the_freeing_stays_a_view(arenas: Arenas):
    grant = arenas.granted(PAGE)
    arenas.table.mapped(grant.arena_id, BASE)
    arenas.kernel.run(arenas.kernel.space.write, BASE, b"old")
    view = arenas.kernel.run(arenas.kernel.space.arena_view, BASE, 3)
    arenas.free(grant.arena_id)
    assert bytes(view) == bytes(3)
    view[:] = b"new"
    with pytest.raises(AccessViolation):
        arenas.kernel.run(arenas.kernel.space.read, BASE, 3)


def kernel_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("/memfd:softhca-arena" in line for line in maps)


def test_freed_memory_is_unmapped_with_its_last_view(arenas: Arenas):
    gc.collect()  # what former tests left
    before = kernel_mappings()
    grant = arenas.granted(PAGE)
    arenas.table.mapped(grant.arena_id, BASE)
    view = arenas.kernel.run(arenas.kernel.space.arena_view, BASE, 3)
    arenas.free(grant.arena_id)
    assert kernel_mappings() == before + 1
    del view
    assert kernel_mappings() == before


def test_close_frees_everything_and_grants_nothing_more(arenas: Arenas):
    gc.collect()  # what former tests left
    before = kernel_mappings()
    for base in (BASE, BASE + PAGE):
        arenas.table.mapped(arenas.granted(PAGE).arena_id, base)
    arenas.granted(PAGE)
    arenas.kernel.run(arenas.table.close)
    assert arenas.total.used == 0
    assert kernel_mappings() == before
    assert arenas.table.inspect()["arenas"] == {}
    assert arenas.allocate(PAGE).status == STATUS_PROCESS_IS_TERMINATING


def test_a_process_that_ends_while_its_memory_is_made_gets_none(
    new_kernel: Callable[..., Any],
):
    class ClosingLane:
        def run(self, routine: Callable[..., Any], *args: Any, **_: Any) -> Any:
            made = routine(*args)
            if isinstance(made, tuple):
                table.close()
            return made

        def close(self) -> None: ...

    kernel = new_kernel(verifier=False, private=None)
    total = MemoryQuota(16 * MIB)
    table = ArenaTable(kernel.space, ClosingLane(), total, 16 * MIB)
    before = os.listdir("/proc/self/fd")
    grant = kernel.run(table.allocate, PAGE)
    assert (grant.status, grant.descriptor) == (STATUS_PROCESS_IS_TERMINATING, -1)
    assert total.used == 0
    assert os.listdir("/proc/self/fd") == before


def test_memory_is_made_at_passive_level(new_kernel: Callable[..., Any]):
    stopped = Arenas(new_kernel(verifier=False, private=None))
    with pytest.raises(BugCheck) as caught:
        stopped.kernel.run_at(APC_LEVEL, stopped.table.allocate, PAGE)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL


def test_a_table_shows_itself(arenas: Arenas):
    grant = arenas.granted(PAGE)
    arenas.table.mapped(grant.arena_id, BASE)
    assert arenas.table.inspect() == {
        "quota": {"limit": 16 * MIB, "used": PAGE},
        "held": 1,
        "arenas": {grant.arena_id: {"length": PAGE, "placed": True}},
    }
    (entry,) = arenas.kernel.space.inspect()["arenas"]
    assert entry == {"id": grant.arena_id, "base": BASE, "length": PAGE, "locks": 0}


@pytest.mark.processes
def test_a_real_user_maps_an_arena_and_the_kernel_reads_it_at_the_users_address(
    arenas: Arenas, new_owner: Callable[..., Any]
):
    owner = new_owner()
    grant = arenas.granted(2 * PAGE)
    base = owner.ask("map_arena", grant.length, "u", descriptors=(grant.descriptor,))
    assert arenas.table.mapped(grant.arena_id, base) == STATUS_SUCCESS
    space = arenas.kernel.space
    assert arenas.kernel.run(space.read, base + PAGE, 4) == b"uuuu"
    arenas.kernel.run(space.write, base + PAGE, b"kern")
    assert bytes.fromhex(owner.ask("peek", base + PAGE - 1, 6)) == b"ukernu"
    owner.kill()
    assert arenas.kernel.run(space.read, base + PAGE, 4) == b"kern"
