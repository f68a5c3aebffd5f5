"""Physical memory of which a part is in use by others, page by page, at random places.

What is free is as much as was asked for, however much is in use: so an allocation that fails does
so because what is free is not in a row.

Rules: before the machine allocates what is to lie in such memory.
Spec: WDK, MmAllocateContiguousMemory (Remarks); docs/allocation.md.
"""

from random import Random
from typing import Final

from kernel_proc.hca_host import HcaHost
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator
from shared.segment import PAGE_SIZE

_SEED: Final = 20051117


def fragment(hca: HcaHost, percent: int, free_bytes: int) -> None:
    """Leave `free_bytes` of free frames, `percent` of the frames among them being in use.

    What kernel memory holds already is taken up by others as well.
    """
    memory = hca.memory
    memory.allocate_pages((memory.held - memory.used) // PAGE_SIZE)
    memory.limit = memory.held + free_bytes  # so that no segment wants more frames than are free
    use_frames(hca.bus.frames, percent, free_bytes // PAGE_SIZE)


def use_frames(frames: PageFrameAllocator, percent: int, free: int) -> None:
    """Use every frame that is free, and give so many back, where chance has them lie."""
    if not 0 <= percent < 100:
        raise ValueError(f"{percent} percent of the frames cannot be in use beside free ones")
    taken = frames.allocate(frames.total - frames.used)
    assert taken is not None
    at, random = taken[-1].start, Random(_SEED)
    given_back = []
    while free:
        count = min(free, _until(random, percent / 100, free))
        given_back.append(FrameRun(at, count))
        free -= count
        at += count + _until(random, 1 - percent / 100, 1 << 20)
    frames.free(given_back)


def _until(random: Random, chance: float, most: int) -> int:
    """Return how many trials it takes until one of this chance comes out, at most so many."""
    if not chance:
        return most
    count = 1
    while count < most and random.random() >= chance:
        count += 1
    return count
