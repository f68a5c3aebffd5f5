"""DMA verification: wrong drivers and the bug check each ends in; what double buffering shows.

Each driver here does one thing wrong, in verifier mode, and the machine stops with 0xE6 and the
parameters that are documented for it. The right one next to it goes through.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.memory.dma_channel import KEEP_OBJECT
from kernel_proc.memory.dma_guards import PADDING, TAG, VERIFIED_MAP_REGISTERS, guard, overrun
from kernel_proc.memory.mdl import allocate_mdl
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from shared.nt_status import STATUS_SUCCESS
from tests.kernel_proc.memory.dma_rig import PAGE, Rig, bug_of, violation

Driver = Callable[[Rig], object]


@pytest.fixture
def rig(verified: Any) -> Rig:
    return Rig(verified)


def stopped(rig: Rig, driver: Driver) -> tuple[int, ...]:
    """Run a driver until it stops the machine."""
    with pytest.raises(BugCheck) as caught:
        driver(rig)
    return caught.value.code, *caught.value.parameters[:2]


# --- drivers, by the first and second parameter they end with ------------------------------------


def map_beyond_the_registers(rig: Rig) -> None:
    _, mdl = rig.kernel_mdl(bytes(4 * PAGE))
    base = rig.channel(2)
    assert base is not None
    for page in range(3):
        rig.map(mdl, base, page * PAGE, PAGE, True)


def flush_past_the_end(rig: Rig) -> None:
    _, mdl = rig.kernel_mdl(bytes(PAGE))
    base = rig.channel(2)
    assert base is not None
    rig.map(mdl, base, 0, PAGE, True)
    rig.flush(mdl, base, 0, PAGE + 1, True)


def free_a_common_buffer_twice(rig: Rig) -> None:
    buffer = rig.adapter.allocate_common_buffer(1)
    for _ in range(2):
        rig.kernel.run(rig.adapter.free_common_buffer, buffer)


def free_the_channel_twice(rig: Rig) -> None:
    rig.channel(1, KEEP_OBJECT)
    for _ in range(2):
        rig.call(rig.adapter.free_adapter_channel)


def free_map_registers_twice(rig: Rig) -> None:
    base = rig.channel(1)
    for _ in range(2):
        rig.call(rig.adapter.free_map_registers, base, 1)


def put_a_list_twice(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    rig.get(mdl, True)
    for _ in range(2):
        rig.put(rig.lists[0])


def leave_a_common_buffer(rig: Rig) -> None:
    rig.adapter.allocate_common_buffer(1)
    rig.kernel.run(rig.adapter.put_adapter)


def leave_the_channel(rig: Rig) -> None:
    rig.channel(1, KEEP_OBJECT)
    rig.kernel.run(rig.adapter.put_adapter)


def leave_map_registers(rig: Rig) -> None:
    rig.channel(1)
    rig.kernel.run(rig.adapter.put_adapter)


def leave_a_list(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    rig.get(mdl, True)
    rig.kernel.run(rig.adapter.put_adapter)


def ask_for_two_channels(rig: Rig) -> None:
    device = object()
    rig.channel(1, KEEP_OBJECT, device)
    rig.channel(1, KEEP_OBJECT, device)


def ask_for_too_many_registers(rig: Rig) -> None:
    rig.channel(9)


def free_the_channel_before_a_flush(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    base = rig.channel(1, KEEP_OBJECT)
    assert base is not None
    rig.map(mdl, base, 0, 1, False)
    rig.call(rig.adapter.free_adapter_channel)


def map_memory_that_is_not_locked(rig: Rig) -> None:
    block = rig.kernel.pool.allocate(8, "Test")
    mdl = allocate_mdl(rig.processor, block, 8)
    assert mdl is not None
    rig.get(mdl, True)


def free_registers_before_a_flush(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    base = rig.channel(1)
    assert base is not None
    rig.map(mdl, base, 0, 1, False)
    rig.call(rig.adapter.free_map_registers, base, 1)


def flush_what_is_not_mapped(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    base = rig.channel(1)
    assert base is not None
    rig.flush(mdl, base, 0, 1, False)


def use_the_adapter_after_it_was_put(rig: Rig) -> None:
    rig.kernel.run(rig.adapter.put_adapter)
    rig.kernel.run(rig.adapter.allocate_common_buffer, 1)


def map_outside_the_mdl(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"four")
    base = rig.channel(1)
    assert base is not None
    rig.map(mdl, base, 1, 4, False)


def map_a_range_twice(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"four")
    base = rig.channel(2)
    assert base is not None
    rig.map(mdl, base, 0, 3, False)
    rig.map(mdl, base, 2, 2, False)


def flush_registers_that_were_freed(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    base = rig.channel(1)
    assert base is not None
    rig.call(rig.adapter.free_map_registers, base, 1)
    rig.flush(mdl, base, 0, 1, False)


def map_no_bytes(rig: Rig) -> None:
    _, mdl = rig.pool_mdl(b"x")
    base = rig.channel(1)
    assert base is not None
    rig.map(mdl, base, 0, 0, False)


DRIVERS: dict[tuple[int, int], Driver] = {
    (0x00, 1): flush_past_the_end,
    (0x00, 2): map_beyond_the_registers,
    (0x03, 0): free_a_common_buffer_twice,
    (0x04, 0): free_the_channel_twice,
    (0x05, 0): free_map_registers_twice,
    (0x06, 0): put_a_list_twice,
    (0x07, 0): leave_a_common_buffer,
    (0x08, 0): leave_the_channel,
    (0x09, 0): leave_map_registers,
    (0x0A, 0): leave_a_list,
    (0x0B, 0): ask_for_two_channels,
    (0x0C, 0): ask_for_too_many_registers,
    (0x0D, 0): free_the_channel_before_a_flush,
    (0x0E, 0): map_memory_that_is_not_locked,
    (0x10, 0): free_registers_before_a_flush,
    (0x16, 0): flush_what_is_not_mapped,
    (0x18, 0): use_the_adapter_after_it_was_put,
    (0x1B, 0): map_outside_the_mdl,
    (0x1D, 0): map_a_range_twice,
    (0x20, 0): flush_registers_that_were_freed,
    (0x21, 0): map_no_bytes,
}


@pytest.mark.parametrize(("p1", "p2"), DRIVERS, ids=[f"{p1:#x}-{p2}" for p1, p2 in DRIVERS])
def test_e6_a_wrong_driver_stops_with_its_parameters(rig: Rig, p1: int, p2: int):
    assert stopped(rig, DRIVERS[p1, p2]) == violation(p1, p2)


def test_a_right_driver_goes_through_all_of_it(rig: Rig):
    adapter, kernel = rig.adapter, rig.kernel
    before = rig.memory.used
    common = kernel.run(adapter.allocate_common_buffer, 3 * PAGE)
    block, mdl = rig.pool_mdl(b"\x11" * 5000)
    rig.get(mdl, True)
    rig.put(rig.lists[0])
    base = rig.channel(2)
    assert base is not None
    at = 0
    while at < 5000:
        address, length = rig.map(mdl, base, at, 5000 - at, False)
        rig.device.write(address, b"\x22" * length)
        assert rig.flush(mdl, base, at, length, False)
        at += length
    assert bytes(block) == b"\x22" * 5000
    rig.call(adapter.free_map_registers, base, 2)
    kernel.run(adapter.free_common_buffer, common)
    assert rig.memory.used == before
    kernel.run(adapter.put_adapter)
    assert rig.memory.used == 0


# --- 0x13: the level -----------------------------------------------------------------------------

EXACTLY, AT_MOST = 1, 2


@pytest.mark.parametrize(
    ("name", "levels", "kind"),
    [
        ("allocate_common_buffer", (APC_LEVEL, DISPATCH_LEVEL), EXACTLY),
        ("free_common_buffer", (APC_LEVEL, DISPATCH_LEVEL), EXACTLY),
        ("get_scatter_gather_list", (PASSIVE_LEVEL, APC_LEVEL, DEVICE_LEVEL), EXACTLY),
        ("put_scatter_gather_list", (PASSIVE_LEVEL, DEVICE_LEVEL), EXACTLY),
        ("allocate_adapter_channel", (PASSIVE_LEVEL, DEVICE_LEVEL), EXACTLY),
        ("free_adapter_channel", (PASSIVE_LEVEL, DEVICE_LEVEL), EXACTLY),
        ("free_map_registers", (PASSIVE_LEVEL, DEVICE_LEVEL), EXACTLY),
        ("map_transfer", (DEVICE_LEVEL,), AT_MOST),
        ("flush_adapter_buffers", (DEVICE_LEVEL,), AT_MOST),
        ("put_adapter", (DEVICE_LEVEL,), AT_MOST),
    ],
)
def test_e6_13_the_level_of_each_routine(
    verified: Any, name: str, levels: tuple[int, ...], kind: int
):
    for level in levels:
        verified.processor.bug_checked = None
        rig = Rig(verified)
        _, mdl = rig.pool_mdl(b"data")
        base = rig.channel(1)
        arguments = {
            "allocate_common_buffer": (1,),
            "free_common_buffer": (rig.adapter.allocate_common_buffer(1),),
            "get_scatter_gather_list": (mdl, True, print),
            "put_scatter_gather_list": (None,),
            "allocate_adapter_channel": (None, 1, print),
            "free_map_registers": (base, 1),
            "map_transfer": (mdl, base, mdl.virtual_address, 4, True),
            "flush_adapter_buffers": (mdl, base, mdl.virtual_address, 4, True),
        }.get(name, ())
        found = bug_of(verified, level, getattr(rig.adapter, name), *arguments)
        assert found == violation(0x13, kind)


# --- 0x0F: overruns ------------------------------------------------------------------------------


def of_a_list(rig: Rig, offset: int) -> None:
    """A device that writes one byte at an offset from the buffer it was told of."""
    _, mdl = rig.pool_mdl(bytes(100))
    rig.get(mdl, False)
    ((address, _),) = rig.lists[0].elements
    rig.device.write(address + offset, b"!")
    rig.put(rig.lists[0])


@pytest.mark.parametrize(
    ("offset", "what"), [(-1, 1), (-8, 1), (100, 2), (107, 2), (-9, 4), (108, 5), (99, 0), (0, 0)]
)
def test_e6_0f_a_device_that_writes_beside_a_buffer(rig: Rig, offset: int, what: int):
    if what:
        assert stopped(rig, lambda rig: of_a_list(rig, offset)) == violation(0x0F, what)
    else:
        of_a_list(rig, offset)


def test_e6_0f_3_a_device_that_writes_after_the_transfer(rig: Rig):
    _, mdl = rig.pool_mdl(bytes(100))
    rig.get(mdl, False)
    ((address, _),) = rig.lists[0].elements
    rig.put(rig.lists[0])
    rig.device.write(address, b"late")
    _, others = rig.kernel_mdl(bytes(VERIFIED_MAP_REGISTERS * PAGE))
    assert stopped(rig, lambda rig: rig.get(others, False)) == violation(0x0F, 3)


@pytest.mark.parametrize(("offset", "what"), [(-1, 1), (3000, 2), (-9, 4), (3008, 5)])
def test_e6_0f_a_device_that_writes_beside_a_common_buffer(rig: Rig, offset: int, what: int):
    buffer = rig.kernel.run(rig.adapter.allocate_common_buffer, 3000)
    rig.device.write(buffer.bus_address + offset, b"!")
    found = bug_of(rig.kernel, 0, rig.adapter.free_common_buffer, buffer)
    assert found == violation(0x0F, what)


def test_guards_are_what_the_documentation_says_they_are():
    memory = memoryview(bytearray(64))
    guard(memory, 20, 10)
    assert bytes(memory) == b"".join(
        (bytes([PADDING]) * 12, TAG, bytes(10), TAG, bytes([PADDING]) * 26)
    )
    assert overrun(memory, 20, 10) == 0
    for start, length in ((0, 64), (3, 61), (0, 60)):  # no room for a whole tag, or any
        guard(memory, start, length)
        assert overrun(memory, start, length) == 0


# --- double buffering ----------------------------------------------------------------------------


def test_a_common_buffer_is_in_the_middle_of_its_pages_and_shared(rig: Rig):
    for length, start in ((0x12010, 0x7F8), (0x4300, 0x680), (0x4800, 0x400), (0x1000, 0)):
        buffer = rig.kernel.run(rig.adapter.allocate_common_buffer, length)
        assert buffer.bus_address % PAGE == start
        assert bytes(buffer.view) == bytes(length)
        buffer.view[0] = 7
        assert rig.device.read(buffer.bus_address, 1) == b"\x07"


def test_mapped_memory_is_not_shared_with_the_device(rig: Rig):
    buffer, mdl = rig.kernel_mdl(b"\x11" * (2 * PAGE))
    rig.get(mdl, False)
    elements = rig.lists[0].elements
    assert [length for _, length in elements] == [PAGE, PAGE]  # each between guards of its own
    rig.device.write(elements[1][0], b"from the device")
    buffer.view[0] = 0x22
    assert rig.device.read(elements[0][0], 1) != b"\x22"
    assert buffer.view[PAGE] == 0x11
    rig.put(rig.lists[0])
    assert bytes(buffer.view[PAGE : PAGE + 15]) == b"from the device"
    assert buffer.view[0] != 0x22  # what the driver wrote meanwhile is gone


def test_without_double_buffering_it_is(verified: Any):
    rig = Rig(verified, double_buffering=False)
    buffer, mdl = rig.kernel_mdl(b"\x11" * PAGE)
    rig.get(mdl, False)
    buffer.view[0] = 0x22
    assert rig.device.read(rig.lists[0].elements[0][0], 1) == b"\x22"


def test_the_first_64_pages_of_a_driver_are_verified_and_the_rest_left_alone(rig: Rig):
    buffer, mdl = rig.kernel_mdl(b"\x11" * (70 * PAGE))
    rig.get(mdl, True)
    elements = rig.lists[0].elements
    assert [length for _, length in elements] == [PAGE] * VERIFIED_MAP_REGISTERS + [6 * PAGE]
    assert elements[-1][0] == buffer.bus_address + VERIFIED_MAP_REGISTERS * PAGE
    assert rig.adapter.inspect()["verified_pages_left"] == 0
    other, mdl = rig.kernel_mdl(b"\x33" * PAGE)
    rig.get(mdl, True)
    assert rig.lists[1].elements == [(other.bus_address, PAGE)]
    rig.put(rig.lists[0])
    rig.get(mdl, True)
    assert rig.lists[2].elements != [(other.bus_address, PAGE)]


def test_a_narrow_device_is_verified_below_4_gib(verified: Any):
    rig = Rig(verified, bits=32)
    rig.take_low_memory()
    buffer, mdl = rig.kernel_mdl(b"\x11" * (2 * PAGE))
    assert rig.get(mdl, True) == STATUS_SUCCESS
    read = b"".join(rig.device.read(*element) for element in rig.lists[0].elements)
    assert read == bytes(buffer.view)
    rig.put(rig.lists[0])
    assert rig.adapter.inspect()["map_registers_left"] == 8


# The fixture is the class of a kernel, and each example has one of its own.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    length=st.integers(1, 6 * PAGE),
    kind=st.sampled_from(["pool", "large pool", "contiguous"]),
    verifier=st.booleans(),
    bits=st.sampled_from([32, 64]),
    largest_run=st.sampled_from([None, 1, 3]),
    seed=st.binary(min_size=1, max_size=9),
)
def test_a_list_moves_all_bytes_and_no_others_whatever_stands_between(
    new_kernel: Any,
    length: int,
    kind: str,
    verifier: bool,
    bits: int,
    largest_run: int | None,
    seed: bytes,
):
    """Both ways, with and without copies, in memory above 4 GiB where others have the rest."""
    rig = Rig(new_kernel(verifier=verifier, private=None), largest_run, bits=bits)
    if largest_run is None:
        rig.take_low_memory()
    view: memoryview
    if kind == "pool":
        block, _ = rig.pool_mdl(bytes(length + 16))
        view = memoryview(block)
    elif largest_run and kind == "contiguous":
        length = min(length, largest_run * PAGE - 16)
        block = rig.memory.allocate_contiguous(largest_run * PAGE)
        view = block.view
    else:
        block = rig.memory.allocate_scattered(length + 16)
        view = block.view
    mdl = rig.describe(block, length)
    data = (seed * length)[:length]
    view[:length] = data
    view[length : length + 16] = b"untouched bytes!"
    assert rig.get(mdl, True) == STATUS_SUCCESS
    assert b"".join(rig.device.read(*element) for element in rig.lists[0].elements) == data
    rig.put(rig.lists[0])
    assert rig.get(mdl, False) == STATUS_SUCCESS
    done = 0
    for address, size in rig.lists[1].elements:
        rig.device.write(address, data[::-1][done : done + size])
        done += size
    assert done == length
    rig.put(rig.lists[1])
    assert bytes(view[: length + 16]) == data[::-1] + b"untouched bytes!"
    assert rig.device.aborts == 0
    assert rig.adapter.inspect()["map_registers_left"] == 8
