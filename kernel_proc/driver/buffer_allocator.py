"""Memory for the kernel's own queues and regions, in the way the setting `allocation` names.

Event queues and device memory lie in single pages, whatever the strategy.

Rules: the strategy's level; <= APC_LEVEL for single pages.
Spec: Linux and WinOFED mthca_allocator.c (mthca_buf_alloc); docs/allocation.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.allocation_strategies import (
    KernelPages,
    Piece,
    Strategy,
    Taken,
    give_back,
    strategies,
)
from kernel_proc.driver.refusal import VerbRefused
from shared.segment import PAGE_SIZE, round_to_pages
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.memory.dma_adapter import DmaAdapter
    from kernel_proc.memory.kernel_memory import KernelMemory
    from kernel_proc.scheduling.processor import Processor

DEFAULT_ALLOCATION: Final = "direct"


class QueueBuffer:
    """Kernel memory in pieces; `length` is in whole pages, `asked` what was wanted of them."""

    __slots__ = ("asked", "depth", "length", "pieces")

    def __init__(self, taken: Taken, length: int, asked: int) -> None:
        self.pieces: list[Piece] = taken.pieces
        self.depth = taken.depth
        self.length = length
        self.asked = asked

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Bus address and length of each run."""
        return [run for piece in self.pieces for run in piece.runs]

    def views(self) -> list[memoryview]:
        """Return the memory: in one view if it is in one piece, else page by page."""
        views = [piece.view for piece in self.pieces]
        if len(views) == 1 or all(len(view) == PAGE_SIZE for view in views):
            return views
        return [
            view[at : at + PAGE_SIZE] for view in views for at in range(0, len(view), PAGE_SIZE)
        ]


class BufferAllocator:
    """Allocates and frees buffers, which come zeroed.

    `refused` and `fallbacks` count allocations since the HCA came up: those that got nothing, and
    those that got it in smaller pieces than they first asked for.
    """

    __slots__ = ("_live", "_lost", "_pages", "_strategy", "deepest", "fallbacks", "name", "refused")

    def __init__(
        self,
        processor: "Processor",
        memory: "KernelMemory",
        adapter: "DmaAdapter",
        name: str = DEFAULT_ALLOCATION,
    ) -> None:
        known = strategies(processor, memory, adapter)
        self.name = name
        self._strategy: Strategy = known[name]
        self._pages = KernelPages(memory)
        self._live: dict[QueueBuffer, None] = {}
        self._lost: list[QueueBuffer] = []
        self.refused = 0
        self.fallbacks = 0
        self.deepest = 0

    def allocate(self, length: int) -> QueueBuffer:
        """Return a zeroed buffer of at least `length` bytes, or refuse with ENOMEM."""
        return self._take(self._strategy, max(length, 1))

    def allocate_pages(self, length: int) -> QueueBuffer:
        """Return a zeroed buffer of single pages: what event queues lie in, whatever their size."""
        return self._take(self._pages, length)

    def _take(self, strategy: Strategy, length: int) -> QueueBuffer:
        rounded = round_to_pages(length)
        taken = strategy.take(rounded)
        if taken is None:
            self.refused += 1
            in_one_piece = PAGE_SIZE < rounded <= strategy.whole_up_to
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, int(in_one_piece), rounded)
        if taken.depth:
            self.fallbacks += 1
            self.deepest = max(self.deepest, taken.depth)
        buffer = QueueBuffer(taken, rounded, length)
        self._live[buffer] = None
        return buffer

    def free(self, buffer: QueueBuffer) -> None:
        """Give a buffer back that the HCA uses no more."""
        del self._live[buffer]
        give_back(buffer.pieces)

    def lose(self, buffer: QueueBuffer) -> None:
        """Keep a buffer that the HCA may still use, until it has stopped (`free_lost`)."""
        self._lost.append(buffer)

    def free_lost(self) -> None:
        """Give back what was lost; the HCA has stopped."""
        while self._lost:
            self.free(self._lost.pop())

    def inspect(self) -> dict[str, Any]:
        """Return how many there are, how large they are together, and how they lie."""
        return {
            "strategy": self.name,
            "buffers": len(self._live),
            "bytes": sum(buffer.length for buffer in self._live),
            "lost_to_rounding": sum(buffer.length - buffer.asked for buffer in self._live),
            "pieces": sum(len(buffer.pieces) for buffer in self._live),
            "fallback_depth": max((buffer.depth for buffer in self._live), default=0),
        }

    def inspect_past(self) -> dict[str, int]:
        """Return what was refused, and what was got in smaller pieces, since the HCA came up."""
        return {
            "refused": self.refused,
            "fallbacks": self.fallbacks,
            "deepest_fallback": self.deepest,
        }
