"""Page frames: nothing is given twice, runs are as long as they may be, and all comes back."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.memory.extents import Extents
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator

LIMITS = st.sampled_from([None, 1, 2, 3, 8, 16])


def frames_of(runs: list[FrameRun]) -> list[int]:
    return [frame for start, count in runs for frame in range(start, start + count)]


@given(LIMITS, st.integers(1, 600), st.data())
def test_frames_are_given_once_and_all_come_back(
    limit: int | None, total: int, data: st.DataObject
):
    allocator = PageFrameAllocator(total, limit)
    held: list[list[FrameRun]] = []
    for _ in range(data.draw(st.integers(0, 25))):
        step = data.draw(st.sampled_from(["allocate", "contiguous", "free"]))
        if step == "free" and held:
            allocator.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif step == "allocate":
            count = data.draw(st.integers(1, 120))
            runs = allocator.allocate(count)
            if runs is not None:
                assert sum(run.count for run in runs) == count
                for before, after in pairwise(runs):
                    assert before.start + before.count != after.start
                    assert limit is None or before.count == limit
                held.append(runs)
        else:
            alignment = data.draw(st.sampled_from([1, 2, 4, 16]))
            run = allocator.allocate_contiguous(data.draw(st.integers(1, 20)), alignment)
            if run is not None:
                assert run.start % alignment == 0
                held.append([run])
        given_out = [frame for runs in held for frame in frames_of(runs)]
        assert len(given_out) == len(set(given_out)) == allocator.used
        assert all(0 <= frame < total for frame in given_out)
        assert all(run.count <= (limit or total) for runs in held for run in runs)
    for runs in held:
        allocator.free(runs)
    assert allocator.used == 0
    whole = allocator.allocate(total // (limit or 1) * (limit or 1) or total)
    assert whole is not None or total < (limit or 1)


def test_unfragmented_frames_lie_in_a_row_while_there_is_room():
    allocator = PageFrameAllocator(1000)
    assert allocator.allocate(400) == [FrameRun(0, 400)]
    assert allocator.allocate_contiguous(5, 128) == FrameRun(512, 5)
    assert allocator.allocate(483) == [FrameRun(517, 483)]
    assert allocator.allocate(112) == [FrameRun(400, 112)]
    assert allocator.allocate(1) is None
    allocator.free([FrameRun(0, 10), FrameRun(500, 5)])
    assert allocator.allocate(15) == [FrameRun(0, 10), FrameRun(500, 5)]


def test_fragmented_frames_are_dealt_in_chunks():
    allocator = PageFrameAllocator(1000, largest_run=4)
    runs = allocator.allocate(10)
    assert runs == [FrameRun(0, 4), FrameRun(8, 4), FrameRun(16, 2)]
    assert allocator.allocate_contiguous(5) is None
    assert allocator.allocate_contiguous(4) == FrameRun(24, 4)


def test_the_odd_chunks_never_follow_their_neighbours():
    # The even chunks run out in the middle of the second allocation.
    allocator = PageFrameAllocator(8, largest_run=1)
    assert frames_of(allocator.allocate(3) or []) == [0, 2, 4]
    second = frames_of(allocator.allocate(4) or [])
    assert sorted(second) == [1, 3, 5, 7]
    third = allocator.allocate(1)
    assert third == [FrameRun(6, 1)]


def test_nonsense_is_refused():
    allocator = PageFrameAllocator(100)
    with pytest.raises(ValueError):
        allocator.allocate(0)
    with pytest.raises(ValueError):
        allocator.allocate_contiguous(-1)
    runs = allocator.allocate(10)
    assert runs is not None
    allocator.free(runs)
    with pytest.raises(ValueError):
        allocator.free(runs)
    assert allocator.inspect() == {"total": 100, "used": 0, "largest_run": 0}


def test_a_gibibyte_in_a_row_is_one_run_and_scattered_it_is_quick_enough():
    assert PageFrameAllocator().allocate(1 << 18) == [FrameRun(0, 1 << 18)]
    allocator = PageFrameAllocator(largest_run=1)
    start = time.process_time()
    runs = allocator.allocate(1 << 18)
    assert runs is not None
    allocator.free(runs)
    assert len(runs) == 1 << 18
    assert time.process_time() - start < 2.0


def test_extents_keep_borders_apart():
    extents = Extents(12, frozenset({4, 8}))
    assert extents.take(5) is None
    assert [extents.take(4), extents.take(3, 2), extents.take(2)] == [0, 4, 8]
    extents.give(0, 4)
    extents.give(4, 3)
    assert len(extents) == 3
    assert extents.take(5) is None
    with pytest.raises(ValueError):
        extents.give(3, 2)
