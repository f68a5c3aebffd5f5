"""Memory described by MDLs and held in place: a user's pages locked, the kernel's as they are.

A range is described by one MDL if it can be. A longer one, or one whose pages cannot be locked at
once, is cut at addresses that are multiples of a power of two, which is halved until it goes.

Rules: PASSIVE_LEVEL; a user's memory in the context of its process, unlocking in any.
Spec: WinOFED hw/mthca/kernel/mt_memory.c (iobuf_register); WDK, MmProbeAndLockPages.
"""

import errno
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.mdl import (
    IO_MODIFY_ACCESS,
    IO_READ_ACCESS,
    LARGEST_MDL,
    Mdl,
    allocate_mdl,
    build_for_nonpaged_pool,
    free_mdl,
    probe_and_lock_pages,
    unlock_pages,
)
from kernel_proc.memory.mdl_bus import mdl_bus_runs_by_pieces
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_NO_MEMORY,
    STATUS_QUOTA_EXCEEDED,
    STATUS_WORKING_SET_QUOTA,
)
from shared.segment import PAGE_SIZE
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.scheduling.processor import Processor

_LARGEST_PIECE: Final = 1 << 30
_SMALLEST_PIECE: Final = 4 << 20
_TOO_MUCH_AT_ONCE: Final = frozenset(
    {
        STATUS_INSUFFICIENT_RESOURCES,
        STATUS_NO_MEMORY,
        STATUS_QUOTA_EXCEEDED,
        STATUS_WORKING_SET_QUOTA,
    }
)


class PinnedPages:
    """Memory that stays where it is until `unpin`."""

    __slots__ = ("_mdls", "_pause", "writable")

    def __init__(self, processor: "Processor", mdls: list[Mdl], writable: bool) -> None:
        self._mdls = mdls
        self._pause = processor.dispatcher.pause
        self.writable = writable

    def runs(self) -> Iterator[tuple[int, int]]:
        """Give where it lies on the bus, run by run; others get the processor in a long list."""
        pieces = chain.from_iterable(map(mdl_bus_runs_by_pieces, self._mdls))
        for number, piece in enumerate(pieces):
            if number:
                self._pause()
            yield from piece

    def unpin(self) -> None:
        """Let go of the memory; the HCA uses it no more. Doing so twice is harmless."""
        while self._mdls:
            _give_up(self._mdls.pop())


def pin_user(processor: "Processor", address: int, length: int, writable: bool) -> PinnedPages:
    """Lock a range of the calling process's memory; refuse with EFAULT or ENOMEM, nothing locked.

    The length is not 0.
    """
    mdls: list[Mdl] = []
    try:
        _lock_all(processor, mdls, address, address + length, writable)
        return PinnedPages(processor, mdls, writable)
    except BaseException as error:
        while mdls:
            _give_up(mdls.pop())
        if isinstance(error, RaisedStatus):
            raise _refusal_of(error, length) from error
        raise


def pin_kernel(processor: "Processor", buffer: "QueueBuffer") -> PinnedPages:
    """Describe kernel memory, which needs no locking."""
    mdls = []
    for block in buffer.blocks:
        mdl = allocate_mdl(processor, block, block.length)
        assert mdl is not None, "a kernel buffer is shorter than the longest MDL"
        build_for_nonpaged_pool(mdl)
        mdls.append(mdl)
    return PinnedPages(processor, mdls, writable=True)


def _lock_all(
    processor: "Processor", mdls: list[Mdl], address: int, end: int, writable: bool
) -> None:
    piece = 0  # the whole range at once
    while address < end:
        stop = min(end, (address // piece + 1) * piece) if piece else end
        try:
            mdl = _lock_piece(processor, address, stop - address, writable)
        except RaisedStatus as error:
            if error.status not in _TOO_MUCH_AT_ONCE or stop - address <= _SMALLEST_PIECE:
                raise
            piece = max(_SMALLEST_PIECE, piece // 2) if piece else _first_piece(end - address)
        else:
            mdls.append(mdl)
            address = stop


def _first_piece(length: int) -> int:
    """Return the power of two below a length that did not go at once."""
    return max(_SMALLEST_PIECE, min(_LARGEST_PIECE, 1 << (length - 1).bit_length() - 1))


def _lock_piece(processor: "Processor", address: int, length: int, writable: bool) -> Mdl:
    mdl = allocate_mdl(processor, address, length) if length <= LARGEST_MDL else None
    if mdl is None:
        raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, f"an MDL of {length} bytes")
    try:
        probe_and_lock_pages(mdl, USER_MODE, IO_MODIFY_ACCESS if writable else IO_READ_ACCESS)
    except BaseException:
        free_mdl(mdl)
        raise
    return mdl


def _give_up(mdl: Mdl) -> None:
    if not mdl.is_built_for_nonpaged_pool:
        unlock_pages(mdl)
    free_mdl(mdl)


def _refusal_of(error: RaisedStatus, length: int) -> VerbRefused:
    if isinstance(error, AccessViolation):
        return VerbRefused(errno.EFAULT, VerbReason.NOT_MAPPED, error.address, int(error.is_write))
    if error.status == STATUS_WORKING_SET_QUOTA:
        pages = -(-length // PAGE_SIZE)
        return VerbRefused(errno.ENOMEM, VerbReason.TOO_MANY_LOCKED_PAGES, 0, pages)
    return VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, length)
