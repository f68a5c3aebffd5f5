"""DMA adapters: how a driver has its device reach memory.

Three ways lead there, each with its own calls: common buffers, which both share; scatter/gather
lists of whole buffers; and channels, whose transfers are mapped run by run.

Rules: common buffers, and the adapter itself, at PASSIVE_LEVEL; lists and channels at
DISPATCH_LEVEL; transfers at or below it. What is called back is called at DISPATCH_LEVEL.
Spec: WDK, IoGetDmaAdapter, DMA_OPERATIONS, PutDmaAdapter; bug check 0xE6; docs/dma.md.
"""

from typing import Any, Final, NamedTuple

from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_channel import AdapterChannels
from kernel_proc.memory.dma_common_buffer import CommonBuffer as CommonBuffer
from kernel_proc.memory.dma_common_buffer import CommonBuffers
from kernel_proc.memory.dma_mapping import DmaCore
from kernel_proc.memory.dma_scatter_gather import ScatterGatherList as ScatterGatherList
from kernel_proc.memory.dma_scatter_gather import ScatterGatherLists
from kernel_proc.memory.dma_transfer import AdapterTransfers
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.map_registers import DEFAULT_MAP_REGISTERS
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.segment import PAGE_SIZE

DEFAULT_MAXIMUM_LENGTH: Final = (2 << 30) - 1


class DeviceDescription(NamedTuple):
    """What a driver says of its device (WDK: DEVICE_DESCRIPTION): all are bus masters."""

    dma_64_bit_addresses: bool = True
    maximum_length: int = DEFAULT_MAXIMUM_LENGTH


class DmaAdapter:
    """One device's adapter; its calls are those of DMA_OPERATIONS, each explained at its own part.

    `map_registers` is how many pages may be copied at a time. `double_buffering` is what the
    verifier does with mapped memory unless it is told not to.
    """

    def __init__(
        self,
        processor: Processor,
        bus: Bus,
        kernel_memory: KernelMemory,
        map_registers: int = DEFAULT_MAP_REGISTERS,
        *,
        dma_64_bit_addresses: bool = True,
        double_buffering: bool = True,
    ) -> None:
        self._core = core = DmaCore(
            processor,
            bus,
            kernel_memory,
            map_registers,
            dma_64_bit_addresses=dma_64_bit_addresses,
            double_buffering=double_buffering,
        )
        self.physical = core.physical
        self._buffers = buffers = CommonBuffers(core)
        self._lists = lists = ScatterGatherLists(core)
        self._channels = channels = AdapterChannels(core)
        transfers = AdapterTransfers(core)
        self.allocate_common_buffer = buffers.allocate
        self.free_common_buffer = buffers.free
        self.get_scatter_gather_list = lists.get
        self.put_scatter_gather_list = lists.put
        self.allocate_adapter_channel = channels.allocate
        self.free_adapter_channel = channels.free_channel
        self.free_map_registers = channels.free_registers
        self.map_transfer = transfers.map
        self.flush_adapter_buffers = transfers.flush

    @property
    def map_registers(self) -> int:
        """How many map registers one request may have (WDK: NumberOfMapRegisters)."""
        return self._core.registers.maximum

    def reserve(self) -> bool:
        """Take the memory of map registers, and of what the verifier copies through, beforehand.

        False if there is none for the registers. Without this it is taken at first use.
        """
        core = self._core
        if not core.registers.reserve(core.may_wait):
            return False
        if core.guards is not None:
            core.guards.reserve(core.may_wait)
        return True

    def put_adapter(self) -> None:
        """Give the adapter up; it must hold nothing (PutDmaAdapter)."""
        core = self._core
        core.rules.at_most(DISPATCH_LEVEL, "PutDmaAdapter")
        for part in (self._buffers, self._channels, self._lists):
            part.require_none_left()
        core.rules.released = True
        if not (self._buffers or self._channels or self._channels.kept or self._lists):
            core.registers.close()
            if core.guards is not None:
                core.guards.close()

    def inspect(self) -> dict[str, Any]:
        """Return what the adapter holds."""
        core = self._core
        return {
            "common_buffers": len(self._buffers),
            "scatter_gather_lists": len(self._lists),
            "channels": len(self._channels),
            "map_registers": core.registers.maximum,
            "map_registers_left": core.registers.left,
            "requests_waiting": core.registers.waiting,
            "verified_pages_left": core.guards.left if core.guards is not None else 0,
        }


def get_dma_adapter(
    processor: Processor,
    bus: Bus,
    kernel_memory: KernelMemory,
    description: DeviceDescription,
    most_map_registers: int = DEFAULT_MAP_REGISTERS,
) -> DmaAdapter | None:
    """Return an adapter with its map registers, or None: there is no memory for them.

    It may have fewer than a transfer of `maximum_length` takes, which the driver then splits
    (WDK: IoGetDmaAdapter).
    """
    processor.require_irql(PASSIVE_LEVEL, "IoGetDmaAdapter")
    wanted = description.maximum_length // PAGE_SIZE + 2
    adapter = DmaAdapter(
        processor,
        bus,
        kernel_memory,
        min(wanted, most_map_registers),
        dma_64_bit_addresses=description.dma_64_bit_addresses,
    )
    return adapter if adapter.reserve() else None
