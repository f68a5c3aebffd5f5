"""The memory of a queue as the HCA sees it: pages it keeps views of while the queue lives.

A queue lies in one region, in shared segments only. Its key has one user more, so it cannot be
taken back; should a segment go all the same, the buffer is cut: no view is left, and the next
access is a BufferGone.
"""

from typing import Final

from kernel_proc.hca.device_memory import BusError, DeviceMemory
from kernel_proc.hca.memory_key import MemoryKey, TranslationFault
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi.registers import SEGMENT_SHIFT

_ONE_PAGE_SHIFT: Final = 62


class BufferGone(Exception):
    """The memory of a queue was taken away."""


class QueueBuffer:
    """Views of a queue's memory, by page; an entry never crosses one."""

    __slots__ = ("_key", "_memory", "_runs", "lead", "mask", "pages", "shift", "single", "words")

    def __init__(
        self,
        memory: DeviceMemory,
        translation: Translation,
        key: MemoryKey,
        address: int,
        length: int,
        alignment: int,
    ) -> None:
        """Map a checked range; raise TranslationFault or BusError if it cannot hold a queue."""
        self._memory: Final = memory
        self._key: Final = key
        runs = translation.runs(key, address, length)
        if any(bus % alignment for bus, _ in runs):
            raise BusError("a queue whose entries are not aligned")
        if len(runs) == 1:
            self.shift = _ONE_PAGE_SHIFT
            self.lead = 0
            self._runs = runs
        else:
            self.shift = key.page_shift
            self.lead = runs[0][0] & ((1 << key.page_shift) - 1)
            self._runs = _split(runs, 1 << key.page_shift)
        self.single = len(runs) == 1
        self.mask = (1 << self.shift) - 1
        # The first view begins `lead` bytes into its page, so that places there are less by it.
        self.pages = [memory.view(bus, size) for bus, size in self._runs]
        self.words = [page.cast("Q") for page in self.pages]
        for bus, _ in self._runs:
            memory.hold(bus, self)
        key.users += 1

    @property
    def alive(self) -> bool:
        """Whether the memory is still there."""
        return bool(self.pages)

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the page that holds a byte of the queue, and the byte's place in its view."""
        if not self.pages:
            raise BufferGone
        position = offset + self.lead
        page = position >> self.shift
        return page, (position & self.mask) - (0 if page else self.lead)

    def segment_gone(self, number: int) -> None:
        """Cut the buffer: part of it is unmapped now."""
        if any(bus >> SEGMENT_SHIFT == number for bus, _ in self._runs):
            self._cut()

    def close(self) -> None:
        """Give the views and the key back; doing so twice is harmless."""
        if self._runs:
            self._cut()
            self._runs = []
            self._key.users -= 1

    def _cut(self) -> None:
        for view in (*self.words, *self.pages):
            view.release()
        if self.pages:
            for bus, _ in self._runs:
                self._memory.drop(bus, self)
        self.pages = []
        self.words = []


def _split(runs: list[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Cut merged runs into pieces that end where the region's pages end."""
    pieces = []
    for bus, size in runs:
        while size:
            part = min(size, page - (bus & (page - 1)))
            pieces.append((bus, part))
            bus += part
            size -= part
    return pieces


def map_queue(
    memory: DeviceMemory,
    translation: Translation,
    *,
    lkey: int,
    pd: int,
    rights: int,
    address: int | None,
    length: int,
    alignment: int,
) -> QueueBuffer | None:
    """Map a queue of the region `lkey`, or return None if the key does not grant that.

    Without an `address` the queue begins where the region does.
    """
    if address is None:
        entry = translation.entry(translation.index_of(lkey))
        address = entry.base if entry is not None else 0
    try:
        key = translation.find(lkey, pd, rights, address, length)
        return QueueBuffer(memory, translation, key, address, length, alignment)
    except (TranslationFault, BusError):
        return None
