"""DMA adapters: common buffers, scatter/gather lists, map registers, and who breaks the rules."""

from typing import Any

import pytest

from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter, ScatterGatherList
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.mdl import Mdl, allocate_mdl, build_for_nonpaged_pool
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DMA_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    BugCheck,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS

PAGE = 4096


class Rig:
    def __init__(self, kernel: Any, largest_run: int | None = None, registers: int = 8) -> None:
        self.kernel = kernel
        bus = Bus(PageFrameAllocator(1 << 16, largest_run))
        self.memory = KernelMemory(bus, None, 1 << 20, 1 << 16)
        self.adapter = DmaAdapter(kernel.processor, bus, self.memory, registers)
        self.lists: list[ScatterGatherList] = []

    def pool_mdl(self, data: bytes) -> tuple[Any, Mdl]:
        block = self.kernel.pool.allocate(len(data), "Test")
        block[:] = data
        mdl = allocate_mdl(self.kernel.processor, block, len(data))
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        return block, mdl

    def get(self, mdl: Mdl, write: bool) -> int:
        routine = self.adapter.get_scatter_gather_list
        status: int = self.kernel.run_at(DISPATCH_LEVEL, routine, mdl, write, self.lists.append)
        return status

    def put(self, sg_list: ScatterGatherList) -> None:
        self.kernel.run_at(DISPATCH_LEVEL, self.adapter.put_scatter_gather_list, sg_list)

    def device_view(self, element: tuple[int, int]) -> memoryview:
        return self.memory._bus.segments[
            element[0] >> 48
        ].view[  # type: ignore[index]
            element[0] & 0xFFFF_FFFF : (element[0] & 0xFFFF_FFFF) + element[1]
        ]


@pytest.fixture
def rig(kernel: Any) -> Rig:
    return Rig(kernel)


def bug_of(kernel: Any, irql: int, routine: Any, *args: Any) -> tuple[int, int]:
    with pytest.raises(BugCheck) as caught:
        kernel.run_at(irql, routine, *args)
    return caught.value.code, caught.value.parameters[0]


def test_a_common_buffer_is_seen_by_both_and_comes_back(rig: Rig):
    buffer = rig.adapter.allocate_common_buffer(PAGE + 10)
    assert buffer is not None
    assert (buffer.length, len(buffer.view), buffer.bus_address % PAGE) == (PAGE + 10,) * 2 + (0,)
    buffer.view[-1] = 7
    assert rig.device_view((buffer.bus_address, buffer.length))[-1] == 7
    assert rig.memory.used == 2 * PAGE
    rig.adapter.free_common_buffer(buffer)
    assert rig.memory.used == 0
    with pytest.raises(ValueError):
        rig.adapter.free_common_buffer(buffer)


def test_a_common_buffer_is_contiguous_or_none(kernel: Any):
    rig = Rig(kernel, largest_run=1)
    assert rig.adapter.allocate_common_buffer(PAGE + 1) is None
    assert rig.adapter.allocate_common_buffer(PAGE) is not None


@pytest.mark.parametrize("irql", [APC_LEVEL, DISPATCH_LEVEL])
def test_common_buffers_are_for_passive_level(rig: Rig, irql: int):
    code, _ = bug_of(rig.kernel, irql, rig.adapter.allocate_common_buffer, PAGE)
    assert code == IRQL_NOT_LESS_OR_EQUAL


def test_pool_is_double_buffered_until_the_list_is_put(rig: Rig):
    data = bytes(range(256)) * 20  # two pages
    block, mdl = rig.pool_mdl(data)
    assert rig.get(mdl, True) == STATUS_SUCCESS
    (outgoing,) = rig.lists
    first = PAGE - mdl.byte_offset
    assert [length for _, length in outgoing.elements] == [first, len(data) - first]
    assert outgoing.elements[0][0] % PAGE == mdl.byte_offset
    assert b"".join(bytes(rig.device_view(e)) for e in outgoing.elements) == data
    block[0] = 99  # after the mapping: the device does not see it
    assert rig.device_view(outgoing.elements[0])[0] == 0
    rig.put(outgoing)
    assert rig.get(mdl, False) == STATUS_SUCCESS
    incoming = rig.lists[1]
    for element in incoming.elements:
        rig.device_view(element)[:] = b"\x55" * element[1]
    assert block[0] == 99  # not before the list is put
    rig.put(incoming)
    assert bytes(block) == b"\x55" * len(data)
    assert rig.memory.used == 0


def test_kernel_memory_is_reached_as_it_lies(rig: Rig):
    buffer = rig.memory.allocate_contiguous(3 * PAGE)
    assert buffer is not None
    mdl = allocate_mdl(rig.kernel.processor, buffer, 3 * PAGE)
    assert mdl is not None
    build_for_nonpaged_pool(mdl)
    assert rig.get(mdl, True) == STATUS_SUCCESS
    assert rig.lists[0].elements == [(buffer.bus_address, 3 * PAGE)]
    rig.put(rig.lists[0])


def test_map_registers_run_out_and_come_back(kernel: Any):
    rig = Rig(kernel, registers=3)
    _, two = rig.pool_mdl(bytes(2 * PAGE - 100))
    pages = two.page_count
    assert rig.get(two, True) == STATUS_SUCCESS
    assert rig.get(two, True) == STATUS_INSUFFICIENT_RESOURCES
    assert len(rig.lists) == 1
    assert rig.adapter.inspect()["map_registers_left"] == 3 - pages
    rig.put(rig.lists[0])
    assert rig.adapter.inspect()["map_registers_left"] == 3
    with pytest.raises(ValueError):
        rig.put(rig.lists[0])


def test_scatter_gather_lists_are_for_dispatch_level(kernel: Any, verified: Any):
    rig = Rig(kernel)
    _, mdl = rig.pool_mdl(b"x")
    routine = rig.adapter.get_scatter_gather_list
    assert bug_of(kernel, DEVICE_LEVEL, routine, mdl, True, print)[0] == IRQL_NOT_LESS_OR_EQUAL
    rig = Rig(verified)
    _, mdl = rig.pool_mdl(b"x")
    routine = rig.adapter.get_scatter_gather_list
    assert bug_of(verified, 0, routine, mdl, True, print) == (DRIVER_VERIFIER_DMA_VIOLATION, 0x13)


@pytest.mark.parametrize("what", ["freed twice", "put twice", "buffer left", "list left"])
def test_the_verifier_stops_what_is_given_back_twice_or_not_at_all(verified: Any, what: str):
    rig = Rig(verified)
    adapter = rig.adapter
    buffer = adapter.allocate_common_buffer(1)
    assert buffer is not None
    _, mdl = rig.pool_mdl(b"data")
    assert rig.get(mdl, True) == STATUS_SUCCESS
    (sg_list,) = rig.lists
    if what != "buffer left":
        adapter.free_common_buffer(buffer)
    if what != "list left":
        rig.put(sg_list)
    stopped = {
        "freed twice": (0x03, 0, adapter.free_common_buffer, (buffer,)),
        "put twice": (0x06, DISPATCH_LEVEL, adapter.put_scatter_gather_list, (sg_list,)),
        "buffer left": (0x07, 0, adapter.put_adapter, ()),
        "list left": (0x0A, 0, adapter.put_adapter, ()),
    }
    parameter, irql, routine, arguments = stopped[what]
    found = bug_of(verified, irql, routine, *arguments)
    assert found == (DRIVER_VERIFIER_DMA_VIOLATION, parameter)
