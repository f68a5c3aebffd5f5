"""Common buffers: memory that driver and device share for as long as they like.

It comes from memory the device reaches; when that is used up for a device of 32 bits, map
registers in a row serve. Under the verifier it has guards around it and lies in the middle of its
pages, so that one which is no whole number of pages does not begin at a page. It is never
double-buffered.

Rules: PASSIVE_LEVEL.
Spec: WDK, AllocateCommonBuffer, FreeCommonBuffer; DMA Verification; docs/dma.md.
"""

import contextlib
from typing import Final, NamedTuple

from kernel_proc.memory.dma_checks import COMMON_BUFFERS_FREED, COMMON_BUFFERS_LEFT
from kernel_proc.memory.dma_guards import guard, overrun, report_overrun
from kernel_proc.memory.dma_mapping import DmaCore
from kernel_proc.memory.kernel_memory import KernelBuffer
from kernel_proc.memory.map_registers import MapRegister
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.segment import PAGE_SIZE, round_to_pages

_ALLOCATE: Final = "AllocateCommonBuffer"


class CommonBuffer(NamedTuple):
    """Memory that driver and device share: `length` bytes, in a row at `bus_address`.

    `pages` are what it lies in, `start` where in them, `registers` the map registers if these are
    theirs.
    """

    view: memoryview
    bus_address: int
    length: int
    pages: KernelBuffer | None
    around: memoryview
    start: int
    registers: list[MapRegister]


class CommonBuffers:
    """The common buffers of one adapter."""

    def __init__(self, core: DmaCore) -> None:
        self._core = core
        self._live: dict[int, CommonBuffer] = {}

    def __len__(self) -> int:
        return len(self._live)

    def allocate(self, length: int) -> CommonBuffer | None:
        """Give memory both see, zeroed and in a row; None if there is none (AllocateCommonBuffer).

        Whole pages are taken, and only `length` bytes may be used.
        """
        core = self._core
        core.rules.at_exactly(PASSIVE_LEVEL, _ALLOCATE)
        if length <= 0:
            raise ValueError(f"a common buffer of {length} bytes")
        buffer = self._of_kernel_memory(length) or self._of_map_registers(length)
        if buffer is not None:
            self._live[buffer.bus_address] = buffer
        return buffer

    def free(self, buffer: CommonBuffer) -> None:
        """Take it back, as it was given; the device uses it no more (FreeCommonBuffer)."""
        core = self._core
        core.rules.at_exactly(PASSIVE_LEVEL, "FreeCommonBuffer")
        if self._live.get(buffer.bus_address) is not buffer:
            what = f"common buffer at {buffer.bus_address:#x} is free already, or never was given"
            raise core.rules.refuse(COMMON_BUFFERS_FREED, what)
        if core.processor.verifier:
            broken = overrun(buffer.around, buffer.start, buffer.length)
            if broken:
                report_overrun(core.rules, broken, buffer.bus_address)
        del self._live[buffer.bus_address]
        with contextlib.suppress(BufferError):  # something still looks through this very view
            buffer.view.release()
        if buffer.pages is not None:
            core.memory.free(buffer.pages)
        else:
            core.registers.give_back(buffer.registers)

    def require_none_left(self) -> None:
        """Stop the verified machine if a buffer is outstanding."""
        if self._live:
            what = f"{len(self._live)} common buffers are left"
            self._core.rules.suspect(COMMON_BUFFERS_LEFT, what)

    def _of_kernel_memory(self, length: int) -> CommonBuffer | None:
        core, pages = self._core, round_to_pages(length)
        # Guard pages are not worth a refusal: without them there is padding in the last page.
        for room in (PAGE_SIZE, 0) if core.processor.verifier else (0,):
            buffer = core.memory.allocate_contiguous(pages + 2 * room, frames=core.frames)
            if buffer is not None:
                return self._lay(length, room, buffer.view, buffer.bus_address, buffer, [])
        return None

    def _of_map_registers(self, length: int) -> CommonBuffer | None:
        core = self._core
        if core.is_64_bit or not core.registers.reserve(core.may_wait):
            return None
        registers = core.registers.take_in_a_row(round_to_pages(length) // PAGE_SIZE)
        if registers is None:
            return None
        view = core.registers.view_of(registers)
        view[:] = bytes(len(view))
        return self._lay(length, 0, view, registers[0].bus_address, None, registers)

    def _lay(
        self,
        length: int,
        room: int,
        around: memoryview,
        bus_address: int,
        pages: KernelBuffer | None,
        registers: list[MapRegister],
    ) -> CommonBuffer:
        start = room
        if self._core.processor.verifier:
            start += (round_to_pages(length) - length) // 2
            guard(around, start, length)
        view = around[start : start + length]
        logical = self._core.logical(bus_address) + start
        return CommonBuffer(view, logical, length, pages, around, start, registers)
