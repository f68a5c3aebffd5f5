"""The memory of the device itself: so many pages, which programs take parts of.

It is kernel memory set aside for the HCA, in single pages that come zeroed, and reached by the
HCA as all memory is: by bus address. No process maps it.

Rules: PASSIVE_LEVEL.
Spec: ibv_alloc_dm(3).
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.refusal import VerbRefused
from shared.segment import round_to_pages
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import BufferAllocator, QueueBuffer

#: What query_device_ex calls max_dm_size. A part takes whole pages.
DEVICE_MEMORY: Final = 256 << 10


class DmPool:
    """The device memory of one life of the HCA."""

    __slots__ = ("_buffers", "used")

    def __init__(self, buffers: "BufferAllocator") -> None:
        self._buffers = buffers
        self.used = 0

    def take(self, length: int) -> "QueueBuffer":
        """Give a zeroed part; EINVAL for no bytes or more than there are, ENOMEM when taken."""
        if not length:
            raise VerbRefused(errno.EINVAL, VerbReason.LENGTH_ZERO)
        if length > DEVICE_MEMORY:
            raise VerbRefused(errno.EINVAL, VerbReason.BEYOND_DEVICE_MEMORY, length, DEVICE_MEMORY)
        rounded = round_to_pages(length)
        if rounded > DEVICE_MEMORY - self.used:
            left = DEVICE_MEMORY - self.used
            raise VerbRefused(errno.ENOMEM, VerbReason.DEVICE_MEMORY_TAKEN, length, left)
        self.used += rounded  # before the wait, so that nobody takes it twice
        try:
            return self._buffers.allocate_pages(rounded)
        except BaseException:
            self.used -= rounded
            raise

    def give_back(self, buffer: "QueueBuffer", *, lost: bool) -> None:
        """Take a part back; `lost` if the HCA may still use it: then it stays taken."""
        if lost:
            self._buffers.lose(buffer)
            return
        self.used -= buffer.length
        self._buffers.free(buffer)

    def inspect(self) -> dict[str, Any]:
        """Return how much there is and how much is taken."""
        return {"bytes": DEVICE_MEMORY, "used": self.used}
