"""The pages of an MDL as a device sees them: frames, and runs of bus addresses.

Arena pages have their frames since they were granted, private pages get them when they are locked,
and a page that is locked twice has one for each. Runs are merged only where both the frames and
the bus addresses are in a row.

Rules: `lock_frames` <= APC_LEVEL, in the context of the process; the rest at any IRQL.
Spec: WDK, MmGetMdlPfnArray; docs/bus-addresses.md.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel_proc.memory.address_space import AddressSpace, Piece
from kernel_proc.memory.bus import BusRun, FrameMap
from kernel_proc.memory.kernel_memory import KernelBuffer
from kernel_proc.memory.page_frames import FrameRun
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_INVALID_ADDRESS
from shared.segment import PAGE_SIZE

if TYPE_CHECKING:
    from kernel_proc.memory.mdl import Mdl


def lock_frames(mdl: "Mdl", space: AddressSpace) -> None:
    """Give the private pages of a buffer their frames; may wait.

    Raise STATUS_INSUFFICIENT_RESOURCES when there are no frames, or no bus addresses, left.
    """
    assert space.bus is not None
    pages = sum(_pages(start, end) for arena, start, end in mdl.pieces if arena is None)
    if not pages:
        return
    if space.private_segment() is None:
        raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, "no bus addresses are left")
    frames = space.bus.frames.allocate_by_pieces(pages, mdl.processor.dispatcher.pause)
    if frames is None:
        raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, f"{pages} page frames")
    mdl.frames = frames


def unlock_frames(mdl: "Mdl") -> None:
    """Take the frames of private pages back; the MDL is still its process's."""
    frames, mdl.frames = mdl.frames, []
    assert mdl.process is not None
    mdl.process.address_space.bus.frames.free(frames)


def mdl_bus_runs(mdl: "Mdl") -> list[BusRun]:
    """Return the buffer as (bus address, length), in order and merged.

    Raise STATUS_INVALID_ADDRESS for memory that no device reaches: pool, pages that are not
    locked, a process without a bus.
    """
    pieces = list(mdl_bus_runs_by_pieces(mdl))
    return pieces[0] if len(pieces) == 1 else [run for piece in pieces for run in piece]


def mdl_bus_runs_by_pieces(mdl: "Mdl") -> Iterator[list[BusRun]]:
    """Give the same by pieces of at most RUNS_AT_ONCE runs, some empty: there can be very many.

    The buffer stays locked between two pieces.
    """
    if isinstance(mdl.buffer, KernelBuffer):
        yield mdl.buffer.bus_runs(mdl.byte_count)
        return
    if not mdl.pieces or mdl.process is None:
        raise RaisedStatus(STATUS_INVALID_ADDRESS, f"no device reaches {mdl!r}")
    frames = mdl.frames
    for piece in mdl.pieces:
        yield from _piece_runs(mdl, piece, frames)
        if piece[0] is None and len(mdl.pieces) > 1:
            frames = _without(frames, _pages(piece[1], piece[2]))


def reaches_device(mdl: "Mdl") -> bool:
    """Tell whether a device reaches the buffer itself; pool it does not."""
    return isinstance(mdl.buffer, KernelBuffer) or mdl.buffer is None


def _piece_runs(mdl: "Mdl", piece: Piece, frames: list[FrameRun]) -> Iterator[list[BusRun]]:
    arena, start, end = piece
    if arena is not None:
        if arena.segment is None:
            raise RaisedStatus(STATUS_INVALID_ADDRESS, f"no device reaches {mdl!r}")
        return arena.segment.bus_runs_by_pieces(start - arena.base, end - start)
    assert mdl.process is not None
    segment = mdl.process.address_space.private_segment()
    if segment is None or not frames:
        raise RaisedStatus(STATUS_INVALID_ADDRESS, f"no device reaches {mdl!r}")
    address = segment.address(start)
    return FrameMap(frames).split_by_pieces(address, start % PAGE_SIZE, end - start)


def _pages(start: int, end: int) -> int:
    return (end + PAGE_SIZE - 1) // PAGE_SIZE - start // PAGE_SIZE


def _without(frames: list[FrameRun], count: int) -> list[FrameRun]:
    """Return what follows the first `count` frames."""
    for index, run in enumerate(frames):
        if count < run.count:
            return [FrameRun(run.start + count, run.count - count), *frames[index + 1 :]]
        count -= run.count
    return []
