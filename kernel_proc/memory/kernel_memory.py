"""Kernel memory a device may reach: whole pages of kernel memfds, contiguous if they can be.

Segments are made as memory is needed, each as large as all before it within bounds, as each holds
descriptors. What is contiguous lies in one row of frames
and of bus addresses; when frames are fragmented only short pieces can be had so.

Rules: <= APC_LEVEL in a kernel thread when a segment must be made, which waits; else any IRQL. The
memory comes zeroed.
Spec: WDK, MmAllocateContiguousMemory, MmAllocatePagesForMdl; docs/bus-addresses.md.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from kernel_proc.memory.bus import Bus, BusRun, BusSegment
from kernel_proc.memory.extents import Extents
from kernel_proc.memory.page_frames import FrameRun
from kernel_proc.memory.pool import NON_PAGED_POOL
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.segment import PAGE_SIZE, create_segment, map_segment, round_to_pages

SEGMENT_LENGTH: Final = 16 << 20
DEFAULT_KERNEL_MEMORY: Final = 512 << 20

_KERNEL_BASE: Final = 0xFFFF_A000_0000_0000


class KernelBuffer:
    """Pages in a row; `address` is their kernel address, `view` their bytes.

    `pool_type` has them described by an MDL as nonpaged pool is.
    """

    __slots__ = ("_segment", "address", "bus_address", "length", "page", "pool_type", "view")

    def __init__(self, segment: "_Segment", page: int, length: int) -> None:
        offset = page * PAGE_SIZE
        self._segment: _Segment | None = segment
        self.page = page
        self.length = length
        self.address = segment.base + offset
        self.bus_address = segment.on_bus.address(offset)
        self.view = segment.view[offset : offset + length]
        self.pool_type = NON_PAGED_POOL

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<kernel buffer at {self.bus_address:#x}, {self.length} bytes>"

    def bus_runs(self, length: int) -> list[BusRun]:
        """Return its first `length` bytes for the bus: always one run."""
        return [(self.bus_address, length)]

    def _run_by_run(self, length: int) -> list[BusRun]:
        """Return what it is on the bus if its frames need not be in a row."""
        assert self._segment is not None
        return self._segment.on_bus.bus_runs(self.page * PAGE_SIZE, length)

    def retire(self) -> "_Segment":
        """Give up the pages, so that `view` raises ValueError; the second time this does."""
        segment, self._segment = self._segment, None
        if segment is None:
            raise ValueError(f"{self!r} is freed already")
        with contextlib.suppress(BufferError):  # something still looks through this very view
            self.view.release()
        return segment


class ScatteredBuffer(KernelBuffer):
    """The same with addresses in a row alone: its frames lie anywhere, as those of pool do."""

    __slots__ = ()

    def bus_runs(self, length: int) -> list[BusRun]:
        """Return its first `length` bytes for the bus, cut where the frames are not in a row."""
        return self._run_by_run(length)


class _Segment:
    __slots__ = ("base", "descriptor", "extents", "given", "on_bus", "pages", "runs", "view")

    def __init__(
        self,
        base: int,
        view: memoryview,
        descriptor: int,
        runs: Sequence[FrameRun],
        on_bus: BusSegment,
    ) -> None:
        self.base = base
        self.view = view
        self.descriptor = descriptor
        self.runs = runs
        self.on_bus = on_bus
        self.pages = len(view) // PAGE_SIZE
        self.given = 0  # no page from this one on was ever given
        # Pages whose frames are not in a row are kept apart, so that no buffer lies across.
        ends, page = [], 0
        for run in runs:
            page += run.count
            ends.append(page)
        self.extents = Extents(self.pages, frozenset(ends))

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()  # a machine in a process that goes on may just be dropped

    def lies_within(self, frames: range) -> bool:
        """Tell whether all its frames are among these."""
        return all(
            frames.start <= run.start and run.start + run.count <= frames.stop for run in self.runs
        )


class KernelMemory:
    """The allocator; `lane` makes segments, so that the processor does not wait for the system."""

    def __init__(
        self,
        bus: Bus,
        lane: Lane | None = None,
        limit: int = DEFAULT_KERNEL_MEMORY,
        segment_length: int = SEGMENT_LENGTH,
    ) -> None:
        self._bus = bus
        self._lane = lane
        self.limit = limit
        self.held = 0
        self.used = 0
        self._segment_length = round_to_pages(segment_length)
        self._segments: list[_Segment] = []
        self._next_base = _KERNEL_BASE

    def allocate_contiguous(
        self,
        length: int,
        alignment: int = PAGE_SIZE,
        *,
        frames: range | None = None,
        may_wait: bool = True,
    ) -> KernelBuffer | None:
        """Give at least `length` bytes in a row, their bus address aligned; None: there are none.

        Whole pages are taken; `length` of the buffer is what was asked for. With `frames` it comes
        from segments that lie within these; unless it may wait no segment is made.
        """
        if length <= 0 or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"{length} bytes aligned to {alignment} cannot be allocated")
        pages = round_to_pages(length) // PAGE_SIZE
        every = max(1, alignment // PAGE_SIZE)
        largest = self._bus.frames.largest_run
        if largest is not None and pages > largest:
            return None
        buffer = self._take(pages, every, length, frames)
        if buffer is None and may_wait and self._grow(pages):
            buffer = self._take(pages, every, length, frames)
            self._shrink()  # a segment that does not lie where it was wanted
        return buffer

    def allocate_scattered(self, length: int) -> KernelBuffer | None:
        """Give at least `length` bytes whose addresses are in a row, their frames anywhere.

        So large blocks of nonpaged pool lie. None: there are none.
        """
        if length <= 0:
            raise ValueError(f"{length} bytes cannot be allocated")
        pages = round_to_pages(length) // PAGE_SIZE
        buffer = self._take_scattered(pages, length)
        if buffer is None and self._grow(pages):
            buffer = self._take_scattered(pages, length)
        return buffer

    def allocate_pages(
        self, count: int, *, frames: range | None = None, may_wait: bool = True
    ) -> list[KernelBuffer] | None:
        """Give single pages, wherever they lie; all of them or None."""
        pages: list[KernelBuffer] = []
        while len(pages) < count:
            taken = self._take_singles(count - len(pages), frames)
            if not taken:
                one = self.allocate_contiguous(PAGE_SIZE, frames=frames, may_wait=may_wait)
                if one is None:
                    self.free_all(pages)
                    return None
                taken = [one]
            pages += taken
        return pages

    def free(self, buffer: KernelBuffer) -> None:
        """Take a buffer back; nothing may use it any more. ValueError the second time."""
        segment = buffer.retire()
        pages = round_to_pages(buffer.length) // PAGE_SIZE
        segment.extents.give(buffer.page, pages)
        self.used -= pages * PAGE_SIZE
        if segment.extents.free == segment.pages:
            self._shrink()

    def free_all(self, buffers: Sequence[KernelBuffer]) -> None:
        """Take several back."""
        for buffer in buffers:
            self.free(buffer)

    def close(self) -> None:
        """Take every segment off the bus; the machine stops."""
        for segment in list(self._segments):
            self._drop(segment)

    def inspect(self) -> dict[str, Any]:
        """Return limit, what is held of the system, and what of it is used."""
        return {
            "limit": self.limit,
            "held": self.held,
            "used": self.used,
            "segments": len(self._segments),
        }

    def _take(
        self, pages: int, every: int, length: int, frames: range | None
    ) -> KernelBuffer | None:
        for segment in self._segments:
            if segment.extents.free < pages:
                continue
            if frames is not None and not segment.lies_within(frames):
                continue
            page = segment.extents.take(pages, every)
            if page is not None:
                self._clear(segment, page, pages)
                return KernelBuffer(segment, page, length)
        return None

    def _take_singles(self, most: int, frames: range | None) -> list[KernelBuffer]:
        """Take up to `most` pages that are free already; many of them cost little more than one."""
        for segment in self._segments:
            if frames is not None and not segment.lies_within(frames):
                continue
            some = segment.extents.take_some(most)
            if some is not None:
                first, count = some
                self._clear(segment, first, count)
                return [KernelBuffer(segment, first + n, PAGE_SIZE) for n in range(count)]
        return []

    def _take_scattered(self, pages: int, length: int) -> KernelBuffer | None:
        for segment in self._segments:
            if segment.extents.free < pages:
                continue
            page = segment.extents.take_over_borders(pages)
            if page is not None:
                self._clear(segment, page, pages)
                return ScatteredBuffer(segment, page, length)
        return None

    def _clear(self, segment: _Segment, page: int, pages: int) -> None:
        """Count pages as used, and zero those that were given before; the system zeroed all."""
        self.used += pages * PAGE_SIZE
        dirty = min(page + pages, segment.given) - page
        if dirty > 0:
            start = page * PAGE_SIZE
            segment.view[start : start + dirty * PAGE_SIZE] = bytes(dirty * PAGE_SIZE)
        segment.given = max(segment.given, page + pages)

    def _grow(self, pages: int) -> bool:
        """Make another segment; False if the limit, the frames or the system forbid it."""
        left = (self.limit - self.held) & -PAGE_SIZE
        wanted = min(max(self._segment_length, self.held), 8 * self._segment_length)
        length = min(max(wanted, pages * PAGE_SIZE), left)
        if length < pages * PAGE_SIZE:
            return False
        runs = self._bus.frames.allocate(length // PAGE_SIZE)
        if runs is None:
            return False
        self.held += length  # before the wait, so that nobody takes it twice
        segment = self._make(length, runs)
        if segment is None:
            self.held -= length
            self._bus.frames.free(runs)
            return False
        self._segments.append(segment)
        return True

    def _make(self, length: int, runs: list[FrameRun]) -> _Segment | None:
        try:
            if self._lane is not None:
                descriptor = self._lane.run(_create, length, discard=os.close)
            else:
                descriptor = _create(length)
        except (OSError, RaisedStatus):
            return None
        try:
            view = memoryview(map_segment(descriptor, length))
        except OSError:
            os.close(descriptor)
            return None
        on_bus = self._bus.add_shared(view, descriptor, runs, "kernel memory")
        if on_bus is None:
            os.close(descriptor)
            return None
        base = self._next_base
        self._next_base += length + PAGE_SIZE  # a page between them that nothing lies in
        return _Segment(base, view, descriptor, runs, on_bus)

    def _shrink(self) -> None:
        # One empty segment is kept, so that the next buffer does not wait for the system.
        empty = [s for s in self._segments if s.extents.free == s.pages]
        for segment in empty[1:]:
            self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        self._bus.remove(segment.on_bus)
        self._bus.frames.free(segment.runs)
        self.held -= segment.pages * PAGE_SIZE
        with contextlib.suppress(BufferError):  # a buffer's view may outlive it
            segment.view.release()
        segment.close()


def _create(length: int) -> int:
    return create_segment("softhca-kernel-memory", length)
