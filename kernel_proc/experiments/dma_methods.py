"""Four ways in which the experiment `dma-api` has a device reach a buffer.

`take` gets a buffer of kernel or user memory at the caller's level, `map` tells what addresses the
device is given for it. Where a routine wants DISPATCH_LEVEL, the driver raises to it.

Rules: in a thread of the user's process; what a routine does not give is NotGiven.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/dma.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from kernel_proc.experiments.dma_stage import (
    BUFFER_LENGTH,
    PART,
    REFUSED,
    WAITS,
    NotGiven,
    Stage,
)
from kernel_proc.memory.dma_adapter import CommonBuffer, ScatterGatherList
from kernel_proc.memory.dma_channel import DEALLOCATE_OBJECT_KEEP_REGISTERS
from kernel_proc.memory.dma_transfer import NOTHING_MAPPED, MapRegisterBase
from kernel_proc.memory.mdl import (
    IO_WRITE_ACCESS,
    Mdl,
    allocate_mdl,
    build_for_nonpaged_pool,
    probe_and_lock_pages,
)
from kernel_proc.memory.physical_memory import (
    FOUR_GIB,
    allocate_contiguous_memory,
    get_physical_address,
)
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.nt_status import STATUS_SUCCESS, status_name
from shared.segment import PAGE_SIZE

KERNEL: Final = "kernel"
USER: Final = "user"

Run = tuple[int, int]


class Taken(NamedTuple):
    """A buffer: `view` is what its owner reads and writes, `mdl` describes it.

    `common` is the common buffer of a device that reaches no other memory.
    """

    view: memoryview
    mdl: Mdl | None
    common: CommonBuffer | None = None


class MappedRuns(NamedTuple):
    """What the device is told, and how that ends."""

    runs: list[Run]
    unmap: Callable[[], object]


class Method(Protocol):
    """One way."""

    def take(self, stage: Stage, owner: str) -> Taken:
        """Get the buffer."""

    def map(self, stage: Stage, taken: Taken, write: bool) -> MappedRuns:
        """Have the device reach it; `write`: from memory to the device."""


def at_dispatch(stage: Stage, routine: Callable[..., Any], *arguments: Any) -> Any:
    """Call a routine that has DISPATCH_LEVEL as its level."""
    old = stage.processor.raise_irql(DISPATCH_LEVEL)
    value = routine(*arguments)
    stage.processor.lower_irql(old)
    return value


def _require(status: int, routine: str) -> None:
    if status != STATUS_SUCCESS:
        raise NotGiven(REFUSED, f"{routine}: {status_name(status)}")


def take_described(stage: Stage, owner: str) -> Taken:
    """Get contiguous memory, where pool would lie, and an MDL of it, or lock the user's."""
    processor = stage.processor
    if owner == KERNEL:
        buffer = allocate_contiguous_memory(processor, stage.memory, BUFFER_LENGTH, lowest=FOUR_GIB)
        if buffer is None:
            raise NotGiven(REFUSED, "MmAllocateContiguousMemorySpecifyCache gives nothing")
        mdl = allocate_mdl(processor, buffer, BUFFER_LENGTH)
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        return Taken(buffer.view, mdl)
    mdl = allocate_mdl(processor, stage.user_address, BUFFER_LENGTH)
    assert mdl is not None
    probe_and_lock_pages(mdl, KERNEL_MODE, IO_WRITE_ACCESS)
    return Taken(stage.user_view, mdl)


class CommonBufferMethod:
    """A common buffer; a user's bytes are copied to it and from it, for it is not the user's."""

    def take(self, stage: Stage, owner: str) -> Taken:
        """Allocate it; the kernel's buffer is the common buffer."""
        buffer = stage.adapter.allocate_common_buffer(BUFFER_LENGTH)
        if buffer is None:
            raise NotGiven(REFUSED, "AllocateCommonBuffer gives nothing")
        view = buffer.view if owner == KERNEL else stage.user_view
        return Taken(view, None, buffer)

    def map(self, stage: Stage, taken: Taken, write: bool) -> MappedRuns:
        """Copy to it what is the user's; at the end copy back."""
        buffer, view = taken.common, taken.view
        assert buffer is not None
        shared = buffer.view
        if view is not shared and write:
            shared[:] = view

        def unmap() -> None:
            if view is not shared and not write:
                view[:] = shared

        return MappedRuns([(buffer.bus_address, buffer.length)], unmap)


class MapTransferMethod:
    """An adapter channel and MapTransfer until all is mapped."""

    take = staticmethod(take_described)

    def map(self, stage: Stage, taken: Taken, write: bool) -> MappedRuns:
        """Reserve a map register for each page, if there are so many, and map run by run."""
        mdl, adapter = taken.mdl, stage.adapter
        assert mdl is not None
        count = min(mdl.page_count, adapter.map_registers)
        base = self._channel(stage, count)
        start, runs, done = mdl.virtual_address, list[Run](), 0
        while done < BUFFER_LENGTH:
            run = adapter.map_transfer(mdl, base, start + done, BUFFER_LENGTH - done, write)
            if run == NOTHING_MAPPED:
                raise NotGiven(PART, f"MapTransfer maps {done} of {BUFFER_LENGTH} bytes")
            runs.append(run)
            done += run[1]

        def unmap() -> None:
            adapter.flush_adapter_buffers(mdl, base, start, BUFFER_LENGTH, write)
            at_dispatch(stage, adapter.free_map_registers, base, count)

        return MappedRuns(runs, unmap)

    @staticmethod
    def _channel(stage: Stage, count: int) -> MapRegisterBase:
        bases: list[MapRegisterBase] = []

        def control(_device: Any, base: MapRegisterBase, _context: Any) -> int:
            bases.append(base)
            return DEALLOCATE_OBJECT_KEEP_REGISTERS

        routine = stage.adapter.allocate_adapter_channel
        _require(at_dispatch(stage, routine, object(), count, control), "AllocateAdapterChannel")
        if not bases:
            raise NotGiven(WAITS, "AllocateAdapterChannel waits for map registers")
        return bases[0]


class ScatterGatherMethod:
    """A scatter/gather list of the whole buffer."""

    take = staticmethod(take_described)

    def map(self, stage: Stage, taken: Taken, write: bool) -> MappedRuns:
        """Get the list; the device is told its elements."""
        lists: list[ScatterGatherList] = []
        routine = stage.adapter.get_scatter_gather_list
        status = at_dispatch(stage, routine, taken.mdl, write, lists.append)
        _require(status, "GetScatterGatherList")
        if not lists:
            raise NotGiven(WAITS, "GetScatterGatherList waits for map registers")
        put = stage.adapter.put_scatter_gather_list
        return MappedRuns(lists[0].elements, lambda: at_dispatch(stage, put, lists[0]))


class PhysicalMethod:
    """The physical address of each page, without asking any adapter."""

    take = staticmethod(take_described)

    def map(self, stage: Stage, taken: Taken, write: bool) -> MappedRuns:
        """Ask MmGetPhysicalAddress for each page."""
        mdl, physical = taken.mdl, stage.adapter.physical
        assert mdl is not None
        runs = []
        for offset in range(0, BUFFER_LENGTH, PAGE_SIZE):
            if mdl.buffer is None:
                address = get_physical_address(
                    stage.processor, physical, mdl.virtual_address + offset
                )
            else:
                buffer: Any = mdl.buffer
                address = get_physical_address(stage.processor, physical, buffer) + offset
            runs.append((address, PAGE_SIZE))
        return MappedRuns(runs, lambda: None)


COMMON_BUFFER: Final = "common buffer"
MAP_TRANSFER: Final = "MapTransfer"
SCATTER_GATHER: Final = "scatter/gather"
PHYSICAL: Final = "physical address"

METHODS: Final[Mapping[str, Callable[[], Method]]] = {
    COMMON_BUFFER: CommonBufferMethod,
    MAP_TRANSFER: MapTransferMethod,
    SCATTER_GATHER: ScatterGatherMethod,
    PHYSICAL: PhysicalMethod,
}


def keep_all_map_registers(stage: Stage) -> None:
    """Have another driver keep every map register there is."""
    routine = stage.adapter.allocate_adapter_channel
    at_dispatch(
        stage,
        routine,
        object(),
        stage.adapter.map_registers,
        lambda *_: DEALLOCATE_OBJECT_KEEP_REGISTERS,
    )
