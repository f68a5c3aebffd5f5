"""Numbers, MTT segments, pages of runs: what must hold whatever the order of calls."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernel_proc.driver.buddy import Buddy
from kernel_proc.driver.doorbell_slots import DoorbellSlots
from kernel_proc.driver.number_allocator import NumberAllocator
from kernel_proc.driver.page_runs import mtt_entries, page_shift
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca.memory_key import MemoryKey
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi.contexts import MPT_FLAG_LOCAL_READ, MPT_FLAG_REGION, MptEntry
from shared.doorbell_layout import SLOTS
from shared.verb_reasons import VerbReason

PAGE = 4096


class NumberMachine(RuleBasedStateMachine):
    """An allocator beside a model that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = NumberAllocator(3, 2, 6)
        self.used: list[int] = []
        self.freed: deque[int] = deque()
        self.fresh = 2

    @rule()
    def allocate(self) -> None:
        number = self.allocator.allocate()
        if self.fresh < 8:
            assert number == self.fresh  # generation 0
            self.fresh += 1
        elif self.freed:
            assert number is not None
            assert number & 7 == self.freed.popleft()  # the one freed longest ago
        else:
            assert number is None
            return
        assert number is not None
        assert number not in self.used
        self.used.append(number)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.used))
        self.used.remove(number)
        self.allocator.free(number)
        self.freed.append(number & 7)
        assert number not in self.allocator
        with pytest.raises(ValueError, match="not in use"):
            self.allocator.free(number)

    @invariant()
    def counts(self) -> None:
        assert len(self.allocator) == len(self.used)
        assert len({number & 7 for number in self.used}) == len(self.used)
        assert all(0 <= number < 64 for number in self.used)


TestNumbers = NumberMachine.TestCase
TestNumbers.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_generation_comes_back_last():
    allocator = NumberAllocator(0, 0, 3)
    seen = []
    for _ in range(9):
        number = allocator.allocate()
        assert number is not None
        seen.append(number)
        allocator.free(number)
    assert seen == [*range(8), 0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
@settings(max_examples=80)
def test_runs_of_a_buddy_never_overlap(steps: list[tuple[bool, int]]):
    buddy = Buddy(6)
    runs: dict[int, int] = {}
    for take, value in steps:
        if take:
            order = value
            start = buddy.allocate(order)
            covered = {unit for first, size in runs.items() for unit in range(first, first + size)}
            if start is None:
                size = 1 << order
                assert all(
                    covered & set(range(first, first + size)) for first in range(0, 64, size)
                )
                continue
            assert start % (1 << order) == 0
            assert start + (1 << order) <= 64
            assert not covered & set(range(start, start + (1 << order)))
            runs[start] = 1 << order
        elif runs:
            start = sorted(runs)[value % len(runs)]
            del runs[start]
            buddy.free(start)
        assert buddy.used == sum(runs.values())
    for start in runs:
        buddy.free(start)
    assert buddy.inspect() == {"size": 64, "used": 0, "runs": 0, "longest_free": 64}
    with pytest.raises(ValueError, match="no run"):
        buddy.free(0)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    """Runs as memory has them, and a region address that fits: page-aligned inside."""
    unit = draw(st.sampled_from([1, 1, 2, 4, 16, 64])) * PAGE
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    places = draw(
        st.lists(st.integers(1, 1 << 20), min_size=len(sizes), max_size=len(sizes), unique=True)
    )
    runs = [(place * 8 * unit, size * unit) for place, size in zip(places, sizes, strict=True)]
    first = draw(st.integers(0, min(runs[0][1], PAGE) - 1))
    runs[0] = (runs[0][0] + first, runs[0][1] - first)
    cut = draw(st.integers(0, min(runs[-1][1], PAGE) - 1))
    runs[-1] = (runs[-1][0], runs[-1][1] - cut)
    start = draw(st.integers(0, 1 << 30)) * PAGE + first
    return runs, start


@given(buffers(), st.data())
@settings(max_examples=150)
def test_the_hca_finds_every_byte_where_the_runs_say(
    buffer: tuple[list[tuple[int, int]], int], data: st.DataObject
):
    runs, start = buffer
    length = sum(size for _, size in runs)
    shift = page_shift(runs, start)
    entries = mtt_entries(runs, shift)
    touched = (((bus + size - 1) >> shift) - (bus >> shift) + 1 for bus, size in runs)
    assert len(entries) == 8 * sum(touched)
    translation = Translation()
    translation.configure(4, 10)
    translation.write_mtt(0, entries)
    key = MemoryKey(
        MptEntry(MPT_FLAG_REGION | MPT_FLAG_LOCAL_READ, shift - 12, 1 << 8, 1, start, length)
    )
    assert key.mtt_entries <= len(entries) // 8
    offset = data.draw(st.integers(0, length - 1))
    size = data.draw(st.integers(1, length - offset))
    found = translation.runs(key, start + offset, size)
    assert sum(part for _, part in found) == size
    assert byte_of(found, 0) == byte_of(runs, offset)
    assert byte_of(found, size - 1) == byte_of(runs, offset + size - 1)
    middle = size // 2
    assert byte_of(found, middle) == byte_of(runs, offset + middle)


def byte_of(runs: list[tuple[int, int]], offset: int) -> int:
    for bus, size in runs:
        if offset < size:
            return bus + offset
        offset -= size
    raise AssertionError("beyond the runs")


@given(buffers())
@settings(max_examples=80)
def test_no_larger_page_would_do(buffer: tuple[list[tuple[int, int]], int]):
    runs, start = buffer
    shift = page_shift(runs, start)
    page = 1 << shift + 1
    inner = [bus for bus, _ in runs[1:]] + [bus + size for bus, size in runs[:-1]]
    assert shift == 31 or (runs[0][0] ^ start) % page or any(bus % page for bus in inner)


def test_memory_that_lies_across_pages_is_refused():
    with pytest.raises(ValueError, match="do not lie in pages"):
        page_shift([(PAGE, PAGE), (PAGE * 8 + 16, PAGE)], PAGE)


def test_a_full_doorbell_segment():
    slots = DoorbellSlots()
    taken = [slots.allocate() for _ in range(SLOTS)]
    assert taken == list(range(SLOTS))
    with pytest.raises(VerbRefused) as refused:
        slots.allocate()
    assert refused.value.reason is VerbReason.OUT_OF_DOORBELLS
    slots.free(7)
    slots.free(3)
    assert (slots.used, slots.allocate(), slots.allocate()) == (SLOTS - 2, 7, 3)
