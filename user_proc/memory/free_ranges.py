"""Which parts of one segment are free: first fit, neighbours joined.

Rules: offsets and lengths only; the caller locks.
"""

from bisect import bisect_left


class FreeRanges:
    """The free ranges of `length` bytes, by rising offset, no two of them touching."""

    __slots__ = ("_lengths", "_offsets", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self._offsets = [0]
        self._lengths = [length]

    def take(self, length: int, alignment: int) -> int | None:
        """Take the first range that has `length` bytes at an aligned offset; None if none has."""
        for index, (start, available) in enumerate(zip(self._offsets, self._lengths, strict=True)):
            offset = -(-start // alignment) * alignment
            if offset + length <= start + available:
                self._cut(index, offset, length)
                return offset
        return None

    def give_back(self, offset: int, length: int) -> None:
        """Free a range taken before, and join it to free neighbours."""
        index = bisect_left(self._offsets, offset)
        end = offset + length
        if index < len(self._offsets) and self._offsets[index] == end:
            end += self._lengths[index]
            del self._offsets[index], self._lengths[index]
        if index and self._offsets[index - 1] + self._lengths[index - 1] == offset:
            self._lengths[index - 1] = end - self._offsets[index - 1]
        else:
            self._offsets.insert(index, offset)
            self._lengths.insert(index, end - offset)

    @property
    def is_all_free(self) -> bool:
        """Whether nothing is taken."""
        return self._lengths == [self.length]

    @property
    def free_bytes(self) -> int:
        """Bytes not taken."""
        return sum(self._lengths)

    def _cut(self, index: int, offset: int, length: int) -> None:
        start, available = self._offsets[index], self._lengths[index]
        parts = [(start, offset - start), (offset + length, start + available - offset - length)]
        kept = [part for part in parts if part[1]]
        self._offsets[index : index + 1] = [start for start, _ in kept]
        self._lengths[index : index + 1] = [size for _, size in kept]
