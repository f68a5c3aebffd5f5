"""The bus: memory by the addresses a device uses, and which devices know of it.

A bus address is a segment's number and an offset. A segment is shared memory (an arena, kernel
memory) or the private memory of one user process, whose offsets are that process's addresses.
Numbers are given again oldest first, so a stale address names nothing for as long as possible.

Rules: dispatcher's OS thread. Telling a device may wait when it is behind: <= APC_LEVEL then; at
DISPATCH_LEVEL nothing waits. Descriptors stay their owner's, and open until `remove`.
Spec: kernel_proc/hca_abi/registers.py has the same split of an address; docs/bus-addresses.md.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import itemgetter, mul, sub
from typing import Any, Final, Protocol

from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator
from shared.segment import PAGE_SIZE

SEGMENT_SHIFT: Final = 48
MOST_SEGMENTS: Final = 1 << 16  # number 0 names nothing

BusRun = tuple[int, int]

RUNS_AT_ONCE: Final = 8192  # what takes a millisecond or two

_count_of: Final = itemgetter(1)


class BusDevice(Protocol):
    """A device on the bus, as far as memory is concerned."""

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        """Learn of a segment: shared memory, or without a view a process's private memory."""

    def remove_segment(self, number: int) -> None:
        """Forget a segment."""


class FrameMap:
    """Where the runs of frames end in a piece of memory, in bytes from its first page."""

    __slots__ = ("_ends", "_runs")

    def __init__(self, runs: Sequence[FrameRun]) -> None:
        self._runs = runs
        self._ends: list[int] | None = None

    def split(self, address: int, offset: int, length: int) -> list[BusRun]:
        """Cut a range that begins at bus address `address` where the frames are not in a row."""
        pieces = list(self.split_by_pieces(address, offset, length))
        return pieces[0] if len(pieces) == 1 else [run for piece in pieces for run in piece]

    def split_by_pieces(self, address: int, offset: int, length: int) -> Iterator[list[BusRun]]:
        """Cut the same way, by pieces of at most RUNS_AT_ONCE runs; a piece can be empty."""
        if len(self._runs) == 1:
            yield [(address, length)]
            return
        if self._ends is None:
            yield from self._find_ends()
        ends = self._ends
        assert ends is not None
        first = bisect_right(ends, offset)
        last = bisect_left(ends, offset + length)
        base, end = address - offset, address + length
        while last - first >= RUNS_AT_ONCE:
            inner = [base + at for at in ends[first : first + RUNS_AT_ONCE]]
            starts = [address, *inner[:-1]]
            address = inner[-1]
            first += RUNS_AT_ONCE
            yield list(zip(starts, map(sub, inner, starts), strict=True))
        inner = [base + at for at in ends[first:last]]
        starts = [address, *inner]
        inner.append(end)
        yield list(zip(starts, map(sub, inner, starts), strict=True))

    def _find_ends(self) -> Iterator[list[BusRun]]:
        """Add the lengths up, from 0 on, with an empty piece for each RUNS_AT_ONCE of them."""
        ends, at = list[int](), 0
        for begin in range(0, len(self._runs), RUNS_AT_ONCE):
            counts = map(_count_of, self._runs[begin : begin + RUNS_AT_ONCE])
            ends += accumulate(map(mul, counts, repeat(PAGE_SIZE)), initial=at)
            at = ends.pop()
            yield []
        ends.append(at)
        self._ends = ends


class BusSegment:
    """One segment; `runs` are its frames, none for private memory."""

    __slots__ = ("_frames", "descriptor", "length", "name", "number", "runs", "view")

    def __init__(
        self,
        number: int,
        name: str,
        view: memoryview | None,
        descriptor: int,
        runs: Sequence[FrameRun],
    ) -> None:
        self.number = number
        self.name = name
        self.view = view
        self.descriptor = descriptor
        self.length = len(view) if view is not None else 0
        self.runs = runs
        self._frames = FrameMap(runs)

    def __str__(self) -> str:
        return f"bus segment {self.number} ({self.name})"

    def address(self, offset: int) -> int:
        """Return the bus address of an offset."""
        return self.number << SEGMENT_SHIFT | offset

    def bus_runs(self, offset: int, length: int) -> list[BusRun]:
        """Return a range of shared memory as bus addresses and lengths, merged where it may be."""
        return self._frames.split(self.address(offset), offset, length)

    def bus_runs_by_pieces(self, offset: int, length: int) -> Iterator[list[BusRun]]:
        """Give the same, at most RUNS_AT_ONCE runs at a time."""
        return self._frames.split_by_pieces(self.address(offset), offset, length)


class Bus:
    """All segments, and the devices that are told of them."""

    def __init__(self, frames: PageFrameAllocator) -> None:
        self.frames = frames
        self.segments: dict[int, BusSegment] = {}
        self._devices: list[BusDevice] = []
        self._next = 1
        self._freed: deque[int] = deque()

    def attach(self, device: BusDevice) -> None:
        """Put a device on the bus; it is told of all there is."""
        self._devices.append(device)
        for segment in list(self.segments.values()):
            device.add_segment(segment.number, segment.view, segment.descriptor)

    def detach(self, device: BusDevice) -> None:
        """Take a device off; it is told nothing any more."""
        self._devices.remove(device)

    def add_shared(
        self, view: memoryview, descriptor: int, runs: Sequence[FrameRun], name: str
    ) -> BusSegment | None:
        """Put shared memory and its frames on the bus; None if there are no numbers left."""
        return self._add(name, view, descriptor, runs)

    def add_private(
        self, memory_descriptor: int, name: str = "private memory"
    ) -> BusSegment | None:
        """Put the private memory of one process on the bus, by its /proc/self/mem."""
        return self._add(name, None, memory_descriptor, ())

    def remove(self, segment: BusSegment) -> None:
        """Take memory off the bus; no device may be using it. Its frames are its owner's to free.

        KeyError if it is not there.
        """
        del self.segments[segment.number]
        self._freed.append(segment.number)
        for device in list(self._devices):
            device.remove_segment(segment.number)

    def inspect(self) -> dict[str, Any]:
        """Return frames and one entry for each segment."""
        return {
            "frames": self.frames.inspect(),
            "segments": [
                {"number": s.number, "name": s.name, "length": s.length, "runs": len(s.runs)}
                for s in self.segments.values()
            ],
        }

    def _add(
        self, name: str, view: memoryview | None, descriptor: int, runs: Sequence[FrameRun]
    ) -> BusSegment | None:
        if self._next < MOST_SEGMENTS:
            number = self._next
            self._next += 1
        elif self._freed:
            number = self._freed.popleft()
        else:
            return None
        segment = BusSegment(number, name, view, descriptor, runs)
        self.segments[number] = segment
        for device in list(self._devices):
            device.add_segment(number, view, descriptor)
        return segment
