"""Where a cell of the experiment `dma-api` plays: a bus, its device, memory of kernel and user.

The memory a driver or user has lies above 4 GiB, as most of a machine's does. Below it lie the map
registers, what common buffers for narrow devices come from, and memory of others, in which a wrong
address shows.

Rules: one stage to a machine; `run` from outside it, the rest in a thread.
"""

import mmap
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from kernel_proc.devices.bus_master import BusMaster
from kernel_proc.machine import Machine
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.memory.physical_memory import FOUR_GIB, allocate_contiguous_memory
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from shared.segment import PAGE_SIZE

BUFFER_LENGTH: Final = 2 * PAGE_SIZE
MAP_REGISTERS: Final = 8
REFUSED: Final = "is refused"
WAITS: Final = "waits"
PART: Final = "maps a part"

_USER_ADDRESS: Final = 0x7F00_0000_0000
_OTHERS_LENGTH: Final = 64 * PAGE_SIZE
_OTHERS_BYTE: Final = 0xA5
_SEGMENT_LENGTH: Final = 2 << 20
_CALLS: Final = (
    "allocate_common_buffer",
    "get_scatter_gather_list",
    "put_scatter_gather_list",
    "allocate_adapter_channel",
    "map_transfer",
    "flush_adapter_buffers",
    "free_map_registers",
)


class NotGiven(Exception):
    """A routine gave nothing (`outcome` REFUSED), nothing yet (WAITS), or not all (PART)."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


class Stage:
    """The machine's parts a driver and its device have to do with.

    `adapter_calls` is how often the driver has called its adapter since it was set to 0.
    """

    def __init__(
        self,
        machine: Machine,
        bits: int,
        double_buffering: bool,
        map_registers: int = MAP_REGISTERS,
    ) -> None:
        self.processor = processor = machine.processor
        self.bus = Bus(PageFrameAllocator())
        self._lane = InlineLane(processor)
        self.memory = KernelMemory(self.bus, self._lane, segment_length=_SEGMENT_LENGTH)
        self.device = BusMaster(self.bus, bits)
        self.adapter = DmaAdapter(
            processor,
            self.bus,
            self.memory,
            map_registers,
            dma_64_bit_addresses=bits == 64,
            double_buffering=double_buffering,
        )
        self.adapter_calls = 0
        for name in _CALLS:
            setattr(self.adapter, name, self._counted(getattr(self.adapter, name)))
        self.process = KProcess(processor, "program", os.getpid())
        self.process.address_space = space = AddressSpace(self.process, self._lane, bus=self.bus)
        self._arenas = ArenaTable(space, self._lane, MemoryQuota(1 << 30))
        self._others: KernelBuffer | None = None
        self._mapping: mmap.mmap | None = None
        self._spare: list[KernelBuffer] = []
        self.user_address = _USER_ADDRESS

    def _counted(self, routine: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(routine)
        def counted(*arguments: Any) -> Any:
            self.adapter_calls += 1
            return routine(*arguments)

        return counted

    def prepare(self) -> None:
        """Lay the memory out: others' first, then what the adapter takes, then the user's."""
        self._others = self.memory.allocate_contiguous(_OTHERS_LENGTH)
        assert self._others is not None
        self._others.view[:] = bytes([_OTHERS_BYTE]) * _OTHERS_LENGTH
        self.adapter.reserve()
        frames = self.bus.frames
        low = FOUR_GIB // PAGE_SIZE - frames.used
        assert frames.allocate_contiguous(low) is not None
        grant = self._arenas.allocate(BUFFER_LENGTH)
        self._mapping = mmap.mmap(grant.descriptor, grant.length)
        os.close(grant.descriptor)
        self._arenas.mapped(grant.arena_id, _USER_ADDRESS)
        spare = allocate_contiguous_memory(self.processor, self.memory, 1, lowest=FOUR_GIB)
        assert spare is not None
        self._spare.append(spare)

    def use_up_low_memory(self) -> None:
        """Let others have all kernel memory below 4 GiB, down to the last page."""
        low = range(FOUR_GIB // PAGE_SIZE)
        while True:
            page = self.memory.allocate_contiguous(PAGE_SIZE, frames=low, may_wait=False)
            if page is None:
                return
            self._spare.append(page)

    @property
    def user_view(self) -> memoryview:
        """The buffer as the user has it mapped."""
        assert self._mapping is not None
        return memoryview(self._mapping)[:BUFFER_LENGTH]

    @property
    def overwritten(self) -> int:
        """How many bytes of others' memory are not what they were."""
        assert self._others is not None
        return _OTHERS_LENGTH - bytes(self._others.view).count(_OTHERS_BYTE)

    def run(self, irql: int, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a driver in a thread of the user's process at a level; a refusal is its outcome."""
        found: dict[str, Any] = {}

        def thread() -> None:
            self.prepare()
            old = self.processor.raise_irql(irql)
            try:
                found.update(body())
            except NotGiven as one:
                found.update(outcome=one.outcome, seen={"why": str(one)})
            self.processor.lower_irql(old)

        one = create_system_thread(self.processor, thread, process=self.process)
        self.processor.run_until(lambda: one.ended)
        return found

    def close(self) -> None:
        """Give back what the system lent."""
        self._arenas.close()
        self.memory.close()
