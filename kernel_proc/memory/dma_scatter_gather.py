"""Scatter/gather lists: a whole buffer as the device is told, in one call.

Rules: DISPATCH_LEVEL. The routine is called before the call returns, or later by whoever gives map
registers back.
Spec: WDK, GetScatterGatherList, PutScatterGatherList; docs/dma.md.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kernel_proc.memory.bus import BusRun
from kernel_proc.memory.dma_checks import LISTS_FREED, LISTS_LEFT, ZERO_LENGTH
from kernel_proc.memory.dma_mapping import BusRuns, DmaCore, Mapped
from kernel_proc.memory.map_registers import MapRegister
from kernel_proc.memory.mdl import Mdl
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS

_GET: Final = "GetScatterGatherList"


class ScatterGatherList:
    """A buffer as the device is told: (logical address, length) in order."""

    __slots__ = ("elements", "map_registers", "mapped", "mdl", "write")

    def __init__(
        self,
        mdl: Mdl,
        write: bool,
        mapped: Sequence[Mapped],
        elements: list[BusRun],
        map_registers: list[MapRegister],
    ) -> None:
        self.mdl = mdl
        self.write = write
        self.mapped = mapped
        self.elements = elements
        self.map_registers = map_registers


ListRoutine = Callable[[ScatterGatherList], object]


class ScatterGatherLists:
    """The lists of one adapter."""

    def __init__(self, core: DmaCore) -> None:
        self._core = core
        self._outstanding: dict[ScatterGatherList, None] = {}
        self._queued = 0

    def __len__(self) -> int:
        return len(self._outstanding) + self._queued

    def get(self, mdl: Mdl, write: bool, routine: ListRoutine) -> int:
        """Describe a locked buffer to the device and call `routine` with the list, now or later.

        `write` as the WDK has it: to the device, from memory. STATUS_INSUFFICIENT_RESOURCES, and
        no call, when it takes more map registers than the adapter has. Until the list is put the
        driver must not look at the data (GetScatterGatherList).
        """
        core = self._core
        core.rules.at_exactly(DISPATCH_LEVEL, _GET)
        core.rules.require_locked(mdl)
        if not mdl.byte_count:
            raise core.rules.refuse(ZERO_LENGTH, f"{_GET} of a buffer of no bytes")
        runs = core.runs_of(mdl)
        copied = core.copied_pages(mdl, runs)

        def grant(registers: list[MapRegister]) -> None:
            self._queued -= 1
            sg_list = self._make(mdl, write, runs, registers)
            self._outstanding[sg_list] = None
            core.call(routine, sg_list)

        self._queued += 1
        if not copied:
            grant([])
        elif core.view_of(mdl) is None or not core.registers.request(copied, core.may_wait, grant):
            self._queued -= 1
            return STATUS_INSUFFICIENT_RESOURCES
        return STATUS_SUCCESS

    def put(self, sg_list: ScatterGatherList) -> None:
        """End a transfer: what the device wrote is now in the buffer (PutScatterGatherList)."""
        core = self._core
        core.rules.at_exactly(DISPATCH_LEVEL, "PutScatterGatherList")
        if sg_list not in self._outstanding:
            what = f"scatter/gather list of {sg_list.mdl!r} is put already, or never was given"
            raise core.rules.refuse(LISTS_FREED, what)
        del self._outstanding[sg_list]
        core.unmap(sg_list.mdl, sg_list.mapped, sg_list.write)
        core.registers.give_back(sg_list.map_registers)

    def require_none_left(self) -> None:
        """Stop the verified machine if a list is outstanding."""
        if self:
            self._core.rules.suspect(LISTS_LEFT, f"{len(self)} scatter/gather lists are left")

    def _make(
        self, mdl: Mdl, write: bool, runs: BusRuns | None, registers: list[MapRegister]
    ) -> ScatterGatherList:
        core = self._core
        if runs is not None and core.reaches_everything:
            return ScatterGatherList(mdl, write, (), runs.runs, registers)
        stretches = core.stretches(mdl, runs, 0, mdl.byte_count)
        mapped = list(core.map(mdl, stretches, write, iter(registers)))
        return ScatterGatherList(mdl, write, mapped, self._elements(mapped), registers)

    def _elements(self, mapped: Sequence[Mapped]) -> list[BusRun]:
        elements: list[BusRun] = []
        before: Mapped | None = None
        for piece in mapped:
            if before is not None and self._core.follows(before, piece):
                address, length = elements[-1]
                elements[-1] = (address, length + piece.length)
            else:
                elements.append((piece.logical, piece.length))
            before = piece
        return elements
