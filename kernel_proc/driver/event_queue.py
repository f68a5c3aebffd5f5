"""One event queue: entries the HCA writes and this side takes in order.

An entry is ours when its owner bit is clear; taken, it is given back by setting the bit, and the
consumer index is published in its register at least every SPARE_ENTRIES, so that the HCA, which
counts on as many, never finds the queue full.

Rules: `take` at <= DISPATCH_LEVEL by one DPC; `has_entry` at any IRQL.
Spec: Linux mthca_eq.c; kernel_proc/hca_abi/event_entries.py.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.hca_abi.event_entries import (
    EQE_OWNED_BY_HCA,
    EQE_OWNER_OFFSET,
    EQE_SIZE,
)
from kernel_proc.hca_abi.registers import EQ_CONSUMER_OFFSET
from shared.live_words import words64
from shared.segment import PAGE_SIZE

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.pinned_memory import Region

SPARE_ENTRIES: Final = 0x80
_IN_PAGE: Final = PAGE_SIZE // EQE_SIZE


def log_size_for(events: int) -> int:
    """Return log2 of the entries of a queue for so many events at a time."""
    return (events + SPARE_ENTRIES - 1).bit_length()


class EventQueue:
    """2^log_size entries in single pages; `consumed` counts those taken, for ever."""

    __slots__ = (
        "_consumer",
        "_mask",
        "_place",
        "_view",
        "_views",
        "buffer",
        "consumed",
        "number",
        "region",
    )

    def __init__(
        self, number: int, log_size: int, buffer: "QueueBuffer", registers: memoryview
    ) -> None:
        self.number = number
        self.buffer = buffer
        self.region: Region | None = None
        self.consumed = 0
        self._mask = (1 << log_size) - 1
        self._views = buffer.views()
        place = EQ_CONSUMER_OFFSET + 8 * number
        self._consumer = words64(registers[place : place + 8])
        owner = bytes(EQE_OWNER_OFFSET) + bytes([EQE_OWNED_BY_HCA])
        for view in self._views:
            view[:] = owner * _IN_PAGE
        self._view, self._place = self._views[0], 0  # where the next entry is

    def has_entry(self) -> bool:
        """Tell whether the next entry is ours."""
        return not self._view[self._place + EQE_OWNER_OFFSET] & EQE_OWNED_BY_HCA

    def take(self) -> bytes | None:
        """Take the next entry and give its place back; None if there is none."""
        view, place = self._view, self._place
        last = place + EQE_OWNER_OFFSET
        if view[last] & EQE_OWNED_BY_HCA:
            return None
        entry = bytes(view[place : place + EQE_SIZE])
        view[last] = EQE_OWNED_BY_HCA
        self.consumed = consumed = self.consumed + 1
        page, number = divmod(consumed & self._mask, _IN_PAGE)
        self._view, self._place = self._views[page], number * EQE_SIZE
        if not consumed % SPARE_ENTRIES:
            self.publish()
        return entry

    def publish(self) -> None:
        """Tell the HCA how many entries were taken."""
        self._consumer[0] = self.consumed

    def inspect(self) -> dict[str, Any]:
        """Return size and entries taken."""
        return {"entries": self._mask + 1, "consumed": self.consumed}
