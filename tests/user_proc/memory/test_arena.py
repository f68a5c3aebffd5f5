"""Arena buffers: addresses, alignment, growth, release, views that outlive their buffer."""

import ctypes
import gc
import itertools
import mmap
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.user_proc.interrupting import interrupted_at
from user_proc.errors import ConnectionClosed, ForkedProcess
from user_proc.memory.arena import ALIGNMENT, FIRST_SEGMENT, LARGEST_SHARED_SEGMENT, ArenaAllocator

PAGE = mmap.PAGESIZE
MIB = 1 << 20


@pytest.fixture
def allocator(fake_kernel: Any) -> ArenaAllocator:
    return ArenaAllocator(fake_kernel)


def segments(allocator: ArenaAllocator) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = allocator.inspect()["segments"]
    return found


def test_a_buffer_is_shared_memory_at_a_real_address(allocator: ArenaAllocator, fake_kernel: Any):
    buffer = allocator.allocate(100)
    assert (buffer.length, len(buffer), len(buffer.view)) == (100, 100, 100)
    buffer.view[:5] = b"hello"
    assert ctypes.string_at(buffer.address, 5) == b"hello"
    assert fake_kernel.holds(buffer.address, 100)
    assert buffer.view.format == "B"
    assert not buffer.view.readonly


@pytest.mark.parametrize("length", [1, 63, 64, 65, 4095])
def test_buffers_begin_on_cache_lines(allocator: ArenaAllocator, length: int):
    buffers = [allocator.allocate(length) for _ in range(3)]
    assert all(buffer.address % ALIGNMENT == 0 for buffer in buffers)
    spans = sorted((buffer.address, buffer.address + length) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_buffer_begins_on_a_page_when_asked(allocator: ArenaAllocator):
    before = allocator.allocate(1)
    buffer = allocator.allocate(10, page_aligned=True)
    assert buffer.address % PAGE == 0
    after = allocator.allocate(1)
    assert before.address < after.address < buffer.address  # the gap before the page is used


def test_segments_begin_at_2_mib_and_double(allocator: ArenaAllocator, fake_kernel: Any):
    kept = [allocator.allocate(MIB) for _ in range(2 + 4 + 8)]
    assert list(fake_kernel.granted.values()) == [FIRST_SEGMENT, 4 * MIB, 8 * MIB]
    assert [segment["free"] for segment in segments(allocator)] == [0, 0, 0]
    assert len({buffer.address for buffer in kept}) == 14


def test_doubling_ends_somewhere(allocator: ArenaAllocator):
    lengths = []
    kept = []
    while allocator.inspect()["next_segment"] not in lengths:
        lengths.append(allocator.inspect()["next_segment"])
        kept += [allocator.allocate(lengths[-1] // 2) for _ in range(2)]
    assert lengths == [FIRST_SEGMENT << step for step in range(6)]
    assert lengths[-1] == LARGEST_SHARED_SEGMENT


def test_what_is_larger_than_half_a_segment_gets_its_own(
    allocator: ArenaAllocator, fake_kernel: Any, count_mappings: Callable[[], int]
):
    before = count_mappings()
    buffer = allocator.allocate(MIB + 1)
    assert list(fake_kernel.granted.values()) == [MIB + PAGE]
    assert segments(allocator)[0]["shared"] is False
    small = allocator.allocate(1)
    assert len(fake_kernel.granted) == 2
    buffer.release()
    assert list(fake_kernel.granted.values()) == [FIRST_SEGMENT]
    assert count_mappings() == before + 1
    small.release()


def test_released_memory_is_used_again_and_neighbours_are_joined(
    allocator: ArenaAllocator, fake_kernel: Any
):
    buffers = [allocator.allocate(512 * 1024) for _ in range(4)]
    addresses = [buffer.address for buffer in buffers]
    for index in (0, 2, 1):
        buffers[index].release()
    large = allocator.allocate(MIB)
    assert large.address == addresses[0]
    assert allocator.allocate(512 * 1024).address == addresses[2]
    assert len(fake_kernel.granted) == 1


def test_one_empty_segment_is_kept_and_further_ones_are_given_back(
    allocator: ArenaAllocator, fake_kernel: Any
):
    buffers = [allocator.allocate(MIB) for _ in range(6)]
    assert len(fake_kernel.granted) == 2
    for buffer in buffers:
        buffer.release()
    assert len(fake_kernel.granted) == 1
    assert len(fake_kernel.freed) == 1
    allocator.allocate(MIB)
    assert len(fake_kernel.granted) == 1


def test_a_released_buffer_says_so(allocator: ArenaAllocator):
    with allocator.allocate(10) as buffer:
        view = buffer.view
        view[0] = 1
    buffer.release()
    with pytest.raises(ValueError, match="released"):
        _ = buffer.view
    with pytest.raises(ValueError, match="released"):
        view[0] = 2
    assert "released" in repr(buffer)


def test_a_range_is_not_used_again_while_a_slice_of_it_lives(allocator: ArenaAllocator):
    buffer = allocator.allocate(100)
    address = buffer.address
    part = buffer.view[10:20]
    buffer.release()
    part[:] = b"0123456789"
    other = allocator.allocate(100)
    assert other.address != address
    assert bytes(part) == b"0123456789"
    del part
    assert allocator.allocate(100).address == address


def test_a_range_is_not_used_again_while_something_looks_through_its_view(
    allocator: ArenaAllocator,
):
    buffer = allocator.allocate(64)
    address = buffer.address
    array = (ctypes.c_uint32 * 16).from_buffer(buffer.view)
    buffer.release()
    array[3] = 7
    assert allocator.allocate(64).address != address
    assert array[3] == 7
    del array
    gc.collect()
    assert allocator.allocate(64).address == address


def test_a_forgotten_buffer_is_given_back(allocator: ArenaAllocator):
    buffer = allocator.allocate(64)
    address = buffer.address
    del buffer
    assert allocator.allocate(64).address == address


def test_a_slice_of_a_segment_of_its_own_keeps_it_mapped(
    allocator: ArenaAllocator, fake_kernel: Any, count_mappings: Callable[[], int]
):
    before = count_mappings()
    buffer = allocator.allocate(2 * MIB)
    part = buffer.view[-4:]
    buffer.release()
    part[:] = b"safe"
    assert count_mappings() == before + 1
    del part
    allocator.collect()
    assert count_mappings() == before
    assert fake_kernel.granted == {}


@pytest.mark.parametrize("length", [0, -1])
def test_a_buffer_has_at_least_one_byte(allocator: ArenaAllocator, length: int):
    with pytest.raises(ValueError, match="at least one byte"):
        allocator.allocate(length)


def test_a_refusal_of_the_kernel_is_the_callers_and_changes_nothing(
    allocator: ArenaAllocator, fake_kernel: Any, count_mappings: Callable[[], int]
):
    fake_kernel.limit = FIRST_SEGMENT
    kept = allocator.allocate(MIB)
    with pytest.raises(PermissionError, match="quota exceeded"):
        allocator.allocate(4 * MIB)
    kept.release()
    assert allocator.allocate(2 * MIB).length == 2 * MIB
    fake_kernel.limit = 1 << 30
    fake_kernel.refuse_place = True
    gc.collect()  # what former tests left
    before, descriptors = count_mappings(), os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError, match="not there"):
        allocator.allocate(8 * MIB)
    gc.collect()
    assert (count_mappings(), os.listdir("/proc/self/fd")) == (before, descriptors)
    assert list(fake_kernel.granted.values()) == [FIRST_SEGMENT]


def test_a_segment_shorter_than_granted_is_refused(
    allocator: ArenaAllocator, fake_kernel: Any, monkeypatch: pytest.MonkeyPatch
):
    allocate = fake_kernel.allocate_arena
    monkeypatch.setattr(
        fake_kernel, "allocate_arena", lambda length: allocate(PAGE if length > PAGE else length)
    )
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="cannot map"):
        allocator.allocate(100)
    assert os.listdir("/proc/self/fd") == descriptors
    assert fake_kernel.granted == {}


def test_after_close_nothing_is_allocated_and_buffers_stay_readable(
    allocator: ArenaAllocator, fake_kernel: Any
):
    buffer = allocator.allocate(100)
    buffer.view[0] = 9
    forgotten = allocator.allocate(100)
    allocator.close()
    allocator.close()
    with pytest.raises(ConnectionClosed):
        allocator.allocate(1)
    assert buffer.view[0] == 9
    buffer.release()
    del forgotten
    allocator.collect()
    assert fake_kernel.freed == []  # the end of the session frees the rest


def test_a_finalizer_in_the_midst_of_an_allocation_does_no_harm(
    allocator: ArenaAllocator, fake_kernel: Any, monkeypatch: pytest.MonkeyPatch
):
    """A release may run wherever the collector does: here while the lock is held."""
    victim = [allocator.allocate(64)]
    allocate = fake_kernel.allocate_arena

    def release_inside(length: int) -> tuple[int, int]:
        victim.pop().release()
        answer: tuple[int, int] = allocate(length)
        return answer

    monkeypatch.setattr(fake_kernel, "allocate_arena", release_inside)
    allocator.allocate(2 * MIB)
    monkeypatch.undo()
    allocator.collect()
    assert segments(allocator)[0]["free"] == FIRST_SEGMENT


def test_an_allocation_broken_off_anywhere_loses_nothing(fake_kernel: Any):
    """Neither the segment it had made, nor its part of one that is there."""
    files = ("user_proc/memory/arena.py", "user_proc/memory/free_ranges.py")
    gc.collect()
    descriptors = os.listdir("/proc/self/fd")
    for length in (100, 2 * MIB):
        step = 0
        while True:
            allocator = ArenaAllocator(fake_kernel)
            if not interrupted_at(step, partial(allocator.allocate, length), *files):
                break
            step += 1
            gc.collect()
            allocator.collect()
            left = segments(allocator)
            assert {one["arena"] for one in left} == set(fake_kernel.granted)
            assert all(one["free"] == one["length"] for one in left)
            allocator.close()
            fake_kernel.granted.clear()
            del allocator
            gc.collect()
            assert os.listdir("/proc/self/fd") == descriptors
        assert step > 10
        fake_kernel.granted.clear()


def test_threads_share_one_allocator(allocator: ArenaAllocator, fake_kernel: Any):
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(mark: int) -> None:
        try:
            start.wait(20)
            for step in range(150):
                with allocator.allocate(1 + (step * 997) % 9000) as buffer:
                    buffer.view[:] = bytes([mark]) * buffer.length
                    other = allocator.allocate(64)
                    assert set(buffer.view) == {mark}
                    other.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert errors == []
    allocator.collect()
    assert [segment["free"] for segment in segments(allocator)] == [FIRST_SEGMENT]


def test_a_forked_child_shares_buffers_but_neither_allocates_nor_releases(
    allocator: ArenaAllocator, fake_kernel: Any, monkeypatch: pytest.MonkeyPatch
):
    buffer = allocator.allocate(100)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(ForkedProcess, match="belongs to the parent"):
        allocator.allocate(1)
    buffer.view[:2] = b"ok"
    buffer.release()
    allocator.collect()
    allocator.close()
    monkeypatch.undo()
    assert segments(allocator)[0]["free"] < FIRST_SEGMENT
    allocator.collect()
    assert segments(allocator)[0]["free"] == FIRST_SEGMENT
    assert fake_kernel.freed == []
