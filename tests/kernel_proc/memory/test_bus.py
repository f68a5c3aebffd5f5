"""The bus: numbers, what devices are told, and runs merged where both sides are in a row."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus, FrameMap
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator

PAGE = 4096


class Device:
    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, int]] = {}
        self.told: list[tuple[str, int]] = []

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        assert number not in self.known
        self.known[number] = (view, descriptor)
        self.told.append(("add", number))

    def remove_segment(self, number: int) -> None:
        del self.known[number]
        self.told.append(("remove", number))


@pytest.fixture
def bus() -> Bus:
    return Bus(PageFrameAllocator())


def memory(pages: int) -> memoryview:
    return memoryview(bytearray(pages * PAGE))


def test_devices_learn_of_what_is_there_and_of_what_comes(bus: Bus):
    early = bus.add_shared(memory(1), 7, [FrameRun(0, 1)], "early")
    device = Device()
    bus.attach(device)
    late = bus.add_private(9)
    assert early is not None
    assert late is not None
    assert {number: fd for number, (_, fd) in device.known.items()} == {1: 7, 2: 9}
    assert device.known[2][0] is None
    bus.remove(early)
    assert device.told == [("add", 1), ("add", 2), ("remove", 1)]
    bus.detach(device)
    bus.remove(late)
    assert list(device.known) == [2]
    with pytest.raises(KeyError):
        bus.remove(late)


def test_numbers_come_back_only_when_all_have_been_used_and_oldest_first(bus: Bus):
    first = bus.add_private(3)
    second = bus.add_private(3)
    assert first is not None
    assert second is not None
    bus.remove(second)
    bus.remove(first)
    seen = 2
    while (segment := bus.add_private(3)) is not None and segment.number > seen:
        seen = segment.number
    assert seen == (1 << 16) - 1
    assert segment is not None
    assert segment.number == 2
    last = bus.add_private(3)
    assert last is not None
    assert last.number == 1
    assert bus.add_private(3) is None


def test_an_address_is_the_number_and_the_offset(bus: Bus):
    segment = bus.add_shared(memory(4), 3, [FrameRun(5, 4)], "four pages")
    assert segment is not None
    assert segment.address(0x123) == 1 << SEGMENT_SHIFT | 0x123
    assert segment.bus_runs(100, 3 * PAGE) == [(segment.address(100), 3 * PAGE)]
    assert bus.inspect()["segments"] == [
        {"number": 1, "name": "four pages", "length": 4 * PAGE, "runs": 1}
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_a_range_is_cut_exactly_at_the_ends_of_runs(counts: list[int], data: st.DataObject):
    # Two frames apart, so that runs are never in a row.
    runs, start = [], 0
    for count in counts:
        runs.append(FrameRun(start, count))
        start += count + 2
    frame_of = [frame for run in runs for frame in range(run.start, run.start + run.count)]
    total = len(frame_of) * PAGE
    offset = data.draw(st.integers(0, total - 1))
    length = data.draw(st.integers(1, total - offset))
    pieces = FrameMap(runs).split(1000 * PAGE + offset, offset, length)
    assert sum(size for _, size in pieces) == length
    at = 1000 * PAGE + offset
    for address, size in pieces:
        assert address == at
        pages = range((at - 1000 * PAGE) // PAGE, (at + size - 1 - 1000 * PAGE) // PAGE + 1)
        assert all(frame_of[page + 1] == frame_of[page] + 1 for page in pages if page + 1 in pages)
        at += size
    for before, after in pairwise(pieces):
        page = (after[0] - 1000 * PAGE) // PAGE
        assert after[0] % PAGE == 0
        assert frame_of[page] != frame_of[page - 1] + 1, (before, after)
