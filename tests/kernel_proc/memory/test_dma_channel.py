"""Adapter channels and their transfers: actions, the queue, what a map maps and a flush brings."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.memory.dma_channel import (
    DEALLOCATE_OBJECT,
    DEALLOCATE_OBJECT_KEEP_REGISTERS,
    KEEP_OBJECT,
)
from kernel_proc.memory.dma_transfer import NOTHING_MAPPED
from kernel_proc.memory.mdl import allocate_mdl
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, KMODE_EXCEPTION_NOT_HANDLED
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES
from tests.kernel_proc.memory.dma_rig import PAGE, Rig, bug_of


@pytest.fixture
def rig(kernel: Any) -> Rig:
    return Rig(kernel)


@pytest.mark.parametrize(
    ("action", "left", "channels"),
    [(KEEP_OBJECT, 3, 1), (DEALLOCATE_OBJECT, 8, 0), (DEALLOCATE_OBJECT_KEEP_REGISTERS, 3, 0)],
)
def test_the_routine_says_what_stays_taken(rig: Rig, action: int, left: int, channels: int):
    base = rig.channel(5, action)
    assert base is not None
    state = rig.adapter.inspect()
    assert (state["map_registers_left"], state["channels"]) == (left, channels)
    if action == KEEP_OBJECT:
        rig.call(rig.adapter.free_adapter_channel)
    elif action == DEALLOCATE_OBJECT_KEEP_REGISTERS:
        rig.call(rig.adapter.free_map_registers, base, 5)
    state = rig.adapter.inspect()
    assert (state["map_registers_left"], state["channels"]) == (8, 0)


def test_the_channel_is_one_drivers_at_a_time_and_then_the_next_ones(rig: Rig):
    assert rig.channel(1, KEEP_OBJECT) is not None
    assert rig.channel(1, KEEP_OBJECT) is None
    assert rig.channel(1, DEALLOCATE_OBJECT) is None
    assert len(rig.bases) == 1
    rig.call(rig.adapter.free_adapter_channel)
    assert len(rig.bases) == 2
    rig.call(rig.adapter.free_adapter_channel)
    assert (len(rig.bases), rig.adapter.inspect()["channels"]) == (3, 0)
    with pytest.raises(ValueError, match="nobody's"):
        rig.call(rig.adapter.free_adapter_channel)


def test_a_channel_waits_for_map_registers_that_others_kept(rig: Rig):
    first = rig.channel(6)
    assert rig.channel(4) is None
    assert rig.channel(1) is None  # behind the one that waits, although there are registers
    _, mdl = rig.pool_mdl(b"x")
    rig.get(mdl, True)
    assert rig.lists == []  # lists wait in the same queue
    rig.call(rig.adapter.free_map_registers, first, 6)
    assert [len(base.registers) for base in rig.bases] == [6, 4, 1]
    assert len(rig.lists) == 1


def test_more_registers_than_the_adapter_has_are_refused(rig: Rig):
    routine = rig.adapter.allocate_adapter_channel
    status = rig.call(routine, object(), 9, lambda *_: pytest.fail("called"))
    assert status == STATUS_INSUFFICIENT_RESOURCES


def test_an_action_that_is_none_leaves_the_driver_as_an_exception(rig: Rig):
    with pytest.raises(ValueError, match="no action"):
        rig.channel(1, 7)


def test_a_channel_given_back_in_the_routine_is_the_next_ones(rig: Rig):
    order = list[str]()
    adapter = rig.adapter

    def at_once(name: str, _base: Any, _context: Any) -> int:
        order.append(name)
        if len(order) < 3:
            adapter.allocate_adapter_channel(f"{name}+", 1, at_once)
        return DEALLOCATE_OBJECT

    rig.call(adapter.allocate_adapter_channel, "a", 8, at_once)
    assert order == ["a", "a+", "a++"]
    assert adapter.inspect()["map_registers_left"] == 8


@pytest.mark.parametrize("irql", [0, APC_LEVEL])
def test_below_its_level_a_free_build_goes_on(rig: Rig, irql: int):
    done: list[Any] = []

    def control(_device: Any, base: Any, _context: Any) -> int:
        done.append(rig.processor.irql)
        return DEALLOCATE_OBJECT

    rig.kernel.run_at(irql, rig.adapter.allocate_adapter_channel, None, 1, control)
    assert done == [DISPATCH_LEVEL]


@pytest.mark.parametrize("what", ["allocate", "free", "registers", "map", "flush", "put"])
def test_above_dispatch_level_every_call_stops_the_machine(rig: Rig, what: str):
    base = rig.channel(2)
    _, mdl = rig.kernel_mdl(b"data")
    adapter, va = rig.adapter, mdl.virtual_address
    routine, arguments = {
        "allocate": (adapter.allocate_adapter_channel, (None, 1, print)),
        "free": (adapter.free_adapter_channel, ()),
        "registers": (adapter.free_map_registers, (base, 2)),
        "map": (adapter.map_transfer, (mdl, base, va, 4, True)),
        "flush": (adapter.flush_adapter_buffers, (mdl, base, va, 4, True)),
        "put": (adapter.put_adapter, ()),
    }[what]
    assert bug_of(rig.kernel, DEVICE_LEVEL, routine, *arguments)[0] == IRQL_NOT_LESS_OR_EQUAL


# --- transfers -----------------------------------------------------------------------------------


def test_a_transfer_of_memory_in_a_row_is_one_run_as_it_lies(rig: Rig):
    buffer, mdl = rig.kernel_mdl(bytes(4 * PAGE))
    base = rig.channel(4)
    assert base is not None
    assert rig.map(mdl, base, 100, 3 * PAGE, False) == (buffer.bus_address + 100, 3 * PAGE)
    rig.device.write(buffer.bus_address + 100, b"seen at once")
    assert bytes(buffer.view[100:112]) == b"seen at once"
    assert rig.flush(mdl, base, 100, 3 * PAGE, False)


def test_twelve_pages_through_five_registers_are_three_transfers(rig: Rig):
    buffer, mdl = rig.kernel_mdl(bytes(12 * PAGE))
    base = rig.channel(5)
    assert base is not None
    lengths, at = [], 0
    while at < 12 * PAGE:
        address, length = rig.map(mdl, base, at, 12 * PAGE - at, True)
        assert address == buffer.bus_address + at
        assert rig.flush(mdl, base, at, length, True)
        lengths.append(length // PAGE)
        at += length
    assert lengths == [5, 5, 2]


def test_with_all_registers_in_use_nothing_is_mapped_until_a_flush(rig: Rig):
    _, mdl = rig.kernel_mdl(bytes(4 * PAGE))
    base = rig.channel(2)
    assert base is not None
    assert rig.map(mdl, base, 0, 4 * PAGE, True)[1] == 2 * PAGE
    assert rig.map(mdl, base, 2 * PAGE, 2 * PAGE, True) == NOTHING_MAPPED
    assert rig.flush(mdl, base, 0, 2 * PAGE, True)
    assert rig.map(mdl, base, 2 * PAGE, 2 * PAGE, True)[1] == 2 * PAGE


def test_memory_in_pieces_is_mapped_run_by_run(kernel: Any):
    rig = Rig(kernel, largest_run=2)
    block = rig.memory.allocate_scattered(6 * PAGE)
    assert block is not None
    block.view[:] = bytes(range(256)) * 96
    mdl = rig.describe(block, 6 * PAGE)
    base = rig.channel(7)
    assert base is not None
    seen, at, maps = b"", 0, 0
    while at < 6 * PAGE:
        address, length = rig.map(mdl, base, at, 6 * PAGE - at, True)
        seen += rig.device.read(address, length)
        at, maps = at + length, maps + 1
    assert seen == bytes(block.view)
    assert maps >= 3
    assert rig.flush(mdl, base, 0, 6 * PAGE, True)  # all of them at once
    rig.call(rig.adapter.free_map_registers, base, 7)


def test_what_a_device_wrote_through_registers_is_there_after_the_flush_alone(rig: Rig):
    block, mdl = rig.pool_mdl(b"\x11" * 6000)
    base = rig.channel(2)
    assert base is not None
    address, length = rig.map(mdl, base, 0, 6000, False)
    assert length == 6000  # two neighbouring registers
    rig.device.write(address, b"\x22" * 6000)
    assert bytes(block) == b"\x11" * 6000
    assert rig.flush(mdl, base, 0, 6000, False)
    assert bytes(block) == b"\x22" * 6000


def test_registers_freed_without_a_flush_lose_what_the_device_wrote(rig: Rig):
    block, mdl = rig.pool_mdl(b"old")
    base = rig.channel(1)
    assert base is not None
    address, _ = rig.map(mdl, base, 0, 3, False)
    rig.device.write(address, b"new")
    rig.call(rig.adapter.free_map_registers, base, 1)
    assert bytes(block) == b"old"
    assert not rig.flush(mdl, base, 0, 3, False)
    with pytest.raises(ValueError, match="not so many"):
        rig.call(rig.adapter.free_map_registers, base, 1)


def test_a_flush_of_what_is_not_mapped_says_so(rig: Rig):
    _, mdl = rig.pool_mdl(b"data")
    base = rig.channel(1)
    assert base is not None
    assert not rig.flush(mdl, base, 0, 4, False)
    with pytest.raises(ValueError, match="outside"):
        rig.map(mdl, base, 2, 3, False)
    with pytest.raises(ValueError, match="0 bytes"):
        rig.map(mdl, base, 2, 0, False)


def test_memory_that_is_not_locked_cannot_be_mapped(rig: Rig):
    block = rig.kernel.pool.allocate(8, "Test")
    mdl = allocate_mdl(rig.processor, block, 8)
    assert mdl is not None
    code = bug_of(rig.kernel, DISPATCH_LEVEL, rig.adapter.get_scatter_gather_list, mdl, True, print)
    assert code[0] == KMODE_EXCEPTION_NOT_HANDLED


# The fixture is the class of a kernel, and each example has one of its own.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    length=st.integers(1, 5 * PAGE),
    start=st.integers(0, PAGE),
    registers=st.integers(1, 7),
    largest_run=st.sampled_from([None, 1, 2]),
    seed=st.binary(min_size=1, max_size=9),
)
def test_all_bytes_and_no_others_come_through_however_few_registers_there_are(
    new_kernel: Any, length: int, start: int, registers: int, largest_run: int | None, seed: bytes
):
    """In and out through one channel, whatever the length, the place in the page and the runs."""
    kernel = new_kernel(verifier=False, private=None)
    rig = Rig(kernel, largest_run=largest_run)
    block, mdl = rig.pool_mdl(b"\xee" * (start + length + 5))
    base = rig.channel(registers)
    assert base is not None
    data = (seed * length)[:length]
    at = 0
    while at < length:
        address, mapped = rig.map(mdl, base, start + at, length - at, False)
        assert 0 < mapped <= min(length - at, registers * PAGE)
        rig.device.write(address, data[at : at + mapped])
        assert rig.flush(mdl, base, start + at, mapped, False)
        at += mapped
    assert bytes(block) == b"\xee" * start + data + b"\xee" * 5
    assert rig.device.aborts == 0
