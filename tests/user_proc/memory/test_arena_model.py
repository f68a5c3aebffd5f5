"""Random allocation and release: buffers never overlap, keep their bytes, and leave nothing."""

import gc
import itertools
import mmap
import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.segment import create_segment
from user_proc.memory.arena import ALIGNMENT, ArenaAllocator, ArenaBuffer
from user_proc.memory.free_ranges import FreeRanges

KIB = 1024
sizes = st.one_of(
    st.integers(1, 300), st.integers(1, 300 * KIB), st.sampled_from([64, 4096, 1 << 20, 3 << 20])
)


class Kernel:
    name = "test"

    def __init__(self) -> None:
        self.arenas: dict[int, tuple[int, int]] = {}
        self.next_id = 1

    def allocate_arena(self, length: int) -> tuple[int, int]:
        arena_id, self.next_id = self.next_id, self.next_id + 1
        self.arenas[arena_id] = (0, length)
        return arena_id, create_segment("test", length)

    def arena_mapped(self, arena_id: int, base: int) -> None:
        self.arenas[arena_id] = (base, self.arenas[arena_id][1])

    def free_arena(self, arena_id: int) -> None:
        del self.arenas[arena_id]


@pytest.fixture(scope="module", autouse=True)
def _others_out_of_the_way() -> None:
    """What former tests left need not be looked at after each example here."""
    gc.collect()
    gc.freeze()


class AllocatorModel(RuleBasedStateMachine):
    """`held` are buffers with the byte each is filled with; `slices` outlive theirs."""

    @initialize()
    def begin(self) -> None:
        self.kernel = Kernel()
        self.allocator = ArenaAllocator(self.kernel)
        self.held: list[tuple[ArenaBuffer, int]] = []
        self.slices: list[tuple[memoryview, int, int]] = []
        self.mark = 0

    @rule(length=sizes, page_aligned=st.booleans())
    def allocate(self, length: int, page_aligned: bool) -> None:
        buffer = self.allocator.allocate(length, page_aligned=page_aligned)
        assert buffer.address % (mmap.PAGESIZE if page_aligned else ALIGNMENT) == 0
        assert any(
            base <= buffer.address and buffer.address + length <= base + size
            for base, size in self.kernel.arenas.values()
        )
        self.mark = self.mark % 250 + 1
        buffer.view[:] = bytes([self.mark]) * length
        self.held.append((buffer, self.mark))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep_slice=st.booleans(), forget=st.booleans())
    def release(self, data: st.DataObject, keep_slice: bool, forget: bool) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        buffer, mark = self.held.pop(index)
        if keep_slice:
            half = buffer.length // 2
            self.slices.append((buffer.view[half:], mark, buffer.address + half))
        if not forget:
            buffer.release()

    @precondition(lambda self: self.slices)
    @rule()
    def drop_slice(self) -> None:
        self.slices.pop(0)

    @invariant()
    def nobody_overlaps_and_bytes_are_kept(self) -> None:
        spans = []
        for buffer, mark in getattr(self, "held", []):
            assert buffer.view[0] == buffer.view[-1] == mark
            spans.append((buffer.address, buffer.address + buffer.length))
        for view, mark, address in getattr(self, "slices", []):
            if len(view):
                assert view[0] == view[-1] == mark
                spans.append((address, address + len(view)))
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        self.held.clear()
        self.slices.clear()
        gc.collect()
        self.allocator.collect()
        left: list[dict[str, Any]] = self.allocator.inspect()["segments"]
        assert all(segment["free"] == segment["length"] for segment in left)
        assert len(left) == len(self.kernel.arenas) <= 1
        self.allocator.close()


class FreeRangesModel(RuleBasedStateMachine):
    """Against a byte map of the segment."""

    SIZE = 4096

    @initialize()
    def begin(self) -> None:
        self.ranges = FreeRanges(self.SIZE)
        self.taken: list[tuple[int, int]] = []
        self.map = bytearray(self.SIZE)

    @rule(length=st.integers(1, 1500), alignment=st.sampled_from([1, 64, 512]))
    def take(self, length: int, alignment: int) -> None:
        places = range(0, self.SIZE - length + 1, alignment)
        fits = (place for place in places if self.map.find(1, place, place + length) < 0)
        offset = self.ranges.take(length, alignment)
        assert offset == next(fits, None)
        if offset is not None:
            self.map[offset : offset + length] = b"\1" * length
            self.taken.append((offset, length))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        offset, length = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.ranges.give_back(offset, length)
        self.map[offset : offset + length] = bytes(length)

    @invariant()
    def free_bytes_agree(self) -> None:
        if hasattr(self, "map"):
            assert self.ranges.free_bytes == self.map.count(0)
            assert self.ranges.is_all_free == (self.map.find(1) < 0)


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=60, stateful_step_count=40)
TestFreeRangesModel = FreeRangesModel.TestCase
TestFreeRangesModel.settings = settings(max_examples=80, stateful_step_count=30)


def test_the_model_leaves_no_descriptors():
    kernel = Kernel()
    before = os.listdir("/proc/self/fd")
    allocator = ArenaAllocator(kernel)
    allocator.allocate(3 << 20).release()
    assert os.listdir("/proc/self/fd") == before
