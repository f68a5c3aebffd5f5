"""Memory for the kernel's own queues: one block up to 16 KiB, single pages above.

That split is the hardware drivers'; there is no fallback from one to the other.

Rules: PASSIVE_LEVEL.
Spec: Linux and WinOFED mthca_allocator.c (mthca_buf_alloc); docs/memory-registration.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.segment import PAGE_SIZE, round_to_pages
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
    from kernel_proc.scheduling.processor import Processor

LARGEST_CONTIGUOUS: Final = 16 << 10


class QueueBuffer:
    """Kernel memory in blocks; `length` is in whole pages."""

    __slots__ = ("blocks", "length")

    def __init__(self, blocks: "list[KernelBuffer]", length: int) -> None:
        self.blocks = blocks
        self.length = length

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Bus address and length of each block."""
        return [(block.bus_address, block.length) for block in self.blocks]

    def views(self) -> list[memoryview]:
        """Return the memory, block by block."""
        return [block.view for block in self.blocks]


class BufferAllocator:
    """Allocates and frees queue buffers, which come zeroed."""

    __slots__ = ("_live", "_lost", "_memory", "_processor")

    def __init__(self, processor: "Processor", memory: "KernelMemory") -> None:
        self._processor = processor
        self._memory = memory
        self._live: dict[QueueBuffer, None] = {}
        self._lost: list[QueueBuffer] = []

    def allocate(self, length: int) -> QueueBuffer:
        """Return a zeroed buffer of at least `length` bytes, or refuse with ENOMEM."""
        self._processor.require_irql(PASSIVE_LEVEL, "AllocateCommonBuffer")
        rounded = round_to_pages(max(length, 1))
        if rounded <= LARGEST_CONTIGUOUS:
            block = self._memory.allocate_contiguous(rounded, PAGE_SIZE)
            blocks = [block] if block is not None else []
        else:
            return self.allocate_pages(rounded)
        return self._keep(blocks, rounded)

    def allocate_pages(self, length: int) -> QueueBuffer:
        """Return a zeroed buffer of single pages: what event queues lie in, whatever their size."""
        rounded = round_to_pages(length)
        return self._keep(self._memory.allocate_pages(rounded // PAGE_SIZE) or [], rounded)

    def _keep(self, blocks: "list[KernelBuffer]", rounded: int) -> QueueBuffer:
        if not blocks:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, rounded)
        buffer = QueueBuffer(blocks, rounded)
        self._live[buffer] = None
        return buffer

    def free(self, buffer: QueueBuffer) -> None:
        """Give a buffer back that the HCA uses no more."""
        del self._live[buffer]
        for block in buffer.blocks:
            self._memory.free(block)

    def lose(self, buffer: QueueBuffer) -> None:
        """Keep a buffer that the HCA may still use, until it has stopped (`free_lost`)."""
        self._lost.append(buffer)

    def free_lost(self) -> None:
        """Give back what was lost; the HCA has stopped."""
        while self._lost:
            self.free(self._lost.pop())

    def inspect(self) -> dict[str, Any]:
        """Return how many there are and how large they are together."""
        return {
            "buffers": len(self._live),
            "bytes": sum(buffer.length for buffer in self._live),
        }
