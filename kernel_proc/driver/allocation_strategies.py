"""Five ways in which a driver can get memory that it shares with its HCA.

| name | what is asked for | level |
|---|---|---|
| `direct` | one common buffer up to 16 KiB, a common buffer for each page above | PASSIVE |
| `common-buffer` | one common buffer, whatever the length | PASSIVE |
| `smaller` | one common buffer, or halves of what could not be had, down to pages | PASSIVE |
| `pages` | a common buffer for each page | PASSIVE |
| `pool` | nonpaged pool, an MDL of it, and its scatter/gather list | <= APC |

The first four end with bug check 0x0A above PASSIVE_LEVEL, where AllocateCommonBuffer stops the
machine.

Rules: the levels above, for giving back too. Memory comes zeroed, in whole pages.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); Linux and WinOFED
mthca_allocator.c, hw/mthca/kernel/mt_memory.c; docs/allocation.md.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from kernel_proc.memory.mdl import Mdl, allocate_mdl, build_for_nonpaged_pool, free_mdl
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_SUCCESS
from shared.segment import PAGE_SIZE, round_to_pages

if TYPE_CHECKING:
    from kernel_proc.memory.dma_adapter import CommonBuffer, DmaAdapter, ScatterGatherList
    from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
    from kernel_proc.scheduling.processor import Processor

LARGEST_DIRECT: Final = 16 << 10


class Piece(NamedTuple):
    """Memory whose addresses are in a row for the driver, and what it is on the bus."""

    view: memoryview
    runs: list[tuple[int, int]]
    give_back: Callable[[], object]


class Taken(NamedTuple):
    """What one allocation got; `depth` counts how often it had to ask for less at a time."""

    pieces: list[Piece]
    depth: int = 0


class Strategy(Protocol):
    """A way to get memory; nothing longer than `whole_up_to` has to be in one piece."""

    whole_up_to: ClassVar[int]

    def take(self, length: int) -> Taken | None:
        """Get whole pages of memory, or None: there is not so much to be had in this way."""


class CommonBuffers:
    """Common buffers of an adapter, as pieces."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: "DmaAdapter") -> None:
        self._adapter = adapter

    def piece(self, length: int) -> Piece | None:
        """Get one common buffer (AllocateCommonBuffer)."""
        buffer: CommonBuffer | None = self._adapter.allocate_common_buffer(length)
        if buffer is None:
            return None
        return Piece(
            buffer.view,
            [(buffer.bus_address, length)],
            lambda: self._adapter.free_common_buffer(buffer),
        )

    def pages(self, length: int) -> Taken | None:
        """Get a common buffer for each page; all of them or none."""
        pieces = list[Piece]()
        for _ in range(length // PAGE_SIZE):
            piece = self.piece(PAGE_SIZE)
            if piece is None:
                give_back(pieces)
                return None
            pieces.append(piece)
        return Taken(pieces)


class InOnePiece:
    """One common buffer for all."""

    whole_up_to: ClassVar[int] = sys.maxsize
    __slots__ = ("_buffers",)

    def __init__(self, buffers: CommonBuffers) -> None:
        self._buffers = buffers

    def take(self, length: int) -> Taken | None:
        """Get one common buffer or nothing."""
        piece = self._buffers.piece(length)
        return None if piece is None else Taken([piece])


class PageByPage:
    """A common buffer for each page."""

    whole_up_to: ClassVar[int] = PAGE_SIZE
    __slots__ = ("_buffers",)

    def __init__(self, buffers: CommonBuffers) -> None:
        self._buffers = buffers

    def take(self, length: int) -> Taken | None:
        """Get all pages or nothing."""
        return self._buffers.pages(length)


class DirectOrPages:
    """What the hardware's drivers do: in one piece if it is short, page by page if not."""

    whole_up_to: ClassVar[int] = LARGEST_DIRECT
    __slots__ = ("_in_one_piece", "_page_by_page")

    def __init__(self, buffers: CommonBuffers) -> None:
        self._in_one_piece = InOnePiece(buffers)
        self._page_by_page = PageByPage(buffers)

    def take(self, length: int) -> Taken | None:
        """Get it the way its length decides; there is no fallback from one to the other."""
        if length <= LARGEST_DIRECT:
            return self._in_one_piece.take(length)
        return self._page_by_page.take(length)


class OneOrSmaller:
    """One common buffer; what cannot be had is asked for in halves, in the end page by page."""

    whole_up_to: ClassVar[int] = PAGE_SIZE
    __slots__ = ("_buffers",)

    def __init__(self, buffers: CommonBuffers) -> None:
        self._buffers = buffers

    def take(self, length: int) -> Taken | None:
        """Get as few pieces as halving finds, or nothing."""
        pieces = list[Piece]()
        at_once, left, depth = length, length, 0
        while left:
            at_once = min(at_once, left)
            piece = self._buffers.piece(at_once)
            if piece is not None:
                pieces.append(piece)
                left -= at_once
            elif at_once == PAGE_SIZE:
                give_back(pieces)
                return None
            else:
                at_once = round_to_pages(at_once // 2)
                depth += 1
        return Taken(pieces, depth)


class PoolAndMdl:
    """Nonpaged pool, described by an MDL, whose scatter/gather list is held as long as it is used.

    Pool is in a row for the driver alone. Under DMA verification the list names other memory, so
    what driver and HCA share breaks; it is meant to.
    """

    whole_up_to: ClassVar[int] = PAGE_SIZE
    __slots__ = ("_adapter", "_memory", "_processor")

    def __init__(
        self, processor: "Processor", memory: "KernelMemory", adapter: "DmaAdapter"
    ) -> None:
        self._processor = processor
        self._memory = memory
        self._adapter = adapter

    def take(self, length: int) -> Taken | None:
        """Get a block of pool, its MDL and its list, or nothing."""
        self._processor.require_irql(DISPATCH_LEVEL, "ExAllocatePoolWithTag")
        block = self._memory.allocate_scattered(length)
        if block is None:
            return None
        mdl = allocate_mdl(self._processor, block, length)
        if mdl is None:
            self._memory.free(block)
            return None
        build_for_nonpaged_pool(mdl)
        sg_list = self._map(mdl)
        if sg_list is None:
            self._let_go(mdl, block)
            return None

        def undo() -> None:
            self._unmap(sg_list)
            self._let_go(mdl, block)

        return Taken([Piece(block.view, list(sg_list.elements), undo)])

    def _map(self, mdl: Mdl) -> "ScatterGatherList | None":
        processor = self._processor
        found: list[ScatterGatherList] = []
        listed = Event(processor, notification=True)

        def take_list(sg_list: "ScatterGatherList") -> None:
            found.append(sg_list)
            listed.set()

        old = processor.raise_irql(DISPATCH_LEVEL)
        status = self._adapter.get_scatter_gather_list(mdl, False, take_list)
        processor.lower_irql(old)
        if status != STATUS_SUCCESS:
            return None
        listed.wait()  # it may come later, when map registers are given back
        return found[0]

    def _unmap(self, sg_list: "ScatterGatherList") -> None:
        old = self._processor.raise_irql(DISPATCH_LEVEL)
        self._adapter.put_scatter_gather_list(sg_list)
        self._processor.lower_irql(old)

    def _let_go(self, mdl: Mdl, block: "KernelBuffer") -> None:
        free_mdl(mdl)
        self._memory.free(block)


class KernelPages:
    """Single pages of kernel memory, no common buffers: what event queues lie in."""

    whole_up_to: ClassVar[int] = PAGE_SIZE
    __slots__ = ("_memory",)

    def __init__(self, memory: "KernelMemory") -> None:
        self._memory = memory

    def take(self, length: int) -> Taken | None:
        """Get all pages or nothing (MmAllocatePagesForMdl)."""
        pages = self._memory.allocate_pages(length // PAGE_SIZE)
        if pages is None:
            return None
        free = self._memory.free
        return Taken(
            [
                Piece(page.view, [(page.bus_address, PAGE_SIZE)], partial(free, page))
                for page in pages
            ]
        )


def strategies(
    processor: "Processor", memory: "KernelMemory", adapter: "DmaAdapter"
) -> Mapping[str, Strategy]:
    """Return every strategy by the name the setting `allocation` gives it."""
    buffers = CommonBuffers(adapter)
    return {
        "direct": DirectOrPages(buffers),
        "common-buffer": InOnePiece(buffers),
        "smaller": OneOrSmaller(buffers),
        "pages": PageByPage(buffers),
        "pool": PoolAndMdl(processor, memory, adapter),
    }


def give_back(pieces: list[Piece]) -> None:
    """Give pieces back, the last first."""
    while pieces:
        pieces.pop().give_back()
