"""How a buffer is laid out for a device: where it lies, or in pages it is copied through.

Memory the device reaches is named as it lies. The rest - pool of the kernel's own, memory above
4 GiB for a device of 32 bits - is copied page by page through map registers, and under the verifier
its first pages always are through guarded ones. A copy to the device is made when it is mapped, the
copy back when it is flushed; between the two neither side sees what the other does.

Rules: <= DISPATCH_LEVEL. Private memory has no mapping that is a view, so it is never copied.
Spec: WDK, Map Registers; DMA Verification; docs/dma.md.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from kernel_proc.memory.bus import Bus, BusRun
from kernel_proc.memory.dma_checks import DmaRules
from kernel_proc.memory.dma_guards import GuardedPages
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.map_registers import MapRegister, MapRegisters
from kernel_proc.memory.mdl import Mdl, map_locked_pages
from kernel_proc.memory.mdl_bus import mdl_bus_runs, reaches_device
from kernel_proc.memory.physical_memory import FOUR_GIB, PhysicalMemory
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.segment import PAGE_SIZE


class Store(Protocol):
    """A page that stands between a buffer and a device."""

    bus_address: int

    def put(self, start: int, data: memoryview) -> None:
        """Lay bytes into the page for the device."""

    def take(self, start: int, length: int) -> memoryview:
        """Return what is in the page now."""

    def close(self) -> None:
        """End the mapping."""


class Stretch(NamedTuple):
    """Bytes of a buffer; `bus_address` None: the device reaches them by a copy only."""

    offset: int
    length: int
    bus_address: int | None


class Mapped(NamedTuple):
    """Bytes of a buffer at the logical address the device is told; `store` has the copy, if one."""

    offset: int
    length: int
    logical: int
    store: Store | None
    start: int  # in the store's page


class BusRuns:
    """A buffer's bus runs, found by offset: there can be very many."""

    __slots__ = ("_ends", "runs")

    def __init__(self, runs: list[BusRun]) -> None:
        self.runs = runs
        self._ends: list[int] = []

    def within(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Give offset, length and bus address of the runs of a part of the buffer."""
        if not self._ends:
            self._ends = list(accumulate(size for _, size in self.runs))
        end = offset + length
        index = bisect_right(self._ends, offset)
        while offset < end:
            address, size = self.runs[index]
            stop = self._ends[index]
            last = min(stop, end)
            yield offset, last - offset, address + offset - (stop - size)
            offset, index = last, index + 1


class DmaCore:
    """What the parts of one adapter share; `guards` is None unless the verifier double-buffers."""

    def __init__(
        self,
        processor: Processor,
        bus: Bus,
        memory: KernelMemory,
        map_registers: int,
        *,
        dma_64_bit_addresses: bool,
        double_buffering: bool,
    ) -> None:
        self.processor = processor
        self.memory = memory
        self.physical = PhysicalMemory(bus)
        self.is_64_bit = dma_64_bit_addresses
        self.frames = None if dma_64_bit_addresses else range(FOUR_GIB // PAGE_SIZE)
        self.rules = DmaRules(processor)
        self.registers = MapRegisters(memory, map_registers, self.frames)
        verified = processor.verifier and double_buffering
        self.guards = GuardedPages(self.rules, memory, self.frames) if verified else None

    @property
    def may_wait(self) -> bool:
        """Whether memory may be asked of the system at this level."""
        return self.processor.irql <= APC_LEVEL

    def call(self, routine: Callable[..., Any], *arguments: Any) -> Any:
        """Call a driver back at DISPATCH_LEVEL, whatever the level of who makes that possible."""
        processor = self.processor
        old = processor.raise_irql(max(processor.irql, DISPATCH_LEVEL))
        result = routine(*arguments)
        processor.lower_irql(old)
        return result

    def logical(self, bus_address: int) -> int:
        """Return the address by which the device names memory it reaches."""
        if self.is_64_bit:
            return bus_address
        physical = self.physical.physical_address(bus_address)
        assert physical is not None
        assert physical < FOUR_GIB
        return physical

    # Where a buffer lies

    def runs_of(self, mdl: Mdl) -> BusRuns | None:
        """Return a buffer's bus runs, None for what is not on the bus."""
        return BusRuns(mdl_bus_runs(mdl)) if reaches_device(mdl) else None

    @property
    def reaches_everything(self) -> bool:
        """Whether all memory on the bus is told the device as it lies."""
        return self.is_64_bit and self.guards is None

    def copied_pages(self, mdl: Mdl, runs: BusRuns | None) -> int:
        """Return how many pages of a buffer the device does not reach."""
        if runs is not None and self.is_64_bit:
            return 0
        stretches = self.stretches(mdl, runs, 0, mdl.byte_count)
        return sum(stretch.bus_address is None for stretch in stretches)

    def stretches(
        self, mdl: Mdl, runs: BusRuns | None, offset: int, length: int
    ) -> Iterator[Stretch]:
        """Cut a part of a buffer where the bus does, and at pages where it must be copied."""
        if runs is None:
            yield from self._pages(mdl, Stretch(offset, length, None))
            return
        for start, size, bus_address in runs.within(offset, length):
            yield from self._reached(mdl, start, size, bus_address)

    def _reached(self, mdl: Mdl, offset: int, length: int, bus_address: int) -> Iterator[Stretch]:
        """Cut a run where the device reaches no farther."""
        reached = length
        if not self.is_64_bit:
            physical = self.physical.physical_address(bus_address)
            reached = 0 if physical is None else min(max(FOUR_GIB - physical, 0), length)
        if reached:
            yield Stretch(offset, reached, bus_address)
        if reached < length:
            yield from self._pages(mdl, Stretch(offset + reached, length - reached, None))

    @staticmethod
    def _pages(mdl: Mdl, stretch: Stretch) -> Iterator[Stretch]:
        at, end, bus = stretch.offset, stretch.offset + stretch.length, stretch.bus_address
        while at < end:
            length = min(PAGE_SIZE - (mdl.byte_offset + at) % PAGE_SIZE, end - at)
            yield Stretch(at, length, bus)
            at += length
            bus = bus + length if bus is not None else None

    # Mapping

    def map(
        self, mdl: Mdl, stretches: Iterable[Stretch], write: bool, registers: Iterator[MapRegister]
    ) -> Iterator[Mapped]:
        """Lay stretches out, with a register for each page of those that must be copied."""
        view = self.view_of(mdl) if self.guards is not None else None
        if view is not None and self.guards is not None:
            self.guards.reserve(self.may_wait)
        for stretch in stretches:
            verified = view is not None and self.guards is not None and self.guards.left
            if stretch.bus_address is None or verified:
                yield from self._map_pages(mdl, stretch, write, registers, view)
            else:
                yield self._as_it_lies(stretch)

    def _map_pages(
        self,
        mdl: Mdl,
        stretch: Stretch,
        write: bool,
        registers: Iterator[MapRegister],
        view: memoryview | None,
    ) -> Iterator[Mapped]:
        guards = self.guards
        for page in self._pages(mdl, stretch):
            start = (mdl.byte_offset + page.offset) % PAGE_SIZE
            register = next(registers) if page.bus_address is None else None
            store: Store | None = register
            if guards is not None and view is not None:
                store = guards.take(start, page.length) or register
            if store is None:
                end = stretch.offset + stretch.length
                yield self._as_it_lies(page._replace(length=end - page.offset))
                return
            if write:
                source = self.view_of(mdl)
                assert source is not None
                store.put(start, source[page.offset : page.offset + page.length])
            logical = self.logical(store.bus_address) + start
            yield Mapped(page.offset, page.length, logical, store, start)

    def _as_it_lies(self, stretch: Stretch) -> Mapped:
        assert stretch.bus_address is not None
        return Mapped(stretch.offset, stretch.length, self.logical(stretch.bus_address), None, 0)

    def follows(self, before: Mapped, after: Mapped) -> bool:
        """Tell whether two copied pieces lie in a row for the device."""
        one, other = before.store, after.store
        if one is None or other is None or before.logical + before.length != after.logical:
            return False
        here, there = (self.physical.physical_address(s.bus_address) for s in (one, other))
        return here is not None and there == here + PAGE_SIZE

    def unmap(self, mdl: Mdl, pieces: Iterable[Mapped], write: bool) -> None:
        """End a transfer: unless it was to the device, what that wrote is now in the buffer."""
        for piece in pieces:
            if piece.store is None:
                continue
            if not write:
                target = self.view_of(mdl)
                assert target is not None
                data = piece.store.take(piece.start, piece.length)
                target[piece.offset : piece.offset + piece.length] = data
            piece.store.close()

    @staticmethod
    def view_of(mdl: Mdl) -> memoryview | None:
        """Return the buffer's bytes, None for private memory."""
        return map_locked_pages(mdl).view
