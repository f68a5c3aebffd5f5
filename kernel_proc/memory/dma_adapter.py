"""DMA adapters: common buffers, and scatter/gather lists of what an MDL describes.

Memory the device reaches by itself is described as it lies. Pool it cannot reach: such a buffer is
double-buffered in map registers, copied there when the list is made and back when it is put, so
that until then neither sees what the other does.

Rules: common buffers at PASSIVE_LEVEL only; scatter/gather lists at DISPATCH_LEVEL.
Spec: WDK, AllocateCommonBuffer, FreeCommonBuffer, GetScatterGatherList, PutScatterGatherList,
PutDmaAdapter; bug checks 0x0A, 0xE6 (0x03, 0x06, 0x07, 0x0A, 0x13).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kernel_proc.memory.bus import Bus, BusRun
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from kernel_proc.memory.mdl import Mdl, map_locked_pages
from kernel_proc.memory.mdl_bus import mdl_bus_runs, reaches_device
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DMA_VIOLATION
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS
from shared.segment import PAGE_SIZE

DEFAULT_MAP_REGISTERS: Final = 256  # pages that may be double-buffered at a time

# 0xE6, first parameter.
_COMMON_BUFFERS_FREED: Final = 0x03
_LISTS_FREED: Final = 0x06
_COMMON_BUFFERS_LEFT: Final = 0x07
_LISTS_LEFT: Final = 0x0A
_WRONG_IRQL: Final = 0x13


class CommonBuffer(NamedTuple):
    """Memory that driver and device share: `length` bytes, contiguous at `bus_address`."""

    view: memoryview
    bus_address: int
    length: int
    pages: KernelBuffer


class ScatterGatherList:
    """A buffer as the device is told: (bus address, length) in order."""

    __slots__ = ("elements", "map_registers", "mdl", "write")

    def __init__(
        self, mdl: Mdl, write: bool, elements: list[BusRun], map_registers: list[KernelBuffer]
    ) -> None:
        self.mdl = mdl
        self.write = write
        self.elements = elements
        self.map_registers = map_registers


class DmaAdapter:
    """One device's adapter."""

    def __init__(
        self,
        processor: Processor,
        bus: Bus,
        kernel_memory: KernelMemory,
        map_registers: int = DEFAULT_MAP_REGISTERS,
    ) -> None:
        self._processor = processor
        self._bus = bus
        self._memory = kernel_memory
        self._registers_left = map_registers
        self._common_buffers: dict[int, CommonBuffer] = {}
        self._lists: dict[int, ScatterGatherList] = {}

    # Common buffers

    def allocate_common_buffer(self, length: int) -> CommonBuffer | None:
        """Give memory both see, zeroed and in a row; None if there is none (AllocateCommonBuffer).

        Whole pages are taken, and only `length` bytes may be used.
        """
        self._processor.require_irql(PASSIVE_LEVEL, "AllocateCommonBuffer")
        pages = self._memory.allocate_contiguous(length)
        if pages is None:
            return None
        buffer = CommonBuffer(pages.view, pages.bus_address, length, pages)
        self._common_buffers[buffer.bus_address] = buffer
        return buffer

    def free_common_buffer(self, buffer: CommonBuffer) -> None:
        """Take it back; the device uses it no more (FreeCommonBuffer)."""
        self._processor.require_irql(PASSIVE_LEVEL, "FreeCommonBuffer")
        if self._common_buffers.get(buffer.bus_address) is not buffer:
            self._violation(_COMMON_BUFFERS_FREED, 0, f"common buffer at {buffer.bus_address:#x}")
        del self._common_buffers[buffer.bus_address]
        self._memory.free(buffer.pages)

    # Scatter/gather lists

    def get_scatter_gather_list(
        self, mdl: Mdl, write: bool, routine: Callable[[ScatterGatherList], object]
    ) -> int:
        """Describe a locked buffer to the device and call `routine` with the list.

        `write` as the WDK has it: to the device, from memory. STATUS_INSUFFICIENT_RESOURCES, and
        no call, when map registers are short. Until the list is put the driver must not look at
        the data (GetScatterGatherList).
        """
        self._require_dispatch("GetScatterGatherList")
        registers: list[KernelBuffer] = []
        if reaches_device(mdl):
            elements = mdl_bus_runs(mdl)
        else:
            taken = self._take_registers(mdl.page_count)
            if taken is None:
                return STATUS_INSUFFICIENT_RESOURCES
            registers = taken
            elements = self._double_buffer(mdl, registers, write)
        sg_list = ScatterGatherList(mdl, write, elements, registers)
        self._lists[id(sg_list)] = sg_list
        routine(sg_list)
        return STATUS_SUCCESS

    def put_scatter_gather_list(self, sg_list: ScatterGatherList) -> None:
        """End a transfer: what the device wrote is now in the buffer (PutScatterGatherList)."""
        self._require_dispatch("PutScatterGatherList")
        if self._lists.pop(id(sg_list), None) is None:
            self._violation(_LISTS_FREED, 0, f"scatter/gather list of {sg_list.mdl!r}")
        registers = sg_list.map_registers
        if registers and not sg_list.write:
            mapping, done = map_locked_pages(sg_list.mdl), 0
            for register, (address, length) in zip(registers, sg_list.elements, strict=True):
                start = address - register.bus_address
                mapping.write(done, register.view[start : start + length])
                done += length
        self._memory.free_all(registers)
        self._registers_left += len(registers)

    def put_adapter(self) -> None:
        """Give the adapter up; it must hold nothing (PutDmaAdapter)."""
        self._processor.require_irql(PASSIVE_LEVEL, "PutDmaAdapter")
        if self._common_buffers:
            count = len(self._common_buffers)
            self._violation(_COMMON_BUFFERS_LEFT, count, f"{count} common buffers are left")
        if self._lists:
            count = len(self._lists)
            self._violation(_LISTS_LEFT, count, f"{count} scatter/gather lists are left")

    def inspect(self) -> dict[str, Any]:
        """Return what the adapter holds."""
        return {
            "common_buffers": len(self._common_buffers),
            "scatter_gather_lists": len(self._lists),
            "map_registers_left": self._registers_left,
        }

    def _take_registers(self, count: int) -> list[KernelBuffer] | None:
        if count > self._registers_left:
            return None
        registers = self._memory.allocate_pages(count)
        if registers is not None:
            self._registers_left -= count
        return registers

    @staticmethod
    def _double_buffer(mdl: Mdl, registers: list[KernelBuffer], write: bool) -> list[BusRun]:
        """Lay the buffer into map registers, one for each of its pages, at the same offsets."""
        mapping = map_locked_pages(mdl)
        elements, done, start = list[BusRun](), 0, mdl.byte_offset
        for register in registers:
            length = min(PAGE_SIZE - start, mdl.byte_count - done)
            if write:
                register.view[start : start + length] = mapping.read(done, length)
            elements.append((register.bus_address + start, length))
            done += length
            start = 0
        return elements

    def _require_dispatch(self, routine: str) -> None:
        processor = self._processor
        processor.require_irql(DISPATCH_LEVEL, routine)
        if processor.irql < DISPATCH_LEVEL and processor.verifier:
            processor.bug_check(
                DRIVER_VERIFIER_DMA_VIOLATION,
                _WRONG_IRQL,
                1,
                detail=f"{routine} below DISPATCH_LEVEL",
            )

    def _violation(self, code: int, count: int, detail: str) -> None:
        if self._processor.verifier:
            self._processor.bug_check(DRIVER_VERIFIER_DMA_VIOLATION, code, count, detail=detail)
        if code in (_COMMON_BUFFERS_FREED, _LISTS_FREED):
            raise ValueError(f"{detail} is free already, or never was given")
