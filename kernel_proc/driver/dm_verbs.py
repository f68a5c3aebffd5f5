"""Device memory: alloc_dm, free_dm, copies, and regions over it.

Programs reach it by regions, whose addresses count from 0, and by copies that the kernel makes.

Rules: PASSIVE_LEVEL; reg_dm_mr and the end of a region wait for commands.
Spec: ibv_alloc_dm(3), ibv_memcpy_to_dm(3), ibv_reg_dm_mr(3); docs/device-memory.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.mr_verbs import Mr, check_access
from kernel_proc.driver.page_locks import HeldPages
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.pinned_memory import ZERO_BASED, Region
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from shared import verb_codes as code
from shared.segment import PAGE_SIZE
from shared.verb_messages import (
    DM_BYTES_AT_ONCE,
    AllocDm,
    DmBytes,
    DmContents,
    DmRange,
    Object,
    RegDmMr,
    Registered,
)
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_LOG_PAGE: Final = PAGE_SIZE.bit_length() - 1


class DeviceMemory:
    """A part of the device memory, and how often it is open: more than once if imported.

    `lost` once the HCA may use it although its region is gone.
    """

    __slots__ = ("buffer", "length", "lost", "openings")

    def __init__(self, buffer: "QueueBuffer", length: int) -> None:
        self.buffer = buffer
        self.length = length
        self.lost = False
        self.openings = 0

    def require_range(self, offset: int, length: int) -> None:
        """Refuse with EINVAL what does not lie inside."""
        if offset + length > self.length:
            raise VerbRefused(
                errno.EINVAL, VerbReason.OUTSIDE_DEVICE_MEMORY, offset + length, self.length
            )

    def pieces(self, offset: int, length: int) -> "Iterator[memoryview]":
        """Give the bytes of a range, page by page."""
        pages = self.buffer.views()
        for number, place, size in _pieces(offset, length):
            yield pages[number][place : place + size]

    def runs(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Give where a range lies on the bus, page by page."""
        pages = self.buffer.runs
        return [(pages[number][0] + place, size) for number, place, size in _pieces(offset, length)]


class Dm(Resource):
    """An opening of a part of the device memory."""

    kind = "DM"

    __slots__ = ("memory",)

    def __init__(self, context: "Context", memory: DeviceMemory) -> None:
        super().__init__(context)
        self.memory = memory
        memory.openings += 1

    def destroy(self, driver: "HcaDriver") -> None:
        """Close it, and give the pages back with the last opening; no region is over them then."""
        memory = self.memory
        memory.openings -= 1
        if not memory.openings:
            driver.device_memory.give_back(memory.buffer, lost=memory.lost)

    def attributes(self) -> dict[str, Any]:
        """Return the length and how often it is open."""
        return {"length": self.memory.length, "opened": self.memory.openings}


def _pieces(offset: int, length: int) -> "Iterator[tuple[int, int, int]]":
    """Cut a range into pages: number, place in the page, bytes."""
    while length:
        number, place = divmod(offset, PAGE_SIZE)
        size = min(PAGE_SIZE - place, length)
        yield number, place, size
        offset += size
        length -= size


class DmMr(Mr):
    """A region over device memory."""

    __slots__ = ("dm",)

    def __init__(self, context: "Context", region: Region, offset: int, dm: Dm) -> None:
        super().__init__(context, region, offset)
        self.dm = dm

    def require_changeable(self) -> None:
        """Refuse: it is registered anew instead."""
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.REREG_OF_DEVICE_MEMORY, self.handle)

    def lose(self, driver: "HcaDriver") -> None:
        """Keep the pages from others: the HCA may go on granting them."""
        self.dm.memory.lost = True


def alloc_dm(driver: "HcaDriver", context: "Context", request: AllocDm, irp: "Irp") -> Object:
    """Allocate device memory, zeroed; no alignment beyond a page's."""
    context.require_room()
    if request.log_align > _LOG_PAGE:
        raise VerbRefused(errno.EINVAL, VerbReason.BAD_DM_ALIGNMENT, request.log_align, _LOG_PAGE)
    buffer = driver.device_memory.take(request.length)
    return Object(handle=context.add(Dm(context, DeviceMemory(buffer, request.length))))


def free_dm(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """Close device memory; the last frees it. EBUSY while a region over this opening is there."""
    context.destroy(Dm, request.handle)


def copy_to_dm(driver: "HcaDriver", context: "Context", request: DmBytes, irp: "Irp") -> None:
    """Store bytes."""
    memory = context.find(Dm, request.handle).memory
    memory.require_range(request.offset, len(request.data))
    done = 0
    for piece in memory.pieces(request.offset, len(request.data)):
        piece[:] = request.data[done : done + len(piece)]
        done += len(piece)


def copy_from_dm(
    driver: "HcaDriver", context: "Context", request: DmRange, irp: "Irp"
) -> DmContents:
    """Load bytes, as many as an answer holds at most."""
    memory = context.find(Dm, request.handle).memory
    if request.length > DM_BYTES_AT_ONCE:
        raise VerbRefused(
            errno.EINVAL, VerbReason.OUTSIDE_DEVICE_MEMORY, request.length, DM_BYTES_AT_ONCE
        )
    memory.require_range(request.offset, request.length)
    return DmContents(b"".join(map(bytes, memory.pieces(request.offset, request.length))))


def reg_dm_mr(driver: "HcaDriver", context: "Context", request: RegDmMr, irp: "Irp") -> Registered:
    """Register a part of device memory: WRITE_MTT, SW2HW_MPT. Its addresses count from 0."""
    check_access(request.access)
    if not request.access & ZERO_BASED:
        raise VerbRefused(errno.EINVAL, VerbReason.DEVICE_MEMORY_IS_ZERO_BASED, 0, request.access)
    if not request.length:
        raise VerbRefused(errno.EINVAL, VerbReason.LENGTH_ZERO)
    pd, dm = context.find(Pd, request.pd), context.find(Dm, request.dm)
    dm.memory.require_range(request.offset, request.length)
    context.require_room()
    with context.holding(pd, dm):
        try:
            region = driver.regions.register_pages(
                context,
                HeldPages(driver.processor, dm.memory.runs(request.offset, request.length)),
                request.offset % PAGE_SIZE,
                request.length,
                access=request.access,
                pdn=pd.pdn,
            )
        except VerbRefused as refusal:
            dm.memory.lost |= refusal.unanswered
            raise
        mr = DmMr(context, region, request.offset, dm)
        context.add(mr, pd, dm)
    return mr.registered()


VERBS: Final = {
    code.IOCTL_ALLOC_DM: Verb(alloc_dm, AllocDm),
    code.IOCTL_FREE_DM: Verb(free_dm, Object),
    code.IOCTL_COPY_TO_DM: Verb(copy_to_dm, DmBytes),
    code.IOCTL_COPY_FROM_DM: Verb(copy_from_dm, DmRange),
    code.IOCTL_REG_DM_MR: Verb(reg_dm_mr, RegDmMr),
}
