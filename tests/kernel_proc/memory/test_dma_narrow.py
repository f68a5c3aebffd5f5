"""Devices of 32 bits: memory above 4 GiB goes through map registers, or where it must not."""

from typing import Any

import pytest

from kernel_proc.memory.dma_transfer import NOTHING_MAPPED
from kernel_proc.memory.mdl import (
    IO_WRITE_ACCESS,
    allocate_mdl,
    probe_and_lock_pages,
    unlock_pages,
)
from kernel_proc.memory.physical_memory import (
    FOUR_GIB,
    HIGHEST_PHYSICAL_ADDRESS,
    PhysicalMemory,
    allocate_contiguous_memory,
    free_contiguous_memory,
    get_physical_address,
)
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.irql import DEVICE_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS
from tests.kernel_proc.memory.dma_rig import PAGE, Rig, bug_of


@pytest.fixture
def narrow(kernel: Any) -> Rig:
    rig = Rig(kernel, bits=32)
    rig.take_low_memory()
    return rig


def high_buffer(rig: Rig, length: int = 2 * PAGE) -> tuple[Any, Any]:
    buffer, mdl = rig.kernel_mdl(b"\x11" * length)
    physical = rig.adapter.physical.physical_address(buffer.bus_address)
    assert physical is not None
    assert physical >= FOUR_GIB
    return buffer, mdl


def test_memory_above_4_gib_is_double_buffered_below_it(narrow: Rig):
    buffer, mdl = high_buffer(narrow)
    narrow.get(mdl, True)
    ((address, length),) = narrow.lists[0].elements
    assert address + length <= FOUR_GIB
    assert narrow.device.read(address, length) == bytes(buffer.view)
    narrow.put(narrow.lists[0])
    narrow.get(mdl, False)
    narrow.device.write(address, b"\x22" * length)
    assert bytes(buffer.view) == b"\x11" * length
    narrow.put(narrow.lists[1])
    assert bytes(buffer.view) == b"\x22" * length


def test_a_64_bit_device_reaches_the_same_memory_as_it_lies(kernel: Any):
    rig = Rig(kernel)
    rig.take_low_memory()
    buffer, mdl = high_buffer(rig)
    rig.get(mdl, False)
    assert rig.lists[0].elements == [(buffer.bus_address, 2 * PAGE)]
    rig.device.write(buffer.bus_address, b"at once")
    assert bytes(buffer.view[:7]) == b"at once"


def test_a_buffer_across_the_border_is_copied_from_there_on(kernel: Any):
    rig = Rig(kernel, bits=32)
    frames = rig.bus.frames
    first = frames.allocate_contiguous(1)
    assert first is not None
    assert frames.allocate_contiguous(FOUR_GIB // PAGE - first.start - 5) is not None
    block = rig.memory.allocate_scattered(16 * PAGE)
    while block is not None and block.bus_address % (1 << 16):
        block = rig.memory.allocate_scattered(16 * PAGE)
    assert block is not None
    physical = rig.adapter.physical.physical_address(block.bus_address)
    assert physical == FOUR_GIB - 4 * PAGE
    mdl = rig.describe(block, 6 * PAGE)
    rig.get(mdl, True)
    elements = rig.lists[0].elements
    assert elements[0] == (physical, 4 * PAGE)
    assert [length for _, length in elements] == [4 * PAGE, 2 * PAGE]
    assert rig.adapter.inspect()["map_registers_left"] == 6


def test_common_buffers_lie_below_4_gib_and_need_map_registers_once_that_is_used_up(narrow: Rig):
    buffers = []
    while narrow.adapter.inspect()["map_registers_left"] == 8:
        buffer = narrow.adapter.allocate_common_buffer(PAGE)
        assert buffer is not None
        assert buffer.bus_address < FOUR_GIB
        buffers.append(buffer)
    assert buffers[-1].pages is None
    narrow.device.write(buffers[-1].bus_address, b"shared")
    assert bytes(buffers[-1].view[:6]) == b"shared"
    kept = narrow.channel(7)
    assert kept is not None
    assert narrow.adapter.allocate_common_buffer(PAGE) is None  # they are exhausted
    narrow.call(narrow.adapter.free_map_registers, kept, 7)
    assert narrow.adapter.allocate_common_buffer(PAGE) is not None
    for buffer in buffers:
        narrow.adapter.free_common_buffer(buffer)


def test_for_64_bits_a_common_buffer_takes_no_map_register(kernel: Any):
    rig = Rig(kernel)
    assert rig.channel(8) is not None
    assert rig.adapter.inspect()["map_registers_left"] == 0
    assert rig.adapter.allocate_common_buffer(PAGE) is not None


def test_a_physical_address_above_4_gib_reaches_something_else_or_nothing(narrow: Rig):
    buffer, _ = high_buffer(narrow)
    physical = get_physical_address(narrow.processor, narrow.adapter.physical, buffer)
    assert physical >= FOUR_GIB
    before = bytes(buffer.view)
    below = narrow.adapter.physical.bus_address(physical - FOUR_GIB)
    narrow.device.write(physical, b"overrun")
    assert bytes(buffer.view) == before
    if below is None:
        assert narrow.device.aborts == 1
        assert narrow.device.read(physical, 3) == b"\xff\xff\xff"
    else:
        segment = narrow.bus.segments[below >> 48]
        assert segment.view is not None
        assert bytes(segment.view[below & 0xFFFF_FFFF :][:7]) == b"overrun"


# --- physical addresses and contiguous memory ----------------------------------------------------


@pytest.mark.parametrize("largest_run", [None, 1, 3])
def test_every_page_has_a_physical_address_and_is_found_by_it(kernel: Any, largest_run: int | None):
    rig = Rig(kernel, largest_run)
    block = rig.memory.allocate_scattered(9 * PAGE)
    assert block is not None
    physical = PhysicalMemory(rig.bus)
    seen = set()
    for offset in range(7, 9 * PAGE, PAGE):
        address = physical.physical_address(block.bus_address + offset)
        assert address is not None
        assert address % PAGE == 7
        assert physical.bus_address(address) == block.bus_address + offset
        seen.add(address)
    assert len(seen) == 9
    assert physical.physical_address(77 << 48) is None
    assert physical.bus_address(HIGHEST_PHYSICAL_ADDRESS) is None


def test_pool_and_what_is_not_mapped_have_no_physical_address(kernel: Any):
    rig = Rig(kernel)
    block = kernel.pool.allocate(8, "Test")
    assert get_physical_address(kernel.processor, rig.adapter.physical, block) == 0
    assert kernel.run(get_physical_address, kernel.processor, rig.adapter.physical, 0x1000) == 0


def test_contiguous_memory_is_whole_pages_between_two_addresses(kernel: Any):
    rig = Rig(kernel)
    processor = kernel.processor
    low = allocate_contiguous_memory(processor, rig.memory, PAGE + 1, highest=FOUR_GIB - 1)
    assert low is not None
    assert len(low) == 2 * PAGE
    assert allocate_contiguous_memory(processor, rig.memory, 1, lowest=FOUR_GIB) is None
    rig.take_low_memory()
    high = allocate_contiguous_memory(processor, rig.memory, 1, lowest=FOUR_GIB)
    assert high is not None
    assert get_physical_address(processor, rig.adapter.physical, high) >= FOUR_GIB
    free_contiguous_memory(processor, rig.memory, high)
    with pytest.raises(ValueError, match="freed already"):
        free_contiguous_memory(processor, rig.memory, high)


def test_c4_2001a_contiguous_memory_is_freed_at_dispatch_level_at_most(verified: Any):
    rig = Rig(verified)
    buffer = allocate_contiguous_memory(verified.processor, rig.memory, PAGE)
    arguments = (verified.processor, rig.memory, buffer)
    found = bug_of(verified, DEVICE_LEVEL, free_contiguous_memory, *arguments)
    assert found == (DRIVER_VERIFIER_DETECTED_VIOLATION, 0x2001A, DEVICE_LEVEL)


def test_contiguous_memory_at_dispatch_level_is_what_the_kernel_holds_already(kernel: Any):
    rig = Rig(kernel)
    arguments = (kernel.processor, rig.memory)
    assert rig.call(allocate_contiguous_memory, *arguments, PAGE) is not None
    held = rig.memory.held
    assert rig.call(allocate_contiguous_memory, *arguments, 1 << 20) is None
    assert rig.memory.held == held
    assert kernel.run(allocate_contiguous_memory, *arguments, 1 << 20) is not None
    code = bug_of(kernel, DEVICE_LEVEL, allocate_contiguous_memory, *arguments, PAGE)
    assert code == (IRQL_NOT_LESS_OR_EQUAL, 0, DEVICE_LEVEL)


def test_the_way_of_the_mail_works_at_dispatch_level(kernel: Any):
    """Contiguous memory, an MDL of it, and MapTransfer: none of them needs PASSIVE_LEVEL."""
    rig = Rig(kernel)

    def whole_way() -> tuple[Any, int, int]:
        buffer = allocate_contiguous_memory(kernel.processor, rig.memory, PAGE)
        mdl = rig.describe(buffer, PAGE)
        found: list[tuple[int, int]] = []

        def control(_device: Any, base: Any, _context: Any) -> int:
            va = mdl.virtual_address
            found.append(rig.adapter.map_transfer(mdl, base, va, PAGE, False))
            return 3

        assert rig.adapter.allocate_adapter_channel(None, 1, control) == STATUS_SUCCESS
        return buffer, *found[0]

    buffer, address, length = kernel.run_at(DISPATCH_LEVEL, whole_way)
    assert length == PAGE
    rig.device.write(address, b"works")
    assert bytes(buffer.view[:5]) == b"works"


# --- user memory ---------------------------------------------------------------------------------


def locked(rig: Rig, address: int, length: int) -> Any:
    rig.kernel.space.bus = rig.bus
    mdl = allocate_mdl(rig.processor, address, length)
    assert mdl is not None
    rig.kernel.run(probe_and_lock_pages, mdl, USER_MODE, IO_WRITE_ACCESS)
    return mdl


@pytest.mark.parametrize("name", ["kernel", "verified"])
def test_private_memory_is_told_a_64_bit_device_and_refused_a_narrow_one(
    request: pytest.FixtureRequest, raw: Any, name: str
):
    """It cannot be copied at DISPATCH_LEVEL, so nothing is: neither for reach nor for checks."""
    kernel = request.getfixturevalue(name)
    address = raw.map(2)
    wide, narrow = Rig(kernel), Rig(kernel, bits=32)
    mdl = locked(wide, address + 5, PAGE)
    assert wide.get(mdl, True) == STATUS_SUCCESS
    segment = kernel.space.private_segment()
    assert wide.lists[0].elements == [(segment.address(address + 5), PAGE)]
    assert narrow.get(mdl, True) == STATUS_INSUFFICIENT_RESOURCES
    base = narrow.channel(2)
    assert base is not None
    assert narrow.map(mdl, base, 0, PAGE, True) == NOTHING_MAPPED
    wide.put(wide.lists[0])
    kernel.run(unlock_pages, mdl)


def test_the_physical_address_of_an_arena_is_that_of_its_page(kernel: Any):
    rig = Rig(kernel)
    buffer = rig.memory.allocate_contiguous(PAGE)
    assert buffer is not None
    segment = rig.bus.segments[buffer.bus_address >> 48]
    base = 0x10_0000
    kernel.space.add_arena(1, base, segment.length, segment.view, segment)
    physical = rig.adapter.physical
    found = kernel.run(get_physical_address, kernel.processor, physical, base + PAGE + 3)
    assert found == physical.physical_address(segment.address(PAGE + 3))
    assert found
