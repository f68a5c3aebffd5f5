"""Memory that is not to be had: of the HCA, map registers, locked pages, pool, arenas.

What is replaced in a module or a class is replaced for every machine of this process; a kernel
process has one.

Spec: docs/memory-registration.md; docs/limits.md.
"""

from collections.abc import Callable
from typing import Any

from kernel_proc.driver import page_locks
from kernel_proc.fault_board.kernel_injection import KernelInjection, living_hca
from kernel_proc.fault_board.kernel_parts import names
from kernel_proc.faults.overrides import Overrides
from kernel_proc.memory.map_registers import MapRegisters
from kernel_proc.memory.mdl import Mdl
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_WORKING_SET_QUOTA


class HcaMemoryFails(KernelInjection):
    """The allocator of memory that the HCA may reach gives nothing: mailboxes, ICM, buffers."""

    def begin(self) -> None:
        """Refuse without an HCA."""
        living_hca(self.parts)

    def install(self, overrides: Overrides) -> None:
        """Give nothing in the allocator's place."""
        assert self.parts.hca is not None

        def make(allocate: Callable[..., Any]) -> Callable[..., Any]:
            def allocate_or_not(*arguments: Any, **named: Any) -> Any:
                return None if self.active.strikes() else allocate(*arguments, **named)

            return allocate_or_not

        for allocator in ("allocate_contiguous", "allocate_pages"):
            overrides.replace(self.parts.hca.memory, allocator, make)


class MapRegistersUsedUp(KernelInjection):
    """No DMA adapter has a map register left: a request that takes one is refused at once."""

    def begin(self) -> None:
        """Refuse without an HCA: there is no memory for map registers, either."""
        living_hca(self.parts)

    def install(self, overrides: Overrides) -> None:
        """Have the registers of every adapter be without memory."""
        active = self.active

        def make(reserve: Callable[[MapRegisters, bool], bool]) -> Callable[..., bool]:
            def reserve_or_not(registers: MapRegisters, may_wait: bool) -> bool:
                return not active.strikes() and reserve(registers, may_wait)

            return reserve_or_not

        overrides.replace(MapRegisters, "reserve", make)


class PageLockFails(KernelInjection):
    """The pages of a user's memory cannot be locked: its process may lock no more."""

    def install(self, overrides: Overrides) -> None:
        """Raise in the place of MmProbeAndLockPages; other machines are left alone."""

        def make(lock: Callable[[Mdl, int, int], None]) -> Callable[[Mdl, int, int], None]:
            def lock_or_not(mdl: Mdl, mode: int, operation: int) -> None:
                ours = mdl.processor is self.parts.processor
                fault = self.active.fault
                if ours and self.parts.is_of_caller(fault) and self.active.strikes():
                    raise RaisedStatus(STATUS_WORKING_SET_QUOTA, "a fault was set")
                lock(mdl, mode, operation)

            return lock_or_not

        overrides.replace(page_locks, "probe_and_lock_pages", make)


class PoolFails(KernelInjection):
    """The quota of nonpaged pool of a process is used up: no IRP, no packet can be charged."""

    def install(self, overrides: Overrides) -> None:
        """Charge nothing to the processes it is about, those that come later included."""

        def make(charge: Callable[[KProcess, int], bool]) -> Callable[[KProcess, int], bool]:
            def charge_or_not(process: KProcess, length: int) -> bool:
                ours = self.parts.is_of_process(self.active.fault, process)
                return not (ours and self.active.strikes()) and charge(process, length)

            return charge_or_not

        overrides.replace(KProcess, "charge_pool", make)


class ArenaFails(KernelInjection):
    """The quota of shared memory of a process is used up."""

    def install(self, overrides: Overrides) -> None:
        """Charge nothing to the arenas of processes it is about, those that come later included."""

        def make(charge: Callable[[MemoryQuota, int], bool]) -> Callable[[MemoryQuota, int], bool]:
            def charge_or_not(quota: MemoryQuota, length: int) -> bool:
                ours = any(
                    session.arenas.quota is quota and names(self.active.fault, session)
                    for session in self.parts.server.sessions
                )
                return not (ours and self.active.strikes()) and charge(quota, length)

            return charge_or_not

        overrides.replace(MemoryQuota, "charge", make)
