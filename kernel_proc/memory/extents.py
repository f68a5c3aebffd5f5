"""Free ranges of numbered things: taken first fit, given back and joined.

Rules: no waiting; one OS thread.
"""

from bisect import bisect_right
from typing import Final


class Extents:
    """Free ranges in ascending order.

    Ranges that meet at one of `borders` are not joined: no range that `take` gives lies across one.
    """

    __slots__ = ("_borders", "_ends", "_starts", "free")

    def __init__(self, end: int, borders: frozenset[int] = frozenset()) -> None:
        self._borders: Final = borders
        inner = sorted(border for border in borders if 0 < border < end)
        self._starts = [0, *inner] if end else []
        self._ends = [*inner, end] if end else []
        self.free = end

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, count: int, alignment: int = 1, offset: int = 0) -> int | None:
        """Take the first `count` in a row whose start, plus `offset`, is aligned; None: no room."""
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            first = start + -(start + offset) % alignment
            if first + count <= end:
                self._cut(index, first, first + count)
                return first
        return None

    def take_some(self, most: int) -> tuple[int, int] | None:
        """Take up to `most` from the first range; give its start and number."""
        if not self._starts:
            return None
        start = self._starts[0]
        count = min(most, self._ends[0] - start)
        self._cut(0, start, start + count)
        return start, count

    def take_over_borders(self, count: int) -> int | None:
        """Take the first `count` in a row, whatever borders lie between; None: no room."""
        begin = 0
        for index, start in enumerate(self._starts):
            if index and start != self._ends[index - 1]:
                begin = index
            first, end = self._starts[begin], self._ends[index]
            if end - first >= count:
                rest = first + count
                self._starts[begin : index + 1] = [rest] if rest < end else []
                self._ends[begin : index + 1] = [end] if rest < end else []
                self.free -= count
                return first
        return None

    def give(self, start: int, count: int) -> None:
        """Give a range back; ValueError if any of it is free."""
        if self._borders and count > 1:
            end = start + count
            for border in range(start + 1, end):
                if border in self._borders:
                    self._give(start, border - start)
                    start = border
            count = end - start
        self._give(start, count)

    def _give(self, start: int, count: int) -> None:
        end = start + count
        index = bisect_right(self._starts, start)
        if (index and self._ends[index - 1] > start) or (
            index < len(self._starts) and self._starts[index] < end
        ):
            raise ValueError(f"{count} from {start} are free already, or some of them")
        self.free += count
        joins_before = index and self._ends[index - 1] == start and start not in self._borders
        joins_after = (
            index < len(self._starts) and self._starts[index] == end and end not in self._borders
        )
        if joins_before and joins_after:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_before:
            self._ends[index - 1] = end
        elif joins_after:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)

    def _cut(self, index: int, start: int, end: int) -> None:
        self.free -= end - start
        whole_start, whole_end = self._starts[index], self._ends[index]
        if whole_start == start and whole_end == end:
            del self._starts[index], self._ends[index]
        elif whole_start == start:
            self._starts[index] = end
        else:
            self._ends[index] = start
            if whole_end != end:
                self._starts.insert(index + 1, end)
                self._ends.insert(index + 1, whole_end)
