"""Page frames: the numbers of physical pages, in runs, scattered on purpose if so wished.

Frames hold nothing: the memory is the system's. What counts is which of them lie in a row, since a
device is told runs of frames. A fragmented allocator never gives more than `largest_run` in a row:
frames are dealt in chunks of that size, the even ones to some and the odd ones to others, so that
no two chunks that follow each other in a buffer are neighbours.

Rules: no waiting; any IRQL. Lists are of runs; a page list exists nowhere.
Spec: WDK, Physical Memory and MDLs (PFN arrays); docs/bus-addresses.md.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from math import gcd
from typing import Any, Final, NamedTuple

from kernel_proc.memory.extents import Extents

DEFAULT_FRAMES: Final = 1 << 28  # 1 TiB of pages of 4 KiB
_RUNS_AT_ONCE: Final = 8192  # what takes a millisecond or two


class FrameRun(NamedTuple):
    """Frames in a row."""

    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count


_make_run: Final = partial(tuple.__new__, FrameRun)  # without the check that `_make` takes time for


class PageFrameAllocator:
    """Gives out frames 0 to `total` - 1."""

    def __init__(self, total: int = DEFAULT_FRAMES, largest_run: int | None = None) -> None:
        self.total = total
        self.largest_run = largest_run or None
        self.used = 0
        chunk = self._chunk = largest_run or 1
        chunks = total // chunk
        # Chunks by number // 2, the even ones first; unfragmented there is one colour.
        self._colours: list[Extents] = (
            [Extents(total)]
            if self.largest_run is None
            else [Extents((chunks + 1) // 2), Extents(chunks // 2)]
        )

    def allocate(self, count: int) -> list[FrameRun] | None:
        """Give `count` frames, in as few runs as may be; None if there are not so many.

        Neighbours in the list are no neighbours in memory.
        """
        if count <= 0:
            raise ValueError(f"{count} frames cannot be allocated")
        taken = self._take(-(-count // self._chunk))
        if taken is None:
            return None
        self.used += count
        return self._join(taken) if self.largest_run is None else self._deal(taken, count)

    def allocate_by_pieces(self, count: int, pause: Callable[[], object]) -> list[FrameRun] | None:
        """Give the same for a buffer that can be long; `pause` is called between two pieces."""
        most = self._chunk * _RUNS_AT_ONCE
        if self.largest_run is None or count <= most:
            return self.allocate(count)
        runs = list[FrameRun]()
        for done in range(0, count, most):
            if done:
                pause()
            piece = self.allocate(min(most, count - done))
            if piece is None:
                self.free_by_pieces(runs, pause)
                return None
            runs += piece
        return runs

    def free_by_pieces(self, runs: list[FrameRun], pause: Callable[[], object]) -> None:
        """Take runs back as `free` does and empty the list; `pause` as above."""
        while runs:
            self.free(runs[-_RUNS_AT_ONCE:])
            del runs[-_RUNS_AT_ONCE:]
            if runs:
                pause()

    def allocate_contiguous(self, count: int, alignment: int = 1) -> FrameRun | None:
        """Give frames in a row, the first a multiple of `alignment`; None if that is not to be had.

        MmAllocateContiguousMemory fails so once memory is fragmented.
        """
        if count <= 0:
            raise ValueError(f"{count} frames cannot be allocated")
        start = self._take_in_a_row(count, alignment)
        if start is None:
            return None
        self.used += count
        return FrameRun(start, count)

    def free(self, runs: Iterable[FrameRun]) -> None:
        """Take runs back as they were given; ValueError for what is free already."""
        if self.largest_run is None:
            for start, count in runs:
                self._colours[0].give(start, count)
                self.used -= count
            return
        for colour, first, number, frames in self._undeal(runs):
            self._colours[colour].give(first, number)
            self.used -= frames

    def inspect(self) -> dict[str, Any]:
        """Return how many there are, are used, and how long a run may be (0: any)."""
        return {"total": self.total, "used": self.used, "largest_run": self.largest_run or 0}

    # Chunks; unfragmented a chunk is one frame

    def _take(self, chunks: int) -> list[tuple[int, int, int]] | None:
        # Ranges (colour, first, number); in one range if possible.
        for colour, extents in enumerate(self._colours):
            first = extents.take(chunks)
            if first is not None:
                return [(colour, first, chunks)]
        if chunks > sum(extents.free for extents in self._colours):
            return None
        taken = []
        for colour, extents in enumerate(self._colours):
            while chunks and (some := extents.take_some(chunks)) is not None:
                taken.append((colour, *some))
                chunks -= some[1]
        return taken

    @staticmethod
    def _join(taken: list[tuple[int, int, int]]) -> list[FrameRun]:
        # Ranges of one colour come in ascending order and are joined in the free list already.
        return [FrameRun(first, number) for _, first, number in taken]

    def _deal(self, taken: list[tuple[int, int, int]], count: int) -> list[FrameRun]:
        chunk, runs = self._chunk, list[FrameRun]()
        first_odd = next((i for i, (colour, _, _) in enumerate(taken) if colour), len(taken))
        if 0 < first_odd < len(taken):
            _, even, number = taken[first_odd - 1]
            if even + number - 1 == taken[first_odd][1]:  # the odd one right behind the even one
                taken = taken[first_odd:] + taken[:first_odd]
        for colour, first, number in taken:
            start = (2 * first + colour) * chunk
            starts = range(start, start + 2 * number * chunk, 2 * chunk)
            runs += map(_make_run, zip(starts, repeat(chunk)))
        if rest := count % chunk:
            runs[-1] = FrameRun(runs[-1].start, rest)
        return runs

    def _undeal(self, runs: Iterable[FrameRun]) -> list[tuple[int, int, int, int]]:
        # Ranges (colour, first, number of chunks, frames), chunks that follow each other as one.
        stride = 2 * self._chunk
        ranges, begin, expected, frames = list[tuple[int, int, int, int]](), -1, -1, 0
        for start, count in runs:
            if start != expected:
                if begin >= 0:
                    ranges.append(self._range(begin, expected, frames))
                begin, frames = start, 0
            expected = start + stride
            frames += count
        if begin >= 0:
            ranges.append(self._range(begin, expected, frames))
        return ranges

    def _range(self, begin: int, end: int, frames: int) -> tuple[int, int, int, int]:
        number, odd = divmod(begin // self._chunk, 2)
        return odd, number, (end - begin) // (2 * self._chunk), frames

    def _take_in_a_row(self, count: int, alignment: int) -> int | None:
        chunk = self._chunk
        if self.largest_run is None:
            return self._colours[0].take(count, alignment)
        if count > chunk:
            return None
        every = alignment // gcd(chunk, alignment)  # chunks whose start is aligned
        first = self._colours[0].take(1, every // gcd(every, 2))
        if first is not None:
            return 2 * first * chunk
        if every == 1 and (first := self._colours[1].take(1)) is not None:
            return (2 * first + 1) * chunk
        return None
