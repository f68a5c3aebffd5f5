"""Memory of kernel clients: regions the driver makes, and what a CQ is moved to.

Rules: PASSIVE_LEVEL.
Spec: docs/kernel-verbs.md.
"""

from typing import TYPE_CHECKING

from kernel_proc.driver import cq_verbs
from kernel_proc.driver.kernel_cq_ring import KernelCqRing
from kernel_proc.driver.mr_verbs import Mr
from kernel_proc.driver.queue_resource import KernelMemory, MemoryNeed

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.pinned_memory import Region


class KernelMr(Mr):
    """A region of memory that the driver made for a kernel client."""

    __slots__ = ("buffer",)

    buffer: "QueueBuffer"

    def destroy(self, driver: "HcaDriver") -> None:
        """Take the key back, then free the memory."""
        super().destroy(driver)
        driver.buffers.free(self.buffer)

    def lose(self, driver: "HcaDriver") -> None:
        """Keep the memory from others until the HCA has stopped."""
        driver.buffers.lose(self.buffer)


class MovedMemory(KernelMemory):
    """Memory a CQ is moved to: its ring looks there as soon as the HCA could have moved it."""

    __slots__ = ("_entries", "_ring")

    def __init__(self, ring: KernelCqRing, cqe: int) -> None:
        super().__init__()
        self._ring = ring
        self._entries = cq_verbs.entries_of(cqe)

    def register(self, driver: "HcaDriver", context: "Context", need: MemoryNeed) -> "Region":
        """Allocate and register, and have it looked at."""
        region = super().register(driver, context, need)
        self._ring.expect(self, self._entries)
        return region
