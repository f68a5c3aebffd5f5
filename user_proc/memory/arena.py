"""Memory shared with the kernel: buffers cut from segments the kernel granted.

A buffer's range is reused when its last view is gone, whoever holds that, so no stale view ever
shows another buffer's bytes.

Rules: any thread. After a fork the segments are shared with the child, which may read and write
them but neither allocates nor releases: they are the parent's session's.
Spec: docs/arenas-and-mdls.md.
"""

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Final, Protocol

from shared.segment import PAGE_SIZE, map_segment, round_to_pages
from user_proc.errors import ConnectionClosed, ForkedProcess
from user_proc.memory.free_ranges import FreeRanges
from user_proc.memory.inherited_mappings import keep_in_children

FIRST_SEGMENT: Final = 2 << 20
LARGEST_SHARED_SEGMENT: Final = 64 << 20
ALIGNMENT: Final = 64


class Lifeline(Protocol):
    """What grants segments: the connection to the kernel. Refusals are its exceptions."""

    @property
    def name(self) -> str:
        """The kernel's name."""

    def allocate_arena(self, length: int) -> tuple[int, int]:
        """Return the id and the descriptor of a new segment of `length` bytes."""

    def arena_mapped(self, arena_id: int, base: int) -> None:
        """Tell the kernel where the segment is mapped here."""

    def free_arena(self, arena_id: int) -> None:
        """Give a segment back; no error if the kernel or the session has ended."""


class ArenaBuffer:
    """A piece of an arena: `address` is real in this process and means the same to the kernel."""

    __slots__ = ("_allocator", "_block", "_view", "address", "length")

    def __init__(self, allocator: "ArenaAllocator", block: "ctypes.Array[Any]") -> None:
        self._allocator = allocator
        self._block: ctypes.Array[Any] | None = block
        self._view = memoryview(block).cast("B")
        self.address = ctypes.addressof(block)
        self.length = len(block)

    @property
    def view(self) -> memoryview:
        """The bytes themselves; ValueError once released."""
        if self._block is None:
            raise ValueError("the arena buffer has been released")
        return self._view

    def release(self) -> None:
        """Give the range back, at once or when the last slice of `view` is gone."""
        if self._block is None:
            return
        self._block = None
        try:
            self._view.release()
        except BufferError:
            # Something else (ctypes, an array) looks through this very view: it stays until then.
            self._view = memoryview(b"")
        self._allocator.collect()

    def __enter__(self) -> "ArenaBuffer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        state = "" if self._block is not None else ", released"
        return f"<arena buffer {self.address:#x}, {self.length} bytes{state}>"


class _Segment:
    """One granted segment, mapped here; `shared` if it is cut up for many buffers."""

    __slots__ = ("arena_id", "base", "free", "mapping", "shared")

    def __init__(self, arena_id: int, mapping: mmap.mmap, base: int, shared: bool) -> None:
        self.base = base
        self.arena_id = arena_id
        self.mapping = mapping
        self.shared = shared
        self.free = FreeRanges(len(mapping))


class _Range:
    """The piece of a segment that a buffer has; given back once, however often it is returned."""

    __slots__ = ("length", "offset", "segment")

    def __init__(self, length: int) -> None:
        self.segment: _Segment | None = None
        self.offset = 0
        self.length = length


class ArenaAllocator:
    """Cut buffers from segments: the first of 2 MiB, each next one twice as large.

    What is larger than half of the next segment gets one of its own.
    """

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._segments: list[_Segment] = []
        self._next_length = FIRST_SEGMENT
        # Ranges whose last view is gone. A finalizer may run anywhere, even in the midst of
        # this class or the lifeline, so it takes no lock; `collect` does the work.
        self._returned: deque[_Range] = deque()
        self._closed = False

    def allocate(self, length: int, *, page_aligned: bool = False) -> ArenaBuffer:
        """Return a buffer of `length` bytes, aligned to 64 bytes or to a page; not zeroed."""
        if length <= 0:
            raise ValueError("an arena buffer needs at least one byte")
        if os.getpid() != self._owner:
            raise ForkedProcess(self._lifeline.name)
        alignment = PAGE_SIZE if page_aligned else ALIGNMENT
        part = _Range(-(-length // ALIGNMENT) * ALIGNMENT)
        with self._lock:
            if self._closed:
                raise ConnectionClosed(self._lifeline.name)
            self._take_back()
            segment, offset = part.segment, part.offset = self._take(part.length, alignment)
            try:
                block = (ctypes.c_ubyte * length).from_buffer(segment.mapping, offset)
                returned = weakref.finalize(block, self._returned.append, part)
            except BaseException:  # a signal handler's; the finalizer may be there already
                self._returned.append(part)
                raise
        returned.atexit = False
        return ArenaBuffer(self, block)

    def view(self, address: int, length: int) -> memoryview | None:
        """Give a range of this process's memory that lies in one segment; None if it does not."""
        if os.getpid() != self._owner:
            raise ForkedProcess(self._lifeline.name)
        with self._lock:
            for segment in self._segments:
                start = address - segment.base
                if start >= 0 and 0 < length <= len(segment.mapping) - start:
                    return memoryview(segment.mapping)[start : start + length]
        return None

    def collect(self) -> None:
        """Reuse what has been given back; segments no longer used go back to the kernel.

        Does not wait for a thread that is at it: the next call finds what this one left.
        """
        if not self._returned or self._closed or os.getpid() != self._owner:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Allocate nothing more; the kernel frees the segments when the session ends.

        Buffers still held keep their mapping; the kernel has emptied it then.
        """
        if os.getpid() != self._owner:
            return
        self._closed = True
        # A thread that is at it, perhaps the one a signal handler closes from, keeps its segments.
        if self._lock.acquire(blocking=False):
            try:
                self._returned.clear()
                self._segments.clear()
            finally:
                self._lock.release()

    def inspect(self) -> dict[str, Any]:
        """Return, for each segment, its length and what of it is free."""
        with self._lock:
            return {
                "next_segment": self._next_length,
                "segments": [
                    {
                        "arena": segment.arena_id,
                        "length": segment.free.length,
                        "free": segment.free.free_bytes,
                        "shared": segment.shared,
                    }
                    for segment in self._segments
                ],
            }

    def _take(self, length: int, alignment: int) -> tuple[_Segment, int]:
        for segment in self._segments:
            if segment.shared:
                offset = segment.free.take(length, alignment)
                if offset is not None:
                    return segment, offset
        if length > self._next_length // 2:
            segment = self._add_segment(round_to_pages(length), shared=False)
        else:
            segment = self._add_segment(self._next_length, shared=True)
            self._next_length = min(2 * self._next_length, LARGEST_SHARED_SEGMENT)
        offset = segment.free.take(length, alignment)
        assert offset is not None
        return segment, offset

    def _add_segment(self, length: int, *, shared: bool) -> _Segment:
        arena_id, descriptor = self._lifeline.allocate_arena(length)
        try:
            try:
                mapping = map_segment(descriptor, length)
                keep_in_children(mapping)  # queues in it will be taken from them
            finally:
                os.close(descriptor)
            base = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
            self._lifeline.arena_mapped(arena_id, base)
            segment = _Segment(arena_id, mapping, base, shared)
            self._segments.append(segment)
        except BaseException:  # also a signal handler's, at any point
            self._segments = [one for one in self._segments if one.arena_id != arena_id]
            self._lifeline.free_arena(arena_id)
            raise
        return segment

    def _take_back(self) -> None:
        while self._returned:
            part = self._returned.popleft()
            segment, part.segment = part.segment, None
            if segment is None:
                continue
            segment.free.give_back(part.offset, part.length)
            if segment.free.is_all_free and self._is_spare(segment):
                self._give_up(segment)

    def _is_spare(self, segment: _Segment) -> bool:
        """One empty shared segment is kept, so that the next buffer costs no call."""
        return not segment.shared or any(
            other.shared and other.free.is_all_free
            for other in self._segments
            if other is not segment
        )

    def _give_up(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        # A view whose end was announced may be dying in another thread; it then unmaps itself.
        with contextlib.suppress(BufferError):
            segment.mapping.close()
        self._lifeline.free_arena(segment.arena_id)
