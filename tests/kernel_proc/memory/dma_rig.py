"""An adapter, its bus and its device, for tests of DMA; low memory can be taken by others."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.devices.bus_master import BusMaster
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter, ScatterGatherList
from kernel_proc.memory.dma_transfer import MapRegisterBase
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from kernel_proc.memory.mdl import Mdl, allocate_mdl, build_for_nonpaged_pool
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.memory.physical_memory import FOUR_GIB
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DMA_VIOLATION, BugCheck
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_SUCCESS

PAGE = 4096


class Rig:
    """`bits` 32: adapter and device are narrow; `take_low_memory` has later memory above 4 GiB."""

    def __init__(
        self,
        kernel: Any,
        largest_run: int | None = None,
        registers: int = 8,
        bits: int = 64,
        *,
        double_buffering: bool = True,
        limit: int = 4 << 20,
    ) -> None:
        self.kernel = kernel
        self.processor = kernel.processor
        self.bus = Bus(PageFrameAllocator(largest_run=largest_run))
        self.memory = KernelMemory(self.bus, None, limit, 1 << 16)
        self.adapter = DmaAdapter(
            kernel.processor,
            self.bus,
            self.memory,
            registers,
            dma_64_bit_addresses=bits == 64,
            double_buffering=double_buffering,
        )
        assert self.adapter.reserve()
        self.device = BusMaster(self.bus, bits)
        self.lists: list[ScatterGatherList] = []
        self.bases: list[MapRegisterBase] = []

    # Memory

    def take_low_memory(self) -> None:
        """Let others have every frame below 4 GiB that is free."""
        frames = self.bus.frames
        first = frames.allocate_contiguous(1)
        assert first is not None
        rest = frames.allocate_contiguous(FOUR_GIB // PAGE - first.start - 1)
        assert rest is not None

    def pool_mdl(self, data: bytes) -> tuple[Any, Mdl]:
        block = self.kernel.pool.allocate(len(data), "Test")
        block[:] = data
        return block, self.describe(block, len(data))

    def kernel_mdl(self, data: bytes) -> tuple[KernelBuffer, Mdl]:
        """Kernel memory, above 4 GiB if others have what is below."""
        low = range(FOUR_GIB // PAGE)
        pages = -(-len(data) // PAGE) * PAGE
        high = range(low.stop, self.bus.frames.total)
        buffer = self.memory.allocate_contiguous(pages, frames=high)
        buffer = buffer or self.memory.allocate_contiguous(pages)
        assert buffer is not None
        buffer.view[: len(data)] = data
        return buffer, self.describe(buffer, len(data))

    def describe(self, buffer: Any, length: int) -> Mdl:
        mdl = allocate_mdl(self.processor, buffer, length)
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        return mdl

    # The adapter, as its driver uses it

    def call(self, routine: Callable[..., Any], *args: Any) -> Any:
        return self.kernel.run_at(DISPATCH_LEVEL, routine, *args)

    def get(self, mdl: Mdl, write: bool) -> int:
        routine = self.adapter.get_scatter_gather_list
        status: int = self.call(routine, mdl, write, self.lists.append)
        return status

    def put(self, sg_list: ScatterGatherList) -> None:
        self.call(self.adapter.put_scatter_gather_list, sg_list)

    def channel(self, count: int, action: int = 3, device: object = None) -> MapRegisterBase | None:
        """Ask for the channel; return the map registers if it was given at once."""
        before = len(self.bases)

        def control(_device: Any, base: MapRegisterBase, _context: Any) -> int:
            assert self.processor.irql == DISPATCH_LEVEL
            self.bases.append(base)
            return action

        routine = self.adapter.allocate_adapter_channel
        assert self.call(routine, device or object(), count, control) == STATUS_SUCCESS
        return self.bases[-1] if len(self.bases) > before else None

    def map(
        self, mdl: Mdl, base: MapRegisterBase, offset: int, length: int, write: bool
    ) -> tuple[int, int]:
        va = mdl.virtual_address + offset
        result: tuple[int, int] = self.call(self.adapter.map_transfer, mdl, base, va, length, write)
        return result

    def flush(self, mdl: Mdl, base: MapRegisterBase, offset: int, length: int, write: bool) -> bool:
        va = mdl.virtual_address + offset
        done: bool = self.call(self.adapter.flush_adapter_buffers, mdl, base, va, length, write)
        return done


def bug_of(kernel: Any, irql: int, routine: Any, *args: Any) -> tuple[int, ...]:
    """Code and the two first parameters of the bug check a call ends in."""
    with pytest.raises(BugCheck) as caught:
        kernel.run_at(irql, routine, *args)
    return caught.value.code, *caught.value.parameters[:2]


def violation(p1: int, p2: int = 0) -> tuple[int, int, int]:
    return DRIVER_VERIFIER_DMA_VIOLATION, p1, p2
