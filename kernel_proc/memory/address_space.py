"""A process's user addresses as the kernel reaches them: arenas by a view, the rest by its lane.

A range may run from an arena into private memory and back; it is then moved piece by piece.

Rules: <= APC_LEVEL, in a kernel thread of that process; the thread may wait.
Spec: WDK: ProbeForRead, ProbeForWrite, Accessing User-Space Memory; docs/arenas-and-mdls.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.arena_mapping import ArenaMapping
from kernel_proc.memory.bus import Bus, BusSegment
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, KMODE_EXCEPTION_NOT_HANDLED
from kernel_proc.scheduling.irql import APC_LEVEL, irql_name
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_CONFLICTING_ADDRESSES,
    STATUS_DATATYPE_MISALIGNMENT,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_SUCCESS,
)
from shared.segment import PAGE_SIZE

if TYPE_CHECKING:
    from kernel_proc.memory.mdl import Mdl

LOWEST_USER_ADDRESS: Final = PAGE_SIZE  # the NULL page is nobody's
USER_ADDRESS_END: Final = 0x0000_8000_0000_0000

Bytes = bytes | bytearray | memoryview


Piece = tuple[ArenaMapping | None, int, int]


class AddressSpace:
    """The user half of one process's addresses; `bus` is where devices reach them, if any can."""

    def __init__(
        self,
        process: KProcess,
        lane: Lane,
        *,
        private: PrivateMemory | None = None,
        bus: Bus | None = None,
    ) -> None:
        self.process = process
        self.bus = bus
        self._private_segment: BusSegment | None = None
        self.locked_mdls: dict[Mdl, None] = {}
        self._processor = process.processor
        self._lane = lane
        self._private = private
        self._bases: list[int] = []
        self._arenas: list[ArenaMapping] = []  # in the order of `_bases`

    # Arenas

    def add_arena(
        self,
        arena_id: int,
        base: int,
        length: int,
        view: memoryview,
        segment: BusSegment | None = None,
    ) -> int:
        """Place an arena where its owner says it mapped it; refuse what cannot be there."""
        if length <= 0 or base % PAGE_SIZE or len(view) != length:
            return STATUS_INVALID_PARAMETER
        if not LOWEST_USER_ADDRESS <= base <= USER_ADDRESS_END - length:
            return STATUS_INVALID_PARAMETER
        index = bisect_right(self._bases, base)
        if index and self._arenas[index - 1].end > base:
            return STATUS_CONFLICTING_ADDRESSES
        if index < len(self._bases) and self._bases[index] < base + length:
            return STATUS_CONFLICTING_ADDRESSES
        self._bases.insert(index, base)
        self._arenas.insert(index, ArenaMapping(arena_id, base, length, view, segment))
        return STATUS_SUCCESS

    def remove_arena(
        self, arena_id: int, on_unused: Callable[[], None] = lambda: None
    ) -> ArenaMapping | None:
        """Take an arena out; `on_unused` is called once no MDL has it locked any more."""
        for index, arena in enumerate(self._arenas):
            if arena.arena_id == arena_id:
                del self._arenas[index], self._bases[index]
                arena.retire(on_unused)
                return arena
        return None

    def arena_at(self, address: int, length: int) -> ArenaMapping | None:
        """Return the arena that holds the whole range, or None."""
        index = bisect_right(self._bases, address) - 1
        if index >= 0:
            arena = self._arenas[index]
            if address < arena.end and address + length <= arena.end:
                return arena
        return None

    def arena_view(self, address: int, length: int) -> memoryview | None:
        """Return the very bytes of a range inside one arena, or None; the view is the caller's."""
        if self._processor.irql > APC_LEVEL:
            self._wrong_irql(address, False)
        if length < 0 or (arena := self.arena_at(address, length)) is None:
            return None
        return arena.slice(address, address + length)

    # The bus

    def private_segment(self) -> BusSegment | None:
        """Return the private memory as a bus segment, put on the bus when first asked for.

        None without bus or private memory, or when the bus has no numbers left; <= APC_LEVEL.
        """
        if self._private_segment is None and self.bus is not None and self._private is not None:
            name = f"private memory of {self.process.name}"
            self._settle(self.bus, self.bus.add_private(self._private.descriptor, name))
        return self._private_segment

    def _settle(self, bus: Bus, added: BusSegment | None) -> None:
        # Another thread may have been here while this one waited for the device.
        if self._private_segment is None:
            self._private_segment = added
        elif added is not None:
            bus.remove(added)

    # Access in the context of the process

    def read(self, address: int, length: int) -> bytes:
        """Return a copy of the range, or raise AccessViolation."""
        self._enter(address, length, False)
        return self.read_in_any_context(address, length)

    def write(self, address: int, data: Bytes) -> None:
        """Store `data`, or raise AccessViolation; pieces before the fault are stored."""
        self._enter(address, memoryview(data).nbytes, True)
        self.write_in_any_context(address, data)

    def probe_for_read(self, address: int, length: int, alignment: int = 1) -> None:
        """Check that the range lies in user space and is aligned; touches nothing."""
        self._enter(address, length, False, alignment)

    def probe_for_write(self, address: int, length: int, alignment: int = 1) -> None:
        """Check the same, and that every page of the range can be written."""
        self._enter(address, length, True, alignment)
        self.require_access(address, length, True)

    # Access through a locked MDL: any thread, checked at lock time to be in user space

    def read_in_any_context(self, address: int, length: int) -> bytes:
        """Read as a mapping does: no check of the thread; waits, so <= APC_LEVEL."""
        if self._processor.irql > APC_LEVEL:
            self._wrong_irql(address, False)
        if length == 0:
            return b""
        try:
            return self._read(address, length)
        except MemoryError as error:
            reason = f"no memory for a copy of {length} bytes"
            raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, reason) from error

    def _read(self, address: int, length: int) -> bytes:
        arena = self.arena_at(address, length)
        if arena is not None:
            start = address - arena.base
            return bytes(arena.view[start : start + length])
        _check_user_range(address, length, False)
        if not self._touches_arena(address, length):
            data: bytes = self._private_call(PrivateMemory.read, address, length, False)
            return data
        return b"".join(
            self._private_call(PrivateMemory.read, start, end - start, False)
            if arena is None
            else arena.slice(start, end)
            for arena, start, end in self.pieces(address, length)
        )

    def write_in_any_context(self, address: int, data: Bytes) -> None:
        """Write as a mapping does: no check of the thread; waits, so <= APC_LEVEL."""
        if self._processor.irql > APC_LEVEL:
            self._wrong_irql(address, True)
        view = memoryview(data).cast("B")
        length = len(view)
        if length == 0:
            return
        arena = self.arena_at(address, length)
        if arena is not None:
            start = address - arena.base
            arena.view[start : start + length] = view
            return
        _check_user_range(address, length, True)
        if not self._touches_arena(address, length):
            self._private_call(PrivateMemory.write, address, view, True)
            return
        for arena, start, end in self.pieces(address, length):
            part = view[start - address : end - address]
            if arena is not None:
                arena.slice(start, end)[:] = part
            else:
                self._private_call(PrivateMemory.write, start, part, True)

    def require_access(self, address: int, length: int, is_write: bool) -> None:
        """Raise AccessViolation unless the owner may touch every page of the range."""
        if length == 0:
            return
        _check_user_range(address, length, is_write)
        for arena, start, end in self.pieces(address, length):
            if arena is None:
                self._private_call(PrivateMemory.require, start, end - start, is_write, is_write)

    def pieces(self, address: int, length: int) -> list[Piece]:
        """Split a range at the borders of arenas; a piece without arena is private memory."""
        return list(self._split(address, address + length))

    def close(self) -> None:
        """Let go of the process's memory, no device using it; arenas go by `remove_arena`."""
        segment, self._private_segment = self._private_segment, None
        if segment is not None and self.bus is not None:
            self.bus.remove(segment)
        private, self._private = self._private, None
        if private is not None:
            private.close()

    def inspect(self) -> dict[str, Any]:
        """Return plain figures and one entry per arena."""
        return {
            "private_memory": self._private is not None,
            "locked_mdls": len(self.locked_mdls),
            "arenas": [
                {"id": a.arena_id, "base": a.base, "length": a.end - a.base, "locks": a.locks}
                for a in self._arenas
            ],
        }

    def _touches_arena(self, address: int, length: int) -> bool:
        index = bisect_left(self._bases, address + length)
        return index > 0 and self._arenas[index - 1].end > address

    def _split(self, address: int, end: int) -> Iterator[Piece]:
        index = bisect_right(self._bases, address) - 1
        if index < 0 or self._arenas[index].end <= address:
            index += 1
        while address < end:
            if index == len(self._arenas) or self._bases[index] >= end:
                yield None, address, end
                return
            arena = self._arenas[index]
            if address < arena.base:
                yield None, address, arena.base
                address = arena.base
            stop = min(end, arena.end)
            yield arena, address, stop
            address = stop
            index += 1

    def _private_call(
        self,
        routine: Callable[..., Any],
        address: int,
        argument: int | memoryview,
        is_write: bool,
        *more: bool,
    ) -> Any:
        private = self._private
        if private is None:
            raise AccessViolation(address, is_write, "no private memory was handed over")
        try:
            return self._lane.run(routine, private, address, argument, *more)
        except RaisedStatus as refusal:
            if refusal.status != STATUS_PROCESS_IS_TERMINATING:
                raise
            # The process is being run down while its page is stuck.
            raise AccessViolation(address, is_write, str(refusal)) from refusal

    def _enter(self, address: int, length: int, is_write: bool, alignment: int = 1) -> None:
        processor = self._processor
        if processor.irql > APC_LEVEL:
            self._wrong_irql(address, is_write)
        if processor.verifier:
            self._require_context(address, is_write)
        if length:
            if address % alignment:
                raise RaisedStatus(STATUS_DATATYPE_MISALIGNMENT, f"{address:#x} by {alignment}")
            _check_user_range(address, length, is_write)

    def _require_context(self, address: int, is_write: bool) -> None:
        thread = self._processor.current_thread
        if thread is None or thread.process is not self.process:
            self._processor.bug_check(
                KMODE_EXCEPTION_NOT_HANDLED,
                STATUS_ACCESS_VIOLATION,
                0,
                int(is_write),
                address,
                detail=f"user address of {self.process} touched in another context",
            )

    def _wrong_irql(self, address: int, is_write: bool) -> None:
        processor = self._processor
        processor.bug_check(
            IRQL_NOT_LESS_OR_EQUAL,
            address,
            processor.irql,
            int(is_write),
            detail=f"user address touched at {irql_name(processor.irql)}, at most APC_LEVEL",
        )


def _check_user_range(address: int, length: int, is_write: bool) -> None:
    """Raise for a range that leaves user space, whatever is mapped; Python's sums never wrap."""
    if length < 0 or address < LOWEST_USER_ADDRESS or address + length > USER_ADDRESS_END:
        inside = LOWEST_USER_ADDRESS <= address < USER_ADDRESS_END
        first = USER_ADDRESS_END if inside and length >= 0 else address
        raise AccessViolation(first, is_write, "not a range of user space")
