"""A small device that reads and writes memory by the addresses it is told, and knows nothing else.

It has 64 address lines or 32; of a longer address it drives the low ones, and so reaches other
memory, or none. Where nothing answers a read gives ones and a write is lost, as on PCI.

Rules: any IRQL; it stands for hardware, so no call of it waits or stops the machine.
Spec: PCI Local Bus Specification, Master-Abort; docs/dma.md.
"""

from collections.abc import Iterator
from typing import Final

from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus
from kernel_proc.memory.physical_memory import PhysicalMemory
from shared.segment import PAGE_SIZE

_OFFSET_MASK: Final = (1 << SEGMENT_SHIFT) - 1
_NOBODY_ANSWERS: Final = b"\xff"


class BusMaster:
    """One device on the bus; `aborts` counts accesses that nothing answered."""

    def __init__(self, bus: Bus, address_lines: int = 64) -> None:
        self._mask = (1 << address_lines) - 1
        self._segments: dict[int, memoryview] = {}
        self._physical = PhysicalMemory(bus)
        self.aborts = 0
        bus.attach(self)

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        """Learn of a segment; private memory does not answer this device."""
        if view is not None:
            self._segments[number] = view

    def remove_segment(self, number: int) -> None:
        """Forget a segment."""
        self._segments.pop(number, None)

    def read(self, address: int, length: int) -> bytes:
        """Fetch bytes from memory."""
        parts = []
        for at, size in self._pages(address, length):
            memory = self._find(at, size)
            parts.append(bytes(memory) if memory is not None else _NOBODY_ANSWERS * size)
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        """Store bytes to memory."""
        done = 0
        for at, size in self._pages(address, len(data)):
            memory = self._find(at, size)
            if memory is not None:
                memory[:] = data[done : done + size]
            done += size

    @staticmethod
    def _pages(address: int, length: int) -> Iterator[tuple[int, int]]:
        end = address + length
        while address < end:
            size = min(PAGE_SIZE - address % PAGE_SIZE, end - address)
            yield address, size
            address += size

    def _find(self, address: int, length: int) -> memoryview | None:
        """Return the bytes at an address, which are of one page."""
        address &= self._mask
        if not address >> SEGMENT_SHIFT:
            address = self._physical.bus_address(address) or 0
        view = self._segments.get(address >> SEGMENT_SHIFT)
        offset = address & _OFFSET_MASK
        if view is None or offset + length > len(view):
            self.aborts += 1
            return None
        return view[offset : offset + length]
