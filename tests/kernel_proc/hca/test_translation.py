"""Keys and translations: what is granted, and what is not."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.hca.device_memory import BusError, DeviceMemory
from kernel_proc.hca.memory_key import (
    FaultReason,
    MemoryKey,
    TranslationFault,
    index_with_generation,
)
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi import contexts as abi

PAGE = 4096
READ, WRITE = abi.MPT_FLAG_REMOTE_READ, abi.MPT_FLAG_REMOTE_WRITE
FLAGS = abi.MPT_FLAG_REGION | READ
KEY = 40 << 8
PD = 5


def table(pages: list[int], length: int, start: int = 0, flags: int = FLAGS, shift: int = 0):
    translation = Translation()
    translation.configure(10, 13)
    entries = b"".join((page | abi.MTT_PRESENT).to_bytes(8, "big") for page in pages)
    translation.write_mtt(24, entries)
    entry = abi.MptEntry(flags, shift, KEY, PD, start, length, mtt_address=24 * 8)
    translation.insert(40, MemoryKey(entry))
    return translation


def runs(translation: Translation, address: int, length: int, **changes: int):
    access = {"key": KEY, "pd": PD, "rights": READ, **changes}
    entry = translation.find(access["key"], access["pd"], access["rights"], address, length)
    return translation.runs(entry, address, length)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": KEY | 1}, FaultReason.UNKNOWN_KEY),  # a generation in the low bits
        ({"key": KEY | 1 << 31}, FaultReason.UNKNOWN_KEY),  # one in the high bits
        ({"key": 41 << 8}, FaultReason.UNKNOWN_KEY),
        ({"pd": PD + 1}, FaultReason.WRONG_PD),
        ({"rights": READ | WRITE}, FaultReason.NO_RIGHT),
        ({"address": 0xFFF}, FaultReason.OUT_OF_BOUNDS),
        ({"address": 0x1000 + 3 * PAGE, "length": 1}, FaultReason.OUT_OF_BOUNDS),
        ({"length": 3 * PAGE + 1}, FaultReason.OUT_OF_BOUNDS),
        ({"address": 2**64 - 1, "length": 0x2000}, FaultReason.OUT_OF_BOUNDS),
        ({"length": 2**64 - 0x1000}, FaultReason.OUT_OF_BOUNDS),
    ],
)
def test_an_access_that_is_not_granted_is_a_fault(changes: dict[str, int], reason: FaultReason):
    translation = table([0x10000, 0x20000, 0x30000], 3 * PAGE, start=0x1000)
    access = {"address": 0x1000, "length": 1, **changes}
    with pytest.raises(TranslationFault) as caught:
        runs(translation, access.pop("address"), access.pop("length"), **access)
    assert caught.value.reason is reason


def test_a_window_that_is_not_bound_grants_nothing():
    translation = table([0x10000], PAGE)
    window = MemoryWindow(abi.MptEntry(0, 0, 41 << 8, PD, 0, 0))
    translation.insert(41, window)
    for length in (0, 1):
        with pytest.raises(TranslationFault):
            runs(translation, 0, length, key=41 << 8)


def test_a_key_taken_back_names_nothing():
    translation = table([0x10000], PAGE)
    translation.remove(40)
    with pytest.raises(TranslationFault):
        runs(translation, 0, 1)


def test_an_entry_that_is_not_present_is_a_fault():
    translation = table([0x10000], 2 * PAGE)
    for address, length in ((PAGE, 1), (0, PAGE + 1)):
        with pytest.raises(TranslationFault) as caught:
            runs(translation, address, length)
        assert caught.value.reason is FaultReason.NOT_PRESENT


def test_neighbours_are_joined_and_offsets_kept():
    translation = table([0x10000, 0x11000, 0x30000], 3 * PAGE - 0x30, start=0x7030)
    assert runs(translation, 0x7030, 3 * PAGE - 0x30) == [(0x10030, 0x1FD0), (0x30000, PAGE)]
    assert runs(translation, 0x8FFF, 2) == [(0x11FFF, 1), (0x30000, 1)]
    assert runs(translation, 0x7030, 0) == []


def test_zero_based_and_physical_regions():
    flags = FLAGS | abi.MPT_FLAG_ZERO_BASED
    assert runs(table([0x10000], 0x100, start=0x7030, flags=flags), 0, 8) == [(0x10030, 8)]
    with pytest.raises(TranslationFault):
        runs(table([0x10000], 0x100, start=0x7030, flags=flags), 0x7030, 8)
    physical = table([], 1 << 40, start=1 << 48, flags=FLAGS | abi.MPT_FLAG_PHYSICAL)
    assert runs(physical, (1 << 48) + 5, 1 << 20) == [((1 << 48) + 5, 1 << 20)]


def test_pages_may_be_large_and_chunks_are_crossed():
    large = table([0x100000, 0x900000], 0x20000, shift=4)
    assert runs(large, 0xFFF0, 0x20) == [(0x10FFF0, 0x10), (0x900000, 0x10)]
    pages = [(n * 7919 % 40000) << 12 for n in range(33000)]
    many = table(pages, 33000 * PAGE)
    for page in (0, 32743, 32744, 32999):
        assert runs(many, page * PAGE + 9, 1) == [(pages[page] + 9, 1)]
    found = runs(many, 0, 33000 * PAGE)
    assert sum(length for _, length in found) == 33000 * PAGE


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(0, PAGE - 1),
    st.data(),
)
def test_runs_are_the_bytes_page_by_page(frames: list[int], offset: int, data: st.DataObject):
    length = len(frames) * PAGE - offset
    translation = table([frame * PAGE for frame in frames], length, start=offset)
    first = data.draw(st.integers(0, length - 1))
    count = data.draw(st.integers(1, length - first))
    expected = []
    for position in {first, first + count - 1, first + count // 2}:
        byte = offset + position
        expected.append((position, frames[byte // PAGE] * PAGE + byte % PAGE))
    found = runs(translation, offset + first, count)
    assert sum(size for _, size in found) == count
    for position, bus in expected:
        rest = position - first
        for start, size in found:
            if rest < size:
                assert start + rest == bus
                break
            rest -= size
    joined = pairwise(found)
    assert all(before[0] + before[1] != after[0] for before, after in joined)


@given(st.integers(0, 2**32 - 1))
def test_a_key_is_its_number_rotated(number: int):
    key = (number << 8 | number >> 24) & 0xFFFFFFFF
    assert index_with_generation(key) == number


# Device memory


def test_memory_is_what_was_given_and_no_more(tmp_path: Path):
    memory = DeviceMemory()
    private = tmp_path / "private"
    private.write_bytes(bytes(100))
    shared = bytearray(PAGE)
    memory.add(1, memoryview(shared))
    memory.add(2, None, os.open(private, os.O_RDWR))
    memory.write(1 << 48 | 8, b"abc")
    memory.write(2 << 48 | 8, b"xyz")
    assert memory.read(1 << 48 | 8, 3) == b"abc" == bytes(shared[8:11])
    assert memory.read(2 << 48 | 8, 3) == b"xyz"
    for address, length in ((1 << 48 | 4090, 7), (3 << 48, 1), (0, 1), (2 << 48 | 95, 6)):
        with pytest.raises(BusError):
            memory.read(address, length)
    for address in (1 << 48 | 4094, 3 << 48, 0):
        with pytest.raises(BusError):
            memory.write(address, b"1234")
    with pytest.raises(BusError):
        memory.view(2 << 48, 4)
    for number in (0, 1, 1 << 16):
        with pytest.raises(ValueError, match="segment number"):
            memory.add(number, memoryview(shared))
    memory.close()
    with pytest.raises(BusError):
        memory.read(1 << 48, 1)


def memory_table(bus_pages: list[int]) -> tuple[Translation, DeviceMemory, memoryview]:
    """A region over pages of a segment that exists."""
    memory = DeviceMemory()
    view = memoryview(bytearray(8 * PAGE))
    memory.add(1, view)
    translation = Translation(memory)
    translation.configure(10, 13)
    pages = b"".join((1 << 48 | page | abi.MTT_PRESENT).to_bytes(8, "big") for page in bus_pages)
    translation.write_mtt(24, pages)
    entry = abi.MptEntry(FLAGS, 0, KEY, PD, 0x1000, len(bus_pages) * PAGE, mtt_address=24 * 8)
    translation.insert(40, MemoryKey(entry))
    return translation, memory, view


@pytest.mark.parametrize(
    ("pages", "is_view"), [([0, PAGE, 2 * PAGE], True), ([0, 2 * PAGE, PAGE], False)]
)
def test_contiguous_memory_is_reached_by_a_view(pages: list[int], is_view: bool):
    translation, _, view = memory_table(pages)
    view[:] = bytes(range(256)) * (8 * PAGE // 256)
    view[pages[1]] = 99
    reached = translation.reach(KEY, PD, FLAGS, 0x1000 + PAGE - 1, 3)
    assert isinstance(reached, memoryview) == is_view
    parts = [reached] if isinstance(reached, memoryview) else reached
    assert b"".join(parts) == bytes([255, 99, 1])  # type: ignore[arg-type]  # none is private
    assert (translation.page_look_ups > 0) != is_view


@pytest.mark.parametrize("how", ["key", "segment", "translation", "neighbour", "all"])
def test_a_view_closes_with_what_it_stands_on(how: str):
    translation, memory, view = memory_table([0, PAGE])
    translation.reach(KEY, PD, FLAGS, 0x1000, 1)
    key = translation.named(KEY)
    assert key is not None
    assert key.view is not None
    if how == "key":
        translation.remove(40)
    elif how == "segment":
        memory.remove(1)
        with pytest.raises(TranslationFault):
            translation.reach(KEY, PD, FLAGS, 0x1000, 1)
    elif how == "translation":
        translation.write_mtt(25, (1 << 48 | 5 * PAGE | abi.MTT_PRESENT).to_bytes(8, "big"))
        view[5 * PAGE] = 77
        moved = translation.reach(KEY, PD, FLAGS, 0x1000 + PAGE, 1)
        assert isinstance(moved, list)
        assert isinstance(moved[0], memoryview)
        assert moved[0][0] == 77
    elif how == "neighbour":
        translation.write_mtt(28, bytes(8))  # in the same segment of the MTT
    else:
        translation.configure(10, 13)
    assert key.view is None
    if how != "segment":
        memory.remove(1)
    view.release()  # nobody has a view of it
