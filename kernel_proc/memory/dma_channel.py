"""Adapter channels: who may use the adapter, and the map registers of its transfers.

One driver has the channel at a time, the next waits; so does who has it for map registers that
others have. The execution routine says what stays taken when it returns.

Rules: DISPATCH_LEVEL. The routine is called before the call returns, or later by whoever gives the
channel or map registers back.
Spec: WDK, AllocateAdapterChannel, DRIVER_CONTROL (AdapterControl), FreeAdapterChannel,
FreeMapRegisters; docs/dma.md.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kernel_proc.memory import dma_checks
from kernel_proc.memory.dma_mapping import DmaCore
from kernel_proc.memory.dma_transfer import MapRegisterBase
from kernel_proc.memory.map_registers import MapRegister
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS

# IO_ALLOCATION_ACTION, what the execution routine returns.
KEEP_OBJECT: Final = 1  # channel and map registers stay the driver's
DEALLOCATE_OBJECT: Final = 2  # both are given back
DEALLOCATE_OBJECT_KEEP_REGISTERS: Final = 3  # the channel is: what a bus master returns

AdapterControl = Callable[[Any, MapRegisterBase, Any], int]

_ALLOCATE: Final = "AllocateAdapterChannel"


class _Request:
    __slots__ = ("base", "context", "count", "device", "routine")

    def __init__(self, device: Any, count: int, routine: AdapterControl, context: Any) -> None:
        self.device = device
        self.count = count
        self.routine = routine
        self.context = context
        self.base: MapRegisterBase | None = None


class AdapterChannels:
    """The channel of one adapter, its queue, and the map registers that drivers kept."""

    def __init__(self, core: DmaCore) -> None:
        self._core = core
        self._owner: _Request | None = None
        self._waiting: deque[_Request] = deque()
        self._kept: dict[MapRegisterBase, None] = {}
        self._serving = False

    def __len__(self) -> int:
        return len(self._waiting) + (self._owner is not None)

    @property
    def kept(self) -> int:
        """How many bases of map registers drivers have."""
        return len(self._kept)

    def allocate(
        self, device: Any, count: int, routine: AdapterControl, context: Any = None
    ) -> int:
        """Call `routine(device, map register base, context)` with channel and registers, once.

        Now or later, at DISPATCH_LEVEL; it returns one of the three actions. A device has one
        request at a time. STATUS_INSUFFICIENT_RESOURCES, and no call, when that is more map
        registers than the adapter has (AllocateAdapterChannel).
        """
        core = self._core
        core.rules.at_exactly(DISPATCH_LEVEL, _ALLOCATE)
        if self._has_one(device):
            core.rules.suspect(dma_checks.SECOND_CHANNEL, f"{_ALLOCATE} twice for {device}")
        if count > core.registers.maximum:
            what = f"{count} map registers of {core.registers.maximum} are asked for"
            core.rules.suspect(dma_checks.TOO_MANY_MAP_REGISTERS, what)
            return STATUS_INSUFFICIENT_RESOURCES
        if count and not core.registers.reserve(core.may_wait):
            return STATUS_INSUFFICIENT_RESOURCES
        self._waiting.append(_Request(device, count, routine, context))
        self._serve()
        return STATUS_SUCCESS

    def free_channel(self) -> None:
        """Give back what KEEP_OBJECT kept: the channel with its map registers.

        The next driver in the queue is called (FreeAdapterChannel).
        """
        rules = self._core.rules
        rules.at_exactly(DISPATCH_LEVEL, "FreeAdapterChannel")
        owner = self._owner
        if owner is None or owner.base is None:
            raise rules.refuse(dma_checks.CHANNELS_FREED, "the adapter channel is nobody's")
        if owner.base.transfers:
            rules.suspect(dma_checks.NOT_FLUSHED, "the adapter channel is freed before a flush")
        self._release(owner, owner.base)
        self._serve()

    def free_registers(self, base: MapRegisterBase, count: int) -> None:
        """Give back what DEALLOCATE_OBJECT_KEEP_REGISTERS kept: all of it, and once.

        Who waits for map registers is called (FreeMapRegisters).
        """
        rules = self._core.rules
        rules.at_exactly(DISPATCH_LEVEL, "FreeMapRegisters")
        if base not in self._kept or count != len(base.registers):
            what = f"{count} map registers are freed that are free, or are not so many"
            raise rules.refuse(dma_checks.MAP_REGISTERS_FREED, what)
        if base.transfers:
            rules.suspect(dma_checks.FREED_WHILE_MAPPED, "map registers are freed before a flush")
        self._free(base)
        self._serve()

    def require_none_left(self) -> None:
        """Stop the verified machine if a channel or map registers are outstanding."""
        rules = self._core.rules
        if self:
            rules.suspect(dma_checks.CHANNELS_LEFT, f"{len(self)} adapter channels are left")
        if self._kept:
            left = sum(len(base.registers) for base in self._kept)
            rules.suspect(dma_checks.MAP_REGISTERS_LEFT, f"{left} map registers are left")

    def _has_one(self, device: Any) -> bool:
        owner = self._owner
        return (owner is not None and owner.device is device) or any(
            request.device is device for request in self._waiting
        )

    def _serve(self) -> None:
        if self._serving:  # somebody that is being called gives the channel back, or asks for it
            return
        self._serving = True
        try:
            while self._owner is None and self._waiting:
                self._owner = owner = self._waiting.popleft()
                grant = partial(self._granted, owner)
                if not owner.count:
                    grant([])
                else:
                    self._core.registers.request(owner.count, self._core.may_wait, grant)
        finally:
            self._serving = False

    def _granted(self, request: _Request, registers: list[MapRegister]) -> None:
        request.base = base = MapRegisterBase(registers)
        self._kept[base] = None
        action = self._core.call(request.routine, request.device, base, request.context)
        if self._owner is request:  # it may have given the channel back itself
            if action == DEALLOCATE_OBJECT:
                self._release(request, base)
            elif action == DEALLOCATE_OBJECT_KEEP_REGISTERS:
                self._owner = None
            elif action != KEEP_OBJECT:
                raise ValueError(f"{action!r} is no action an execution routine returns")
        self._serve()

    def _release(self, owner: _Request, base: MapRegisterBase) -> None:
        if self._owner is owner:
            self._owner = None
        if base in self._kept:
            self._free(base)

    def _free(self, base: MapRegisterBase) -> None:
        del self._kept[base]
        base.freed = True
        # What was not flushed is lost, as are the bytes in its copies.
        for transfer in base.transfers:
            for piece in transfer.pieces:
                if piece.store is not None:
                    piece.store.close()
        base.transfers.clear()
        self._core.registers.give_back(base.registers)
