"""Kernel pool: addresses, charges, limits, tags, and the misuses that stop the machine."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.memory import pool as pool_module
from kernel_proc.memory.pool import (
    BAD_POOL_CALLER,
    NON_PAGED_POOL,
    PAGED_POOL,
    PoolAllocator,
    PoolBlock,
)
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    BugCheck,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_QUOTA_EXCEEDED

USER_END = 0x8000_0000_0000


def stopped(routine: Callable[..., Any], *args: Any) -> BugCheck:
    with pytest.raises(BugCheck) as caught:
        routine(*args)
    return caught.value


def test_a_block_is_zeroed_memory_with_a_kernel_address_of_its_own(kernel: Any):
    blocks = [kernel.pool.allocate(size, "test") for size in (1, 15, 16, 4096, 64)]
    assert all(bytes(block) == bytes(block.size) for block in blocks)
    for block, later in itertools.pairwise(blocks):
        assert block.address >= USER_END
        assert block.address % 16 == 0
        assert block.address + block.size < later.address
    blocks[0][:] = b"x"
    assert memoryview(blocks[0])[0] == ord("x")


def test_addresses_are_never_used_again(kernel: Any):
    first = kernel.pool.allocate(64, "test")
    kernel.pool.free(first)
    assert kernel.pool.allocate(64, "test").address > first.address


def test_use_is_counted_by_tag(kernel: Any):
    pool = kernel.pool
    first, _ = pool.allocate(10, "Irp "), pool.allocate(20, "Irp ")
    pool.allocate(5, "Mdl ")
    assert pool.usage() == {"Irp ": (2, 30), "Mdl ": (1, 5)}
    pool.free(first)
    assert pool.inspect() == {
        "limit": pool.limit,
        "used": 25,
        "tags": {"Irp ": (1, 20), "Mdl ": (1, 5)},
    }


def test_a_quota_is_charged_and_returned(kernel: Any):
    process = KProcess(kernel.processor, "small", pool_quota=100)
    block = kernel.pool.allocate_with_quota(60, "Io  ", process)
    assert process.pool_charged == 60
    with pytest.raises(RaisedStatus) as caught:
        kernel.pool.allocate_with_quota(41, "Io  ", process)
    assert caught.value.status == STATUS_QUOTA_EXCEEDED
    assert (process.pool_charged, kernel.pool.used) == (60, 60)
    kernel.pool.allocate_with_quota(40, "Io  ", process)
    kernel.pool.free(block)
    assert process.pool_charged == 40


def test_an_exhausted_pool_is_no_block_or_a_status(kernel: Any):
    pool = PoolAllocator(kernel.processor, limit=100)
    block = pool.allocate(60, "test")
    assert pool.allocate(41, "test") is None
    with pytest.raises(RaisedStatus) as caught:
        pool.allocate_with_quota(41, "test", kernel.process)
    assert caught.value.status == STATUS_INSUFFICIENT_RESOURCES
    assert kernel.process.pool_charged == 0
    assert block is not None
    pool.free(block)
    assert pool.allocate(100, "test") is not None


def test_memory_the_system_lacks_is_no_block(kernel: Any, monkeypatch: pytest.MonkeyPatch):
    class NoMemory(PoolBlock):
        def __init__(self, size: int) -> None:
            raise MemoryError(size)

    monkeypatch.setattr(pool_module, "PoolBlock", NoMemory)
    assert kernel.pool.allocate(1 << 20, "test") is None
    assert (kernel.pool.used, kernel.pool.blocks) == (0, {})


def test_zero_bytes_are_a_block_unless_verifier_looks(kernel: Any, verified: Any):
    block = kernel.pool.allocate(0, "none")
    assert len(block) == 0
    kernel.pool.free(block)
    stop = stopped(verified.pool.allocate, 0, "none")
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x00)


@pytest.mark.parametrize(
    ("pool_type", "highest", "allocate_code", "free_code"),
    [(NON_PAGED_POOL, DISPATCH_LEVEL, 0x02, 0x12), (PAGED_POOL, APC_LEVEL, 0x01, 0x11)],
)
@pytest.mark.parametrize("verifier", [False, True])
def test_the_level_bounds_allocation_and_free(
    new_kernel: Callable[..., Any],
    verifier: bool,
    pool_type: int,
    highest: int,
    allocate_code: int,
    free_code: int,
):
    def machine() -> Any:
        return new_kernel(verifier=verifier, private=None)

    def check(stop: BugCheck, code: int) -> None:
        if verifier:
            assert stop.code == DRIVER_VERIFIER_DETECTED_VIOLATION
            assert stop.parameters == (code, highest + 1, pool_type, 64)
        else:
            assert (stop.code, stop.parameters[1]) == (IRQL_NOT_LESS_OR_EQUAL, highest + 1)

    kernel = machine()
    block = kernel.run_at(highest, kernel.pool.allocate, 64, "test", pool_type)
    kernel.run_at(highest, kernel.pool.free, block)
    check(
        stopped(kernel.run_at, highest + 1, kernel.pool.allocate, 64, "test", pool_type),
        allocate_code,
    )
    kernel = machine()
    block = kernel.pool.allocate(64, "test", pool_type)
    check(stopped(kernel.run_at, highest + 1, kernel.pool.free, block), free_code)
    assert kernel.pool.blocks == {block.address: block}


def test_a_second_free_stops_the_machine(kernel: Any, verified: Any):
    for machine, code, first in (
        (kernel, BAD_POOL_CALLER, 0x07),
        (verified, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x13),
    ):
        block = machine.pool.allocate(64, "test")
        machine.pool.free(block)
        stop = stopped(machine.pool.free, block)
        assert (stop.code, stop.parameters[0]) == (code, first)
        assert block.address in stop.parameters


def test_a_free_of_what_is_no_block_stops_the_machine(kernel: Any, verified: Any):
    for machine, code, first in (
        (kernel, BAD_POOL_CALLER, 0x46),
        (verified, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x10),
    ):
        stranger = PoolBlock(8)
        stranger.address, stranger.size, stranger.tag = 0xFFFF_F000_0000_0000, 8, "??? "
        stranger.pool_type, stranger.charged = NON_PAGED_POOL, None
        stop = stopped(machine.pool.free, stranger)
        assert (stop.code, stop.parameters[0]) == (code, first)


def test_verifier_finds_blocks_a_driver_leaves(kernel: Any, verified: Any):
    for machine in (kernel, verified):
        machine.pool.require_freed(__name__, "driver noop")
        machine.pool.allocate(64, "left")
        machine.pool.allocate_with_quota(36, "left", machine.process)
        machine.pool.require_freed("another", "driver other")
    kernel.pool.require_freed(__name__, "driver noop")
    stop = stopped(verified.pool.require_freed, __name__, "driver noop")
    assert stop.code == DRIVER_VERIFIER_DETECTED_VIOLATION
    assert (stop.parameters[0], stop.parameters[3]) == (0x62, 2)
    assert "driver noop leaves 2 blocks of pool, 100 bytes, tags 'left'" in stop.headline()


def test_a_package_owns_the_blocks_of_its_modules(verified: Any):
    verified.pool.allocate(1, "left").module = "package.part"
    verified.pool.require_freed("pack", "driver")
    assert stopped(verified.pool.require_freed, "package", "driver").parameters[0] == 0x62
