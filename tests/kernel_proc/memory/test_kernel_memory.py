"""Kernel memory: contiguous or not at all, zeroed, within its limit, and given back."""

import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator

PAGE = 4096
SEGMENT = 16 * PAGE


def new_memory(
    largest_run: int | None = None, limit: int = 8 * SEGMENT, frames: int = 1 << 20
) -> KernelMemory:
    return KernelMemory(Bus(PageFrameAllocator(frames, largest_run)), None, limit, SEGMENT)


def place(buffer: KernelBuffer) -> tuple[int, int]:
    return buffer.bus_address >> SEGMENT_SHIFT, buffer.bus_address & ((1 << SEGMENT_SHIFT) - 1)


@given(st.sampled_from([None, 1, 2, 4]), st.data())
def test_buffers_never_overlap_and_all_comes_back(largest: int | None, data: st.DataObject):
    memory = new_memory(largest)
    held: list[KernelBuffer] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            memory.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        length = data.draw(st.integers(1, 6 * PAGE))
        alignment = PAGE << data.draw(st.integers(0, 2))
        buffer = memory.allocate_contiguous(length, alignment)
        if buffer is None:
            assert largest is not None or memory.used + length > memory.limit - SEGMENT
            continue
        assert (len(buffer), len(buffer.view)) == (length, length)
        assert buffer.bus_address % alignment == 0
        assert not any(buffer.view)
        buffer.view[:] = b"\xaa" * length
        held.append(buffer)
        places = sorted((*place(b), -(-len(b) // PAGE) * PAGE) for b in held)
        for (one, start, size), (other, following, _) in pairwise(places):
            assert one != other or start + size <= following
    memory.free_all(held)
    assert memory.used == 0
    assert memory.held <= SEGMENT
    memory.close()
    assert memory.held == 0


def test_fragmented_memory_has_only_short_pieces():
    memory = new_memory(largest_run=2)
    assert memory.allocate_contiguous(3 * PAGE) is None
    pairs = [memory.allocate_contiguous(2 * PAGE) for _ in range(8)]
    offsets = [place(pair)[1] for pair in pairs if pair is not None]
    assert offsets == [2 * PAGE * index for index in range(8)]
    memory.free_all([pair for pair in pairs if pair is not None])
    assert memory.allocate_contiguous(3 * PAGE) is None
    pages = memory.allocate_pages(5)
    assert pages is not None
    assert [len(page) for page in pages] == [PAGE] * 5
    memory.free_all(pages)
    memory.close()


def test_a_buffer_larger_than_a_segment_gets_one_of_its_own():
    memory = new_memory()
    large = memory.allocate_contiguous(3 * SEGMENT + 1, SEGMENT)
    assert large is not None
    assert large.bus_runs(len(large)) == [(large.bus_address, 3 * SEGMENT + 1)]
    assert memory.held == 3 * SEGMENT + PAGE
    memory.free(large)
    memory.close()


def test_the_limit_and_the_frames_hold():
    memory = new_memory(limit=SEGMENT + PAGE)
    pages = memory.allocate_pages(17)
    assert pages is not None
    assert memory.allocate_contiguous(1) is None
    assert memory.allocate_pages(1) is None
    memory.free(pages.pop())
    assert memory.allocate_pages(2) is None
    last = memory.allocate_contiguous(1)
    assert last is not None
    memory.free_all([*pages, last])
    memory.close()
    starved = new_memory(frames=8)
    assert starved.allocate_contiguous(1) is None
    assert starved.held == 0


@pytest.mark.parametrize("used", [1, 5, 16])
@pytest.mark.parametrize("largest", [None, 3])
def test_memory_is_zeroed_whether_somebody_had_it_before_or_not(used: int, largest: int | None):
    memory = new_memory(largest_run=largest)
    first = memory.allocate_pages(used)
    assert first is not None
    for page in first:
        page.view[:] = b"x" * PAGE
    memory.free_all(first)
    second = memory.allocate_pages(16)
    assert second is not None
    assert [bytes(page.view) for page in second] == [bytes(PAGE)] * 16
    assert len({page.bus_address for page in second}) == 16
    memory.free_all(second)
    again = memory.allocate_scattered(2 * PAGE)
    assert again is not None
    assert not any(again.view)
    memory.free(again)
    memory.close()


@settings(max_examples=60)
@given(st.sampled_from([None, 1, 3]), st.data())
def test_whoever_gets_pages_by_whatever_way_finds_nothing_of_the_last(
    largest: int | None, data: st.DataObject
):
    memory = new_memory(largest, limit=3 * SEGMENT)
    ways = {
        "aligned": lambda n: [memory.allocate_contiguous(n * PAGE, 4 * PAGE)],
        "in a row": lambda n: [memory.allocate_contiguous(n * PAGE)],
        "scattered": lambda n: [memory.allocate_scattered(n * PAGE)],
        "single": memory.allocate_pages,
    }
    held: list[list[KernelBuffer]] = []
    for _ in range(data.draw(st.integers(5, 30))):
        if held and data.draw(st.booleans()):
            memory.free_all(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        way = ways[data.draw(st.sampled_from(sorted(ways)))]
        given_now = [one for one in way(data.draw(st.integers(1, 9))) or [] if one is not None]
        assert not any(any(buffer.view) for buffer in given_now)
        for buffer in given_now:
            buffer.view[:] = b"\xaa" * len(buffer)
        held.append(given_now)
    for buffers in held:
        memory.free_all(buffers)
    memory.close()


def test_empty_segments_go_but_one():
    memory = new_memory()
    descriptors = len(os.listdir("/proc/self/fd"))
    pages = memory.allocate_pages(48)
    assert pages is not None
    assert memory.inspect()["segments"] == 3
    memory.free_all(pages)
    del pages
    assert memory.inspect() == {"limit": 8 * SEGMENT, "held": SEGMENT, "used": 0, "segments": 1}
    memory.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_freeing_twice_and_nonsense_are_refused():
    memory = new_memory()
    buffer = memory.allocate_contiguous(10)
    assert buffer is not None
    memory.free(buffer)
    with pytest.raises(ValueError, match="freed already"):
        memory.free(buffer)
    with pytest.raises(ValueError, match="released"):
        buffer.view[0] = 1
    for length, alignment in ((0, PAGE), (-1, PAGE), (1, 0), (1, 3)):
        with pytest.raises(ValueError):
            memory.allocate_contiguous(length, alignment)
    memory.close()


@given(st.sampled_from([None, 1, 2, 4]), st.data())
def test_scattered_and_contiguous_buffers_share_a_segment(largest: int | None, data: st.DataObject):
    memory = new_memory(largest, limit=4 * SEGMENT)
    held: list[KernelBuffer] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            memory.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        length = data.draw(st.integers(1, 9 * PAGE))
        scattered = data.draw(st.booleans())
        buffer = (memory.allocate_scattered if scattered else memory.allocate_contiguous)(length)
        if buffer is None:
            continue
        runs = buffer.bus_runs(length)
        assert sum(size for _, size in runs) == length
        assert runs[0][0] == buffer.bus_address
        assert all(start + size == after for (start, size), (after, _) in pairwise(runs))
        if scattered and largest is not None:
            assert all(size <= largest * PAGE for _, size in runs)
        else:
            assert len(runs) == 1 or scattered
        assert not any(buffer.view)
        buffer.view[:] = b"\xaa" * length
        held.append(buffer)
        places = sorted((*place(b), -(-len(b) // PAGE) * PAGE) for b in held)
        for (one, start, size), (other, following, _) in pairwise(places):
            assert one != other or start + size <= following
    memory.free_all(held)
    assert memory.used == 0
    if largest is not None:
        assert memory.allocate_contiguous((largest + 1) * PAGE) is None
        assert memory.allocate_scattered((largest + 1) * PAGE) is not None
    with pytest.raises(ValueError, match="cannot be allocated"):
        memory.allocate_scattered(0)
