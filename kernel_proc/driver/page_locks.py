"""Memory held in place: a user's pages described by MDLs and locked, the kernel's as they are.

A user's range is described by one MDL if it can be. A longer one, or one whose pages cannot be
locked at once, is cut at addresses that are multiples of a power of two, which is halved until it
goes.

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
    MDL_PAGES_LOCKED,
    MDL_WRITE_OPERATION,
    Mdl,
    allocate_mdl,
    free_mdl,
    probe_and_lock_pages,
    unlock_pages,
)
from kernel_proc.memory.mdl_bus import mdl_bus_runs_by_pieces, reaches_device
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
_RUNS_AT_ONCE: Final = 1024  # what takes less than a millisecond
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


class KernelPages(PinnedPages):
    """Kernel memory, which lies where it is until it is freed: nothing is locked."""

    __slots__ = ("_pieces",)

    def __init__(self, processor: "Processor", buffer: "QueueBuffer") -> None:
        super().__init__(processor, [], writable=True)
        self._pieces = buffer.pieces

    def runs(self) -> Iterator[tuple[int, int]]:
        """Give where its pieces lie on the bus; others get the processor in a long list."""
        runs = (run for piece in self._pieces for run in piece.runs)
        for number, run in enumerate(runs, 1):
            yield run
            if number % _RUNS_AT_ONCE == 0:
                self._pause()


def pin_kernel(processor: "Processor", buffer: "QueueBuffer") -> PinnedPages:
    """Describe kernel memory, which needs no locking."""
    return KernelPages(processor, buffer)


class HeldPages(PinnedPages):
    """Kernel memory that whoever has it holds in place himself, without an MDL."""

    __slots__ = ("_runs",)

    def __init__(self, processor: "Processor", runs: list[tuple[int, int]]) -> None:
        super().__init__(processor, [], writable=True)
        self._runs = runs

    def runs(self) -> Iterator[tuple[int, int]]:
        """Give where it lies on the bus."""
        return iter(self._runs)


class LentPages(PinnedPages):
    """Memory whose MDL is somebody else's, who unlocks it later."""

    __slots__ = ()

    def unpin(self) -> None:
        """Forget the MDL."""
        self._mdls.clear()


def pin_mdl(processor: "Processor", mdl: Mdl, writable: bool) -> PinnedPages:
    """Take an MDL as it is; refuse with EFAULT pages no device reaches, or only to read."""
    locked = mdl.is_built_for_nonpaged_pool or bool(mdl.mdl_flags & MDL_PAGES_LOCKED)
    read_only = mdl.buffer is None and not mdl.mdl_flags & MDL_WRITE_OPERATION
    if not locked or not reaches_device(mdl) or (writable and read_only):
        address = mdl.virtual_address
        raise VerbRefused(errno.EFAULT, VerbReason.NOT_MAPPED, address, int(writable))
    return LentPages(processor, [mdl], writable)


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
    unlock_pages(mdl)
    free_mdl(mdl)


def _refusal_of(error: RaisedStatus, length: int) -> VerbRefused:
    if isinstance(error, AccessViolation):
        return VerbRefused(errno.EFAULT, VerbReason.NOT_MAPPED, error.address, int(error.is_write))
    if error.status == STATUS_WORKING_SET_QUOTA:
        pages = -(-length // PAGE_SIZE)
        return VerbRefused(errno.ENOMEM, VerbReason.TOO_MANY_LOCKED_PAGES, 0, pages)
    return VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, length)
