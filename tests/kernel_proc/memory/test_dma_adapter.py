"""DMA adapters: common buffers, scatter/gather lists, map registers that run out."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DeviceDescription, DmaAdapter, get_dma_adapter
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS
from tests.kernel_proc.memory.dma_rig import PAGE, Rig, bug_of, violation


@pytest.fixture
def rig(kernel: Any) -> Rig:
    return Rig(kernel)


def test_an_adapter_has_registers_for_its_longest_transfer_or_as_many_as_there_are(kernel: Any):
    bus = Bus(PageFrameAllocator())
    memory = KernelMemory(bus, None, 64 * PAGE, 64 * PAGE)

    def adapter(length: int) -> DmaAdapter | None:
        description = DeviceDescription(maximum_length=length)
        found: DmaAdapter | None = kernel.run(
            get_dma_adapter, kernel.processor, bus, memory, description, 16
        )
        return found

    short = adapter(PAGE)
    long = adapter(1 << 20)
    assert short is not None
    assert long is not None
    assert (short.map_registers, long.map_registers) == (3, 16)
    assert memory.allocate_contiguous(40 * PAGE) is not None
    assert adapter(1 << 20) is None


def test_an_adapter_is_for_passive_level(kernel: Any):
    arguments = (kernel.processor, None, None, DeviceDescription())
    assert bug_of(kernel, APC_LEVEL, get_dma_adapter, *arguments)[0] == IRQL_NOT_LESS_OR_EQUAL


# --- common buffers ------------------------------------------------------------------------------


def test_a_common_buffer_is_seen_by_both_and_comes_back(rig: Rig):
    before = rig.memory.used
    buffer = rig.adapter.allocate_common_buffer(PAGE + 10)
    assert buffer is not None
    assert (buffer.length, len(buffer.view), buffer.bus_address % PAGE) == (PAGE + 10,) * 2 + (0,)
    buffer.view[-1] = 7
    assert rig.device.read(buffer.bus_address + PAGE + 9, 1) == b"\x07"
    rig.device.write(buffer.bus_address, b"back")
    assert bytes(buffer.view[:4]) == b"back"
    assert rig.memory.used == before + 2 * PAGE
    rig.adapter.free_common_buffer(buffer)
    assert rig.memory.used == before
    with pytest.raises(ValueError, match="free already"):
        rig.adapter.free_common_buffer(buffer)


def test_a_common_buffer_is_contiguous_or_none(kernel: Any):
    rig = Rig(kernel, largest_run=1)
    assert rig.adapter.allocate_common_buffer(PAGE + 1) is None
    assert rig.adapter.allocate_common_buffer(PAGE) is not None
    with pytest.raises(ValueError, match="of 0 bytes"):
        rig.adapter.allocate_common_buffer(0)


@pytest.mark.parametrize("irql", [APC_LEVEL, DISPATCH_LEVEL])
def test_common_buffers_are_for_passive_level(kernel: Any, verified: Any, irql: int):
    for one, expected in (
        (kernel, (IRQL_NOT_LESS_OR_EQUAL, 0, irql)),
        (verified, violation(19, 1)),
    ):
        rig = Rig(one)
        buffer = rig.adapter.allocate_common_buffer(PAGE)
        assert bug_of(one, irql, rig.adapter.allocate_common_buffer, PAGE) == expected
        one.processor.bug_checked = None
        assert bug_of(one, irql, rig.adapter.free_common_buffer, buffer) == expected


# --- scatter/gather lists ------------------------------------------------------------------------


def test_pool_is_double_buffered_until_the_list_is_put(rig: Rig):
    data = bytes(range(256)) * 20  # two pages
    block, mdl = rig.pool_mdl(data)
    assert rig.get(mdl, True) == STATUS_SUCCESS
    (outgoing,) = rig.lists
    ((address, length),) = outgoing.elements  # neighbouring map registers are one run
    assert (address % PAGE, length) == (mdl.byte_offset, len(data))
    assert rig.device.read(address, length) == data
    block[0] = 99  # after the mapping: the device does not see it
    assert rig.device.read(address, 1) == b"\x00"
    rig.put(outgoing)
    assert rig.get(mdl, False) == STATUS_SUCCESS
    incoming = rig.lists[1]
    for at, size in incoming.elements:
        rig.device.write(at, b"\x55" * size)
    assert block[0] == 99  # not before the list is put
    rig.put(incoming)
    assert bytes(block) == b"\x55" * len(data)
    assert rig.adapter.inspect()["map_registers_left"] == 8


def test_registers_that_are_no_neighbours_are_elements_of_their_own(kernel: Any):
    rig = Rig(kernel, largest_run=1)
    data = bytes(range(256)) * 40
    _, mdl = rig.pool_mdl(data)
    assert rig.get(mdl, True) == STATUS_SUCCESS
    elements = rig.lists[0].elements
    assert [length for _, length in elements] == [PAGE, PAGE, len(data) - 2 * PAGE]
    assert b"".join(rig.device.read(*element) for element in elements) == data


def test_kernel_memory_is_reached_as_it_lies(rig: Rig):
    buffer, mdl = rig.kernel_mdl(bytes(3 * PAGE))
    assert rig.get(mdl, True) == STATUS_SUCCESS
    assert rig.lists[0].elements == [(buffer.bus_address, 3 * PAGE)]
    buffer.view[5] = 3
    assert rig.device.read(buffer.bus_address + 5, 1) == b"\x03"
    rig.put(rig.lists[0])


def test_large_blocks_of_pool_lie_in_many_runs(kernel: Any):
    rig = Rig(kernel, largest_run=2)
    block = rig.memory.allocate_scattered(5 * PAGE)
    assert block is not None
    mdl = rig.describe(block, 5 * PAGE)
    assert rig.get(mdl, True) == STATUS_SUCCESS
    assert len(rig.lists[0].elements) >= 3
    assert sum(length for _, length in rig.lists[0].elements) == 5 * PAGE


def test_a_list_waits_for_map_registers_and_is_then_made_at_dispatch_level(kernel: Any):
    rig = Rig(kernel, registers=3)
    _, two = rig.pool_mdl(bytes(2 * PAGE - 100))
    levels: list[int] = []

    def note(sg_list: Any) -> None:
        levels.append(kernel.processor.irql)
        rig.lists.append(sg_list)

    get = rig.adapter.get_scatter_gather_list
    for _ in range(3):
        assert rig.call(get, two, True, note) == STATUS_SUCCESS
    assert (len(rig.lists), rig.adapter.inspect()["requests_waiting"]) == (1, 2)
    rig.put(rig.lists[0])
    assert (len(rig.lists), rig.adapter.inspect()["requests_waiting"]) == (2, 1)
    rig.put(rig.lists[1])
    rig.put(rig.lists[2])
    assert levels == [DISPATCH_LEVEL] * 3
    assert rig.adapter.inspect()["map_registers_left"] == 3
    with pytest.raises(ValueError, match="put already"):
        rig.put(rig.lists[0])


def test_who_waits_first_is_served_first_even_if_a_later_one_would_fit(kernel: Any):
    rig = Rig(kernel, registers=3)
    _, two = rig.pool_mdl(bytes(2 * PAGE - 100))
    _, one = rig.pool_mdl(b"x")
    for mdl in (two, two, one):
        assert rig.get(mdl, True) == STATUS_SUCCESS
    assert rig.adapter.inspect()["map_registers_left"] == 3 - two.page_count
    assert [sg_list.mdl for sg_list in rig.lists] == [two]
    rig.put(rig.lists[0])
    assert [sg_list.mdl for sg_list in rig.lists] == [two, two, one]


def test_more_registers_than_there_are_is_refused_at_once(kernel: Any):
    rig = Rig(kernel, registers=3)
    _, mdl = rig.pool_mdl(bytes(3 * PAGE + 1))
    assert rig.get(mdl, True) == STATUS_INSUFFICIENT_RESOURCES
    assert rig.lists == []
    with pytest.raises(ValueError, match="no bytes"):
        rig.get(rig.describe(rig.memory.allocate_contiguous(PAGE), 0), True)


def test_a_list_put_in_its_routine_gives_the_registers_to_the_next(kernel: Any):
    rig = Rig(kernel, registers=2)
    _, mdl = rig.pool_mdl(bytes(2 * PAGE - 100))
    done: list[Any] = []

    def at_once(sg_list: Any) -> None:
        done.append(sg_list)
        rig.adapter.put_scatter_gather_list(sg_list)

    assert rig.get(mdl, True) == STATUS_SUCCESS
    for _ in range(3):
        rig.call(rig.adapter.get_scatter_gather_list, mdl, True, at_once)
    assert done == []
    rig.put(rig.lists[0])
    assert len(done) == 3


def test_scatter_gather_lists_are_for_dispatch_level(kernel: Any, verified: Any):
    rig = Rig(kernel)
    _, mdl = rig.pool_mdl(b"x")
    get: Callable[..., Any] = rig.adapter.get_scatter_gather_list
    assert bug_of(kernel, DEVICE_LEVEL, get, mdl, True, print)[0] == IRQL_NOT_LESS_OR_EQUAL
    rig = Rig(verified)
    _, mdl = rig.pool_mdl(b"x")
    get = rig.adapter.get_scatter_gather_list
    assert bug_of(verified, 0, get, mdl, True, print) == violation(0x13, 1)


def test_without_verifier_a_list_below_its_level_is_made_all_the_same(kernel: Any):
    rig = Rig(kernel)
    _, mdl = rig.pool_mdl(b"x")
    assert kernel.run(rig.adapter.get_scatter_gather_list, mdl, True, rig.lists.append) == 0
    assert len(rig.lists) == 1
    assert kernel.processor.irql == 0
