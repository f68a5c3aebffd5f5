"""The arenas of one process: made here, handed out by descriptor, mapped by the user.

An arena lives in three steps: granted (the kernel has memory and view), placed (the user told
where it mapped it), freed. What an MDL has locked is freed with the first request that comes
after its unlocking.

Rules: kernel threads at PASSIVE_LEVEL, which may wait; `mapped` and `inspect` do not wait. Close
the table before its lane. A user that breaks rules gets a status, never an exception.
Spec: docs/arenas-and-mdls.md.
"""

import ctypes
import errno
import itertools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.bus import Bus, BusSegment
from kernel_proc.memory.page_frames import FrameRun
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_NO_MEMORY,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
)
from shared.segment import PAGE_SIZE, create_segment, map_segment, round_to_pages

DEFAULT_ARENA_QUOTA: Final = 256 << 20
DEFAULT_ARENA_COUNT: Final = 256  # each holds two descriptors here and one at its user

_madvise: Final = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_ENDING: Final = "the process is ending"
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class ArenaGrant(NamedTuple):
    """The answer to a request for memory; `descriptor` is the receiver's to send and close.

    `reason` says in words what stood against it.
    """

    status: int
    arena_id: int = 0
    length: int = 0
    descriptor: int = -1
    reason: str = ""


class _Arena:
    """The kernel's own hold on one segment.

    Nothing is unmapped by hand: the last slice of `view` that dies unmaps the memory, so that
    no reader can be left with a view of nothing.
    """

    __slots__ = ("frames", "length", "mapping", "placed", "segment", "view")

    def __init__(self, mapping: mmap.mmap, length: int) -> None:
        self.length = length
        self.mapping = mapping
        self.view = memoryview(mapping)
        self.placed = False
        self.segment: BusSegment | None = None
        self.frames: list[FrameRun] = []

    def join(self, bus: Bus, descriptor: int, name: str, pause: Callable[[], object]) -> bool:
        """Give the memory frames and put it on the bus; False if either is used up."""
        runs = bus.frames.allocate_by_pieces(self.length // PAGE_SIZE, pause)
        if runs is None:
            return False
        own = os.dup(descriptor)
        self.segment = bus.add_shared(self.view, own, runs, name)
        if self.segment is None:
            os.close(own)
            bus.frames.free(runs)
            return False
        self.frames = runs
        return True

    def leave(self, bus: Bus, pause: Callable[[], object]) -> None:
        """Take the memory off the bus; nobody has it locked."""
        segment, self.segment = self.segment, None
        if segment is not None:
            bus.remove(segment)
            bus.frames.free_by_pieces(self.frames, pause)
            os.close(segment.descriptor)

    def empty(self) -> None:
        """Give the pages back to the system, also under the mappings others still have.

        Memory its user keeps mapped would otherwise be counted by no quota. A lane does it: the
        user can hold the segment's lock (by a write from a stuck page).
        """
        first = ctypes.c_char.from_buffer(self.mapping)
        # Not `mmap.madvise`, which keeps every thread of this process waiting.
        if _madvise(ctypes.addressof(first), self.length, mmap.MADV_REMOVE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class ArenaTable:
    """Grant, place and free the arenas of one process, within its quota and the kernel's."""

    def __init__(
        self,
        space: AddressSpace,
        lane: Lane,
        total: MemoryQuota,
        limit: int = DEFAULT_ARENA_QUOTA,
        most_arenas: int = DEFAULT_ARENA_COUNT,
        places: MemoryQuota | None = None,
    ) -> None:
        self.quota = MemoryQuota(limit)
        self._space = space
        self._lane = lane
        self._total = total
        self._most_arenas = most_arenas
        # The kernel's descriptors for the arenas of all processes, one each.
        self._places = places or MemoryQuota(sys.maxsize)
        self._count = 0
        self._arenas: dict[int, _Arena] = {}
        self._retired: list[_Arena] = []
        self._ids = itertools.count(1)
        self._closed = False

    def allocate(self, length: int) -> ArenaGrant:
        """Make an arena of at least `length` bytes, in whole pages."""
        self._space.process.processor.require_irql(PASSIVE_LEVEL, "arena allocation")
        if length <= 0 or length > sys.maxsize:
            return ArenaGrant(STATUS_INVALID_PARAMETER, reason=f"no arena has {length} bytes")
        self._empty_retired()
        length = round_to_pages(length)
        refused = self._charge(length)
        if refused is not None:
            return refused
        arena_id = next(self._ids)
        try:
            descriptor, mapping = self._lane.run(
                _make, f"softhca-arena-{arena_id}", length, discard=_discard
            )
        except RaisedStatus as ended:
            self._uncharge(length)
            return ArenaGrant(ended.status, reason=_ENDING)
        except OSError as error:
            self._uncharge(length)
            out_of_descriptors = error.errno in _OUT_OF_DESCRIPTORS
            if out_of_descriptors:
                return ArenaGrant(
                    STATUS_INSUFFICIENT_RESOURCES, reason="the kernel has no descriptors left"
                )
            reason = f"the system gives no {_size(length)} of shared memory: {error.strerror}"
            return ArenaGrant(STATUS_NO_MEMORY, reason=reason)
        except BaseException:
            self._uncharge(length)
            raise
        arena = _Arena(mapping, length)
        refused = self._let_in(arena, arena_id, descriptor)
        if refused is not None:
            os.close(descriptor)  # nobody else has it, so nothing needs emptying
            self._uncharge(length)
            return refused
        return ArenaGrant(STATUS_SUCCESS, arena_id, length, descriptor)

    def _let_in(self, arena: _Arena, arena_id: int, descriptor: int) -> ArenaGrant | None:
        """Put a new arena on the bus and into the table; or say why not."""
        bus = self._space.bus
        if not self._closed and bus is not None:
            name = f"arena {arena_id} of {self._space.process.name}"
            try:
                joined = arena.join(bus, descriptor, name, self._pause)
            except OSError:
                return ArenaGrant(
                    STATUS_INSUFFICIENT_RESOURCES, reason="the kernel has no descriptors left"
                )
            if not joined:
                reason = "there are no page frames, or no bus addresses, left"
                return ArenaGrant(STATUS_INSUFFICIENT_RESOURCES, reason=reason)
        if self._closed:  # the process ended while this thread waited
            if bus is not None:
                arena.leave(bus, self._pause)
            return ArenaGrant(STATUS_PROCESS_IS_TERMINATING, reason=_ENDING)
        self._arenas[arena_id] = arena
        return None

    def mapped(self, arena_id: int, base: int) -> int:
        """Note where the user mapped an arena; from then on its addresses mean that memory."""
        arena = self._arenas.get(arena_id)
        if arena is None or arena.placed:
            return STATUS_INVALID_PARAMETER
        status = self._space.add_arena(arena_id, base, arena.length, arena.view, arena.segment)
        arena.placed = status == STATUS_SUCCESS
        return status

    def free(self, arena_id: int) -> int:
        """Take an arena back; its addresses fault from now on."""
        arena = self._arenas.pop(arena_id, None)
        if arena is None:
            return STATUS_INVALID_PARAMETER
        if arena.placed:
            self._space.remove_arena(arena_id, lambda: self._retired.append(arena))
        else:
            self._retired.append(arena)
        self._empty_retired()
        return STATUS_SUCCESS

    def close(self) -> None:
        """Free every arena; the process has ended. Nothing more is granted."""
        self._closed = True
        for arena_id in list(self._arenas):
            self.free(arena_id)
        self._empty_retired()

    def inspect(self) -> dict[str, Any]:
        """Return quota and, for each arena, its length and whether it is placed."""
        return {
            "quota": self.quota.inspect(),
            "held": self._count,
            "arenas": {
                arena_id: {"length": arena.length, "placed": arena.placed}
                for arena_id, arena in self._arenas.items()
            },
        }

    def _charge(self, length: int) -> ArenaGrant | None:
        """Charge an arena to the process and the kernel; or say why it cannot be had."""
        if self._closed:
            return ArenaGrant(STATUS_PROCESS_IS_TERMINATING, reason=_ENDING)
        if self._count >= self._most_arenas:
            reason = f"this process may hold {self._most_arenas} arenas and holds {self._count}"
            return ArenaGrant(STATUS_INSUFFICIENT_RESOURCES, reason=reason)
        if not self._places.charge(1):
            reason = f"all processes together may hold {self._places.limit} arenas, and do"
            return ArenaGrant(STATUS_INSUFFICIENT_RESOURCES, reason=reason)
        refused = self._charge_bytes(length)
        if refused is None:
            self._count += 1
        else:
            self._places.give_back(1)
        return refused

    def _charge_bytes(self, length: int) -> ArenaGrant | None:
        if not self.quota.charge(length):
            reason = f"this process may hold {_beyond(self.quota, length)}"
            return ArenaGrant(STATUS_QUOTA_EXCEEDED, reason=reason)
        if not self._total.charge(length):
            self.quota.give_back(length)
            reason = f"all processes together may hold {_beyond(self._total, length)}"
            return ArenaGrant(STATUS_INSUFFICIENT_RESOURCES, reason=reason)
        return None

    def _uncharge(self, length: int) -> None:
        self._count -= 1
        self._places.give_back(1)
        self.quota.give_back(length)
        self._total.give_back(length)

    def _pause(self) -> None:
        """Let others run, in the midst of something that takes long."""
        self._space.process.processor.dispatcher.pause()

    def _empty_retired(self) -> None:
        """Empty what is freed and unlocked; only then is it no longer charged."""
        while self._retired:
            arena = self._retired.pop()
            if self._space.bus is not None:
                arena.leave(self._space.bus, self._pause)
            try:
                self._lane.run(arena.empty)
            except RaisedStatus:  # the lane was abandoned; nobody else would give the pages back
                arena.empty()
            finally:
                self._uncharge(arena.length)


def _beyond(quota: MemoryQuota, length: int) -> str:
    return (
        f"{_size(quota.limit)} of arenas and {_size(quota.used)} are held: {_size(length)} more "
        "are too many"
    )


def _size(length: int) -> str:
    whole, rest = divmod(length, 1 << 20)
    return f"{whole} MiB" if not rest else f"{length} bytes"


def _discard(made: tuple[int, mmap.mmap]) -> None:
    """Close a segment whose asker was run down; its mapping goes with the last reference."""
    os.close(made[0])


def _make(name: str, length: int) -> tuple[int, mmap.mmap]:
    """Create and map a segment; reserving the pages takes its time, so a lane does it."""
    descriptor = create_segment(name, length)
    try:
        return descriptor, map_segment(descriptor, length)
    except BaseException:
        os.close(descriptor)
        raise
