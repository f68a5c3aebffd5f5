"""Memory descriptor lists: a buffer's pages, locked, and mapped for the kernel.

A user buffer is locked by `probe_and_lock_pages`; a pool block needs no locking and is described
by `build_for_nonpaged_pool`. Either is then reached through `map_locked_pages`.

Rules: <= DISPATCH_LEVEL; probing pageable memory <= APC_LEVEL, in the context of its process.
Spec: WDK: Using MDLs, IoAllocateMdl, MmProbeAndLockPages, MmBuildMdlForNonPagedPool,
MmMapLockedPagesSpecifyCache, MmUnlockPages, IoFreeMdl; bug checks 0x76, 0xCB, 0xC4.
"""

from typing import Any, Final, Protocol

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.address_space import AddressSpace, Piece
from kernel_proc.memory.arena_mapping import ArenaMapping
from kernel_proc.memory.kernel_memory import KernelBuffer
from kernel_proc.memory.mdl_bus import lock_frames, unlock_frames
from kernel_proc.memory.mdl_bus import mdl_bus_runs as mdl_bus_runs
from kernel_proc.memory.mdl_checks import (
    LOCKED_TOO_HIGH,
    MAPPED_TOO_HIGH,
    MAPPED_UNLOCKED,
    PAGED_POOL_AS_NONPAGED,
    UNLOCKED_TOO_HIGH,
    UNMAPPED_TOO_HIGH,
    fault,
    refuse_level,
    refuse_lock,
    refuse_unlock,
    violation,
)
from kernel_proc.memory.mdl_mapping import SystemMapping
from kernel_proc.memory.page_frames import FrameRun
from kernel_proc.memory.pool import PAGED_POOL, PoolBlock
from kernel_proc.scheduling.bugcheck import (
    DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS,
    PROCESS_HAS_LOCKED_PAGES,
)
from kernel_proc.scheduling.call_stack import calling_driver
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_WORKING_SET_QUOTA
from shared.segment import PAGE_SIZE

MDL_MAPPED_TO_SYSTEM_VA: Final = 0x0001
MDL_PAGES_LOCKED: Final = 0x0002
MDL_SOURCE_IS_NONPAGED_POOL: Final = 0x0004
MDL_ALLOCATED_FIXED_SIZE: Final = 0x0008
MDL_WRITE_OPERATION: Final = 0x0080

IO_READ_ACCESS: Final = 0  # the device or driver reads the pages
IO_WRITE_ACCESS: Final = 1
IO_MODIFY_ACCESS: Final = 2

LARGEST_MDL: Final = (2 << 30) - PAGE_SIZE


class Mdl:
    """One buffer; the fields are the MDL's.

    `buffer` is the pool block or kernel buffer described, None for a user buffer. `process` is
    whose pages are locked, None while they are not and for kernel memory; `locked_by`, which only
    the verifier notes, the driver's code that did it. `pieces` are the arenas and private memory
    the locked buffer lies in, `frames` those of its private pages.
    """

    __slots__ = (
        "buffer",
        "byte_count",
        "byte_offset",
        "frames",
        "locked_arenas",
        "locked_by",
        "mapped_system_va",
        "mdl_flags",
        "next",
        "pieces",
        "process",
        "processor",
        "start_va",
    )

    def __init__(
        self,
        processor: Processor,
        address: int,
        length: int,
        buffer: PoolBlock | KernelBuffer | None,
    ) -> None:
        self.processor = processor
        self.buffer = buffer
        self.start_va = address & -PAGE_SIZE
        self.byte_offset = address & (PAGE_SIZE - 1)
        self.byte_count = length
        self.next: Mdl | None = None
        self.mdl_flags = MDL_ALLOCATED_FIXED_SIZE
        self.process: KProcess | None = None
        self.mapped_system_va: SystemMapping | None = None
        self.locked_arenas: list[ArenaMapping] = []
        self.pieces: list[Piece] = []
        self.frames: list[FrameRun] = []
        self.locked_by = ""

    @property
    def virtual_address(self) -> int:
        """The buffer's address (WDK: MmGetMdlVirtualAddress)."""
        return self.start_va + self.byte_offset

    @property
    def page_count(self) -> int:
        """Pages the buffer spans (WDK: ADDRESS_AND_SIZE_TO_SPAN_PAGES)."""
        return (self.byte_offset + self.byte_count + PAGE_SIZE - 1) // PAGE_SIZE

    @property
    def is_built_for_nonpaged_pool(self) -> bool:
        """Whether the MDL describes pool, which is never locked or unlocked."""
        return bool(self.mdl_flags & MDL_SOURCE_IS_NONPAGED_POOL)

    @property
    def is_nonpageable(self) -> bool:
        """Whether the pages can be locked at DISPATCH_LEVEL."""
        return self.buffer is not None and self.buffer.pool_type != PAGED_POOL

    def __repr__(self) -> str:
        return (
            f"<MDL {self.virtual_address:#x}, {self.byte_count} bytes, flags {self.mdl_flags:#x}>"
        )


class MdlOwner(Protocol):
    """What an MDL can be attached to: an IRP."""

    mdl_address: Any


def allocate_mdl(
    processor: Processor,
    buffer: int | PoolBlock | KernelBuffer,
    length: int,
    irp: MdlOwner | None = None,
    *,
    secondary_buffer: bool = False,
) -> Mdl | None:
    """Describe `length` bytes at a user address or in kernel memory; None if that is too long.

    With an IRP the MDL becomes its MdlAddress or, as a secondary buffer, the end of its chain
    (WDK: IoAllocateMdl).
    """
    processor.require_irql(DISPATCH_LEVEL, "IoAllocateMdl")
    if not 0 <= length <= LARGEST_MDL:
        return None
    if isinstance(buffer, PoolBlock | KernelBuffer):
        mdl = Mdl(processor, buffer.address, length, buffer)
    else:
        mdl = Mdl(processor, buffer, length, None)
    if irp is not None:
        if secondary_buffer and irp.mdl_address is not None:
            _last_of_chain(irp.mdl_address).next = mdl
        else:
            irp.mdl_address = mdl
    return mdl


def build_for_nonpaged_pool(mdl: Mdl) -> None:
    """Describe pool or kernel memory, which need no lock (WDK: MmBuildMdlForNonPagedPool)."""
    processor = mdl.processor
    processor.require_irql(DISPATCH_LEVEL, "MmBuildMdlForNonPagedPool")
    block = mdl.buffer
    if block is None or mdl.byte_count > len(block):
        fault(mdl, "MmBuildMdlForNonPagedPool of memory that is no pool")
    if processor.verifier and block.pool_type == PAGED_POOL:
        violation(mdl, PAGED_POOL_AS_NONPAGED, "paged pool described as nonpaged")
    mdl.mapped_system_va = SystemMapping(_bytes_of(block)[: mdl.byte_count])
    mdl.mdl_flags |= MDL_SOURCE_IS_NONPAGED_POOL


def probe_and_lock_pages(mdl: Mdl, mode: int, operation: int) -> None:
    """Lock the buffer's pages for `operation`, or raise AccessViolation.

    User memory is that of the current thread's process, which may lock a bounded number of
    pages: STATUS_WORKING_SET_QUOTA is raised beyond (WDK: MmProbeAndLockPages).
    """
    processor = mdl.processor
    if processor.irql > (DISPATCH_LEVEL if mdl.is_nonpageable else APC_LEVEL):
        refuse_level(mdl, LOCKED_TOO_HIGH, "MmProbeAndLockPages")
    if mdl.mdl_flags & (MDL_SOURCE_IS_NONPAGED_POOL | MDL_PAGES_LOCKED):
        refuse_lock(mdl)
    if mdl.buffer is not None:
        if mode == USER_MODE:
            raise AccessViolation(mdl.virtual_address, operation != IO_READ_ACCESS, "kernel memory")
    else:
        _lock_user_pages(mdl, operation != IO_READ_ACCESS)
    mdl.mdl_flags |= MDL_PAGES_LOCKED
    if operation != IO_READ_ACCESS:
        mdl.mdl_flags |= MDL_WRITE_OPERATION


def map_locked_pages(mdl: Mdl) -> SystemMapping:
    """Return the kernel's way to the pages; the same one until they are unmapped or unlocked.

    WDK: MmMapLockedPagesSpecifyCache, MmGetSystemAddressForMdlSafe.
    """
    processor = mdl.processor
    if processor.irql > DISPATCH_LEVEL:
        refuse_level(mdl, MAPPED_TOO_HIGH, "MmMapLockedPagesSpecifyCache")
    if mdl.mapped_system_va is not None:
        return mdl.mapped_system_va
    if not mdl.mdl_flags & MDL_PAGES_LOCKED:
        if processor.verifier:
            violation(mdl, MAPPED_UNLOCKED, "mapping of pages that are not locked")
        fault(mdl, "mapping of pages that are not locked")
    mdl.mapped_system_va = mapping = _make_mapping(mdl)
    mdl.mdl_flags |= MDL_MAPPED_TO_SYSTEM_VA
    return mapping


def unmap_locked_pages(mdl: Mdl) -> None:
    """End a mapping; what still uses it faults (WDK: MmUnmapLockedPages)."""
    if mdl.processor.irql > DISPATCH_LEVEL:
        refuse_level(mdl, UNMAPPED_TOO_HIGH, "MmUnmapLockedPages")
    if mdl.mdl_flags & MDL_MAPPED_TO_SYSTEM_VA and mdl.mapped_system_va is not None:
        mdl.mapped_system_va.end()
        mdl.mapped_system_va = None
        mdl.mdl_flags &= ~MDL_MAPPED_TO_SYSTEM_VA


def unlock_pages(mdl: Mdl) -> None:
    """Unlock, and unmap what is mapped; any thread (WDK: MmUnlockPages)."""
    processor = mdl.processor
    if processor.irql > DISPATCH_LEVEL:
        refuse_level(mdl, UNLOCKED_TOO_HIGH, "MmUnlockPages")
    if not mdl.mdl_flags & MDL_PAGES_LOCKED:
        refuse_unlock(mdl)
    unmap_locked_pages(mdl)
    if mdl.frames:
        unlock_frames(mdl)
    if mdl.process is not None:
        _let_go(mdl, mdl.process)
    mdl.mdl_flags &= ~(MDL_PAGES_LOCKED | MDL_WRITE_OPERATION)


def free_mdl(mdl: Mdl) -> None:
    """Give an MDL up; pages it left locked stay locked, as in NT (WDK: IoFreeMdl)."""
    mdl.processor.require_irql(DISPATCH_LEVEL, "IoFreeMdl")
    mapping = mdl.mapped_system_va
    if mapping is not None and not mdl.mdl_flags & MDL_PAGES_LOCKED:
        mapping.end()
        mdl.mapped_system_va = None
    mdl.next = None


def check_no_locked_pages(process: KProcess) -> None:
    """Stop the machine if a process ends while a driver has its pages locked."""
    if not process.locked_pages:
        return
    processor = process.processor
    space = process.address_space
    left = next(iter(space.locked_mdls), None) if isinstance(space, AddressSpace) else None
    detail = f"{process} ends with {process.locked_pages} locked pages, {left!r}"
    if processor.verifier and left is not None:
        processor.bug_check(
            DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS,
            p3=left.virtual_address,
            p4=process.locked_pages,
            detail=f"{detail}, locked by {left.locked_by or 'the I/O manager'}",
        )
    processor.bug_check(
        PROCESS_HAS_LOCKED_PAGES, process.number, process.locked_pages, detail=detail
    )


def _last_of_chain(mdl: Mdl) -> Mdl:
    while mdl.next is not None:
        mdl = mdl.next
    return mdl


def _lock_user_pages(mdl: Mdl, is_write: bool) -> None:
    """Check every page, then count it; arenas stay until unlocked."""
    address, length = mdl.virtual_address, mdl.byte_count
    thread = mdl.processor.current_thread
    process = thread.process if thread is not None else None
    if process is None or not isinstance(process.address_space, AddressSpace):
        raise AccessViolation(address, is_write, "no process has user memory here")
    space = process.address_space
    if process.locked_pages + mdl.page_count > process.most_locked_pages:
        raise RaisedStatus(STATUS_WORKING_SET_QUOTA, f"{mdl.page_count} more pages of {process}")
    space.require_access(address, length, is_write)
    if not length:
        raise AccessViolation(address, is_write, "a buffer of no bytes")
    mdl.process = process
    mdl.pieces = space.pieces(address, length)
    process.locked_pages += mdl.page_count
    for arena, _start, _end in mdl.pieces:
        if arena is not None:
            arena.lock()
            mdl.locked_arenas.append(arena)
    if space.bus is not None:
        try:
            lock_frames(mdl, space)
        except BaseException:
            _let_go(mdl, process)
            raise
    space.locked_mdls[mdl] = None
    if mdl.processor.verifier:
        mdl.locked_by = calling_driver()


def _let_go(mdl: Mdl, process: KProcess) -> None:
    """Undo the lock of a user buffer."""
    process.locked_pages -= mdl.page_count
    process.address_space.locked_mdls.pop(mdl, None)
    for arena in mdl.locked_arenas:
        arena.unlock()
    mdl.locked_arenas.clear()
    mdl.pieces = []
    mdl.process = None


def _bytes_of(buffer: PoolBlock | KernelBuffer) -> memoryview:
    return buffer.view if isinstance(buffer, KernelBuffer) else memoryview(buffer)


def _make_mapping(mdl: Mdl) -> SystemMapping:
    address, length = mdl.virtual_address, mdl.byte_count
    if mdl.buffer is not None:
        return SystemMapping(_bytes_of(mdl.buffer)[:length])
    arenas = mdl.locked_arenas
    if len(arenas) == 1 and arenas[0].base <= address and address + length <= arenas[0].end:
        return SystemMapping(arenas[0].slice(address, address + length))
    assert mdl.process is not None
    return SystemMapping(None, mdl.process.address_space, address, length)
