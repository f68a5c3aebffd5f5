"""Which parts of one segment are free: first fit, neighbours joined.

Rules: offsets and lengths only; the caller locks. Each change is one store, so that an exception
of a signal handler leaves the ranges as they were or as they are to be.
"""

from bisect import bisect_left


class FreeRanges:
    """The free ranges of `length` bytes, by rising offset, no two of them touching."""

    __slots__ = ("_ranges", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self._ranges = [(0, length)]

    def take(self, length: int, alignment: int) -> int | None:
        """Take the first range that has `length` bytes at an aligned offset; None if none has."""
        for index, (start, available) in enumerate(self._ranges):
            offset = -(-start // alignment) * alignment
            end = offset + length
            rest = start + available - end
            if rest >= 0:
                parts = [(start, offset - start), (end, rest)]
                self._ranges[index : index + 1] = [part for part in parts if part[1]]
                return offset
        return None

    def give_back(self, offset: int, length: int) -> None:
        """Free a range taken before, and join it to free neighbours."""
        first = last = bisect_left(self._ranges, (offset, 0))
        end = offset + length
        if last < len(self._ranges) and self._ranges[last][0] == end:
            end += self._ranges[last][1]
            last += 1
        if first and sum(self._ranges[first - 1]) == offset:
            first -= 1
            offset = self._ranges[first][0]
        self._ranges[first:last] = [(offset, end - offset)]

    @property
    def is_all_free(self) -> bool:
        """Whether nothing is taken."""
        return self._ranges == [(0, self.length)]

    @property
    def free_bytes(self) -> int:
        """Bytes not taken."""
        return sum(length for _, length in self._ranges)
