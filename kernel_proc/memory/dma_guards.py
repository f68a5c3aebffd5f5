"""DMA verification: what lies around memory a device uses, and pages it is double-buffered in.

Before and after it lies the tag `DmaVrfy0`, around that a padding of bytes 0x0F. A page to double-
buffer in has a page of guard before and one after it; the first 64 of an adapter's pages that are
mapped at a time get one, the rest are left alone, so it is the first buffers of a driver that
break.

Rules: <= DISPATCH_LEVEL; memory is taken at <= APC_LEVEL, or is what the kernel holds already.
Spec: WDK, DMA Verification; Bug Check 0xE6, 0x0F; docs/dma.md.
"""

from typing import Final

from kernel_proc.memory.dma_checks import OVERRUN, DmaRules
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from shared.segment import PAGE_SIZE

VERIFIED_MAP_REGISTERS: Final = 64
TAG: Final = b"DmaVrfy0"
PADDING: Final = 0x0F

# OVERRUN, second parameter.
_TAG_BEFORE: Final = 1
_TAG_AFTER: Final = 2
_FREE_REGISTER: Final = 3
_PADDING_BEFORE: Final = 4
_PADDING_AFTER: Final = 5

_PARTS: Final = {
    _TAG_BEFORE: "the tag before it",
    _TAG_AFTER: "the tag after it",
    _FREE_REGISTER: "the page while it was free",
    _PADDING_BEFORE: "the padding before it",
    _PADDING_AFTER: "the padding after it",
}

_PADDED_PAGES: Final = bytes([PADDING]) * (3 * PAGE_SIZE)


def guard(view: memoryview, start: int, length: int) -> None:
    """Put tags and padding around `length` bytes of a piece of memory, as far as it goes."""
    end = start + length
    before = min(start, len(TAG))
    after = min(len(view) - end, len(TAG))
    view[: start - before] = bytes([PADDING]) * (start - before)
    view[start - before : start] = TAG[len(TAG) - before :]
    view[end : end + after] = TAG[:after]
    view[end + after :] = bytes([PADDING]) * (len(view) - end - after)


def overrun(view: memoryview, start: int, length: int) -> int:
    """Return which guard around the bytes was overwritten, 0 for none."""
    end = start + length
    before = min(start, len(TAG))
    after = min(len(view) - end, len(TAG))
    if view[start - before : start] != TAG[len(TAG) - before :]:
        return _TAG_BEFORE
    if view[end : end + after] != TAG[:after]:
        return _TAG_AFTER
    if view[: start - before] != bytes([PADDING]) * (start - before):
        return _PADDING_BEFORE
    if view[end + after :] != bytes([PADDING]) * (len(view) - end - after):
        return _PADDING_AFTER
    return 0


def report_overrun(rules: DmaRules, broken: int, bus_address: int) -> None:
    """Stop the machine: a guard around what lies there was overwritten."""
    rules.suspect(OVERRUN, f"DMA at {bus_address:#x} overwrote {_PARTS[broken]}", broken)


class GuardedPage:
    """A page to double-buffer in, between two of guard."""

    __slots__ = ("_begin", "_length", "_pages", "_pool", "bus_address")

    def __init__(self, pool: "GuardedPages", pages: KernelBuffer) -> None:
        self._pool = pool
        self._pages = pages
        self.bus_address = pages.bus_address + PAGE_SIZE
        self._begin = 0
        self._length = 0

    def begin(self, start: int, length: int) -> None:
        """Guard the bytes of the page that a mapping takes."""
        self._begin, self._length = PAGE_SIZE + start, length
        guard(self._pages.view, self._begin, length)

    def put(self, start: int, data: bytes | memoryview) -> None:
        """Lay bytes into the page for the device."""
        at = PAGE_SIZE + start
        self._pages.view[at : at + len(data)] = data

    def take(self, start: int, length: int) -> memoryview:
        """Return what is in the page now."""
        at = PAGE_SIZE + start
        return self._pages.view[at : at + length]

    def close(self) -> None:
        """End the mapping: the guards must be as they were."""
        broken = overrun(self._pages.view, self._begin, self._length)
        if broken:
            report_overrun(self._pool.rules, broken, self.bus_address)
        self._pages.view[:] = _PADDED_PAGES
        self._pool.give_back(self)

    def require_untouched(self) -> None:
        """Stop the machine if somebody wrote into it while it was free."""
        if self._pages.view != _PADDED_PAGES:
            report_overrun(self._pool.rules, _FREE_REGISTER, self.bus_address)

    def free(self, memory: KernelMemory) -> None:
        """Give the memory back."""
        memory.free(self._pages)


class GuardedPages:
    """The pages that one adapter double-buffers in; `frames` are those its device reaches."""

    def __init__(self, rules: DmaRules, memory: KernelMemory, frames: range | None) -> None:
        self.rules = rules
        self._memory = memory
        self._frames = frames
        self._free: list[GuardedPage] = []
        self._reserved = False

    @property
    def left(self) -> int:
        """How many can be taken."""
        return len(self._free)

    def reserve(self, may_wait: bool) -> None:
        """Take the memory, as much of it as there is."""
        if self._reserved:
            return
        self._reserved = True
        for _ in range(VERIFIED_MAP_REGISTERS):
            pages = self._memory.allocate_contiguous(
                3 * PAGE_SIZE, frames=self._frames, may_wait=may_wait
            )
            if pages is None:
                break
            pages.view[:] = _PADDED_PAGES
            self._free.append(GuardedPage(self, pages))

    def take(self, start: int, length: int) -> GuardedPage | None:
        """Give a page for `length` bytes from `start` of it; None: all are in use."""
        if not self._free:
            return None
        page = self._free.pop(0)
        page.require_untouched()
        page.begin(start, length)
        return page

    def give_back(self, page: GuardedPage) -> None:
        """Take a page back."""
        self._free.append(page)

    def close(self) -> None:
        """Give the memory back; nothing is mapped."""
        for page in self._free:
            page.free(self._memory)
        self._free = []
        self._reserved = False
