"""Physical addresses: page frames by the numbers a driver, or a device of 32 bits, has for them.

The physical address of a byte is its frame's number times the page size, and where it lies in the
page. Devices on the bus name memory by segments; segment 0, which holds none, is the window on
physical addresses, so that an address below 4 GiB is one a device of 32 bits can say.

Shared memory (arenas, kernel memory) has physical addresses. Pool is on no bus and has none; nor
has private memory, which a device reaches by its segment alone.

Rules: any IRQL, unless a routine says another.
Spec: WDK, MmGetPhysicalAddress, MmAllocateContiguousMemorySpecifyCache,
MmFreeContiguousMemorySpecifyCache; docs/dma.md.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus, BusSegment
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from kernel_proc.memory.page_frames import FrameRun
from kernel_proc.memory.pool import PoolBlock
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.segment import PAGE_SIZE

FOUR_GIB: Final = 1 << 32
HIGHEST_PHYSICAL_ADDRESS: Final = (1 << SEGMENT_SHIFT) - 1

_FREED_TOO_HIGH: Final = 0x2001A  # verifier 0xC4: rule IrqlMmDispatch
_OFFSET_MASK: Final = (1 << SEGMENT_SHIFT) - 1


class _FramesOf:
    """The frames of one segment, to be found by page and by number."""

    __slots__ = ("_by_number", "_ends", "_runs", "segment")

    def __init__(self, segment: BusSegment) -> None:
        self.segment = segment
        self._runs: Sequence[FrameRun] = segment.runs
        self._ends = list(accumulate(run.count for run in segment.runs))
        self._by_number = sorted(
            (run.start, end - run.count, run.count)
            for run, end in zip(segment.runs, self._ends, strict=True)
        )

    def frame(self, page: int) -> int:
        """Return the frame of a page of the segment."""
        index = bisect_right(self._ends, page)
        run = self._runs[index]
        return run.start + page - (self._ends[index] - run.count)

    def page(self, frame: int) -> int | None:
        """Return the page that has this frame, if one has."""
        index = bisect_right(self._by_number, frame, key=lambda run: run[0]) - 1
        if index < 0:
            return None
        start, page, count = self._by_number[index]
        return page + frame - start if frame < start + count else None


class PhysicalMemory:
    """The memory on one bus by physical addresses."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[int, _FramesOf] = {}

    def physical_address(self, bus_address: int) -> int | None:
        """Return the physical address of what lies at a bus address; None if it has none."""
        number, offset = bus_address >> SEGMENT_SHIFT, bus_address & _OFFSET_MASK
        frames = self._frames_of(number)
        if frames is None or offset >= frames.segment.length:
            return None
        return frames.frame(offset // PAGE_SIZE) * PAGE_SIZE + offset % PAGE_SIZE

    def bus_address(self, physical: int) -> int | None:
        """Return the bus address of the memory that lies at a physical address; None: none does."""
        frame, offset = divmod(physical, PAGE_SIZE)
        for number, segment in self._bus.segments.items():
            frames = self._frames_of(number)
            page = frames.page(frame) if frames is not None else None
            if page is not None:
                return segment.address(page * PAGE_SIZE + offset)
        return None

    def _frames_of(self, number: int) -> _FramesOf | None:
        segment = self._bus.segments.get(number)
        known = self._known.get(number)
        if segment is None or segment.view is None:
            self._known.pop(number, None)
            return None
        if known is None or known.segment is not segment:
            known = self._known[number] = _FramesOf(segment)
        return known


def get_physical_address(
    processor: Processor, memory: PhysicalMemory, at: int | KernelBuffer | PoolBlock
) -> int:
    """Return the physical address of kernel memory or of an address of the current process.

    0 for what has none (WDK: MmGetPhysicalAddress). That a user page stays there only a lock says.
    """
    if isinstance(at, PoolBlock):
        return 0
    if isinstance(at, KernelBuffer):
        return memory.physical_address(at.bus_address) or 0
    thread = processor.current_thread
    process = thread.process if thread is not None else None
    space = process.address_space if process is not None else None
    arena = space.arena_at(at, 1) if isinstance(space, AddressSpace) else None
    if arena is None or arena.segment is None:
        return 0
    return memory.physical_address(arena.segment.address(at - arena.base)) or 0


def allocate_contiguous_memory(
    processor: Processor,
    memory: KernelMemory,
    length: int,
    lowest: int = 0,
    highest: int = HIGHEST_PHYSICAL_ADDRESS,
    alignment: int = PAGE_SIZE,
) -> KernelBuffer | None:
    """Give whole pages in a row between two physical addresses; None if there are none.

    At DISPATCH_LEVEL only what the kernel holds already is there to be given: nothing can wait
    for more (WDK: MmAllocateContiguousMemorySpecifyCache; memory here is always cached).
    """
    processor.require_irql(DISPATCH_LEVEL, "MmAllocateContiguousMemorySpecifyCache")
    frames = range(-(-lowest // PAGE_SIZE), (highest + 1) // PAGE_SIZE)
    pages = -(-length // PAGE_SIZE)
    return memory.allocate_contiguous(
        pages * PAGE_SIZE, alignment, frames=frames, may_wait=processor.irql <= APC_LEVEL
    )


def free_contiguous_memory(
    processor: Processor, memory: KernelMemory, buffer: KernelBuffer
) -> None:
    """Take it back (WDK: MmFreeContiguousMemorySpecifyCache); ValueError the second time."""
    processor.require_irql(DISPATCH_LEVEL, "MmFreeContiguousMemorySpecifyCache", _FREED_TOO_HIGH)
    memory.free(buffer)
