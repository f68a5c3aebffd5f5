"""Transfers of one channel: parts of a buffer laid out through its map registers, and flushed.

A transfer is mapped run by run: each call maps what lies in a row for the device, and says how much
that was. Each page takes one of the channel's map registers until it is flushed, whether or not the
bytes are copied, so that a driver that asks for too few is found on every machine.

Rules: <= DISPATCH_LEVEL, between AllocateAdapterChannel and FreeMapRegisters.
Spec: WDK, MapTransfer, FlushAdapterBuffers, Splitting DMA Transfer Requests; docs/dma.md.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernel_proc.memory import dma_checks
from kernel_proc.memory.dma_mapping import BusRuns, DmaCore, Mapped, Stretch
from kernel_proc.memory.map_registers import MapRegister
from kernel_proc.memory.mdl import Mdl
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.segment import PAGE_SIZE

NOTHING_MAPPED: Final = (0, 0)

_MAP: Final = "MapTransfer"
_FLUSH: Final = "FlushAdapterBuffers"


class _Transfer(NamedTuple):
    """One mapped run of a buffer."""

    mdl: Mdl
    offset: int
    length: int
    pieces: list[Mapped]
    registers: list[MapRegister]


class MapRegisterBase:
    """The map registers of one channel, and what is mapped through them."""

    __slots__ = ("_runs", "_runs_of", "freed", "left", "registers", "transfers")

    def __init__(self, registers: list[MapRegister]) -> None:
        self.registers = registers
        self.left = list(registers)
        self.transfers: list[_Transfer] = []
        self.freed = False
        self._runs_of: Mdl | None = None
        self._runs: BusRuns | None = None

    def runs_of(self, core: DmaCore, mdl: Mdl) -> BusRuns | None:
        """Return a buffer's bus runs, found once while it is the one in hand."""
        if self._runs_of is not mdl:
            self._runs_of, self._runs = mdl, core.runs_of(mdl)
        return self._runs


class AdapterTransfers:
    """MapTransfer and FlushAdapterBuffers of one adapter."""

    def __init__(self, core: DmaCore) -> None:
        self._core = core

    def map(
        self, mdl: Mdl, base: MapRegisterBase, current_va: int, length: int, write: bool
    ) -> tuple[int, int]:
        """Map the first run of a part of a buffer; return its logical address and its length.

        The length is shorter than asked where memory or map registers are not in a row, or run
        out; NOTHING_MAPPED when none are left. The rest is the driver's to map next (MapTransfer).
        """
        core = self._core
        core.rules.at_most(DISPATCH_LEVEL, _MAP)
        core.rules.require_locked(mdl)
        if base.freed:
            raise core.rules.refuse(
                dma_checks.FLUSH_OF_UNMAPPED_REGISTER, f"{_MAP} through map registers freed before"
            )
        offset = self._offset(mdl, current_va, length)
        self._require_unmapped(base, mdl, offset, length)
        runs = base.runs_of(core, mdl)
        first = next(core.stretches(mdl, runs, offset, length))
        if first.bus_address is None and core.view_of(mdl) is None:
            return NOTHING_MAPPED
        stretches = core.stretches(mdl, runs, offset, self._room(base, mdl, offset, length))
        pieces = self._first_run(base, mdl, stretches, write)
        if not pieces:
            core.rules.suspect(
                dma_checks.REGISTER_FILE,
                f"{_MAP} with all {len(base.registers)} map registers in use",
                dma_checks.NO_MAP_REGISTERS,
            )
            return NOTHING_MAPPED
        mapped = sum(piece.length for piece in pieces)
        pages = _pages(mdl, offset, mapped)
        taken, base.left = base.left[:pages], base.left[pages:]
        base.transfers.append(_Transfer(mdl, offset, mapped, pieces, taken))
        return pieces[0].logical, mapped

    def flush(
        self, mdl: Mdl, base: MapRegisterBase, current_va: int, length: int, write: bool
    ) -> bool:
        """End every transfer inside a part of a buffer; False if there is none.

        Unless `write`, to the device, what the device wrote is in the buffer now
        (FlushAdapterBuffers).
        """
        core, rules = self._core, self._core.rules
        rules.at_most(DISPATCH_LEVEL, _FLUSH)
        if base.freed:
            rules.suspect(
                dma_checks.FLUSH_OF_UNMAPPED_REGISTER, f"{_FLUSH} of map registers freed before"
            )
            return False
        start = current_va - mdl.virtual_address
        if start + length > mdl.byte_count:
            rules.suspect(
                dma_checks.REGISTER_FILE,
                f"{_FLUSH} of {length} bytes, which is past the end of {mdl!r}",
                dma_checks.FLUSHED_PAST_THE_END,
            )
        ended = [
            t
            for t in base.transfers
            if t.mdl is mdl and start <= t.offset and t.offset + t.length <= start + length
        ]
        if not ended:
            rules.suspect(
                dma_checks.FLUSH_OF_UNMAPPED_BUFFER, f"{_FLUSH} of {mdl!r}, not mapped there"
            )
            return False
        for transfer in ended:
            base.transfers.remove(transfer)
            core.unmap(mdl, transfer.pieces, write)
            base.left = sorted(base.left + transfer.registers, key=lambda r: r.number)
        return True

    def _first_run(
        self, base: MapRegisterBase, mdl: Mdl, stretches: Iterator[Stretch], write: bool
    ) -> list[Mapped]:
        """Map until the next piece would not follow; registers are looked at before they serve."""
        core, pieces = self._core, list[Mapped]()
        left = iter(base.left)
        for stretch in stretches:
            if pieces and not self._would_follow(base, pieces, stretch):
                break
            mapping = core.map(mdl, iter([stretch]), write, left)
            pieces.append(next(mapping))
            if pieces[-1].store is None or pieces[-1].length < stretch.length:
                break
        return pieces

    def _would_follow(self, base: MapRegisterBase, pieces: list[Mapped], stretch: Stretch) -> bool:
        before = pieces[-1]
        if stretch.bus_address is not None or not isinstance(before.store, MapRegister):
            return False
        if self._core.guards is not None and self._core.guards.left:
            return False
        index = base.left.index(before.store) + 1
        if index == len(base.left):
            return False
        register = base.left[index]
        logical = self._core.logical(register.bus_address)
        after = Mapped(stretch.offset, stretch.length, logical, register, 0)
        return self._core.follows(before, after)

    def _room(self, base: MapRegisterBase, mdl: Mdl, offset: int, length: int) -> int:
        """Return how many of the bytes the registers that are left suffice for."""
        first = (mdl.byte_offset + offset) % PAGE_SIZE
        return max(0, min(length, len(base.left) * PAGE_SIZE - first))

    def _offset(self, mdl: Mdl, current_va: int, length: int) -> int:
        rules = self._core.rules
        offset = current_va - mdl.virtual_address
        if length <= 0:
            raise rules.refuse(dma_checks.ZERO_LENGTH, f"{_MAP} of {length} bytes")
        if offset < 0 or offset + length > mdl.byte_count:
            what = f"{_MAP} of {length} bytes at {current_va:#x}, outside {mdl!r}"
            raise rules.refuse(dma_checks.OUTSIDE_MDL, what)
        return offset

    def _require_unmapped(self, base: MapRegisterBase, mdl: Mdl, offset: int, length: int) -> None:
        for transfer in base.transfers:
            end = transfer.offset + transfer.length
            if transfer.mdl is mdl and offset < end and transfer.offset < offset + length:
                what = f"{_MAP} of {mdl!r} from {offset:#x}, which is mapped already"
                self._core.rules.suspect(dma_checks.MAPPED_ALREADY, what)


def _pages(mdl: Mdl, offset: int, length: int) -> int:
    first = (mdl.byte_offset + offset) % PAGE_SIZE
    return (first + length + PAGE_SIZE - 1) // PAGE_SIZE
