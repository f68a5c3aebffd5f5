"""How far every client is, in shared words: its own line of words, written by it alone.

Rules: what a client that is killed has counted is not lost with it.
"""

import mmap
import os
from typing import Final

from shared.clock import now_ns
from shared.live_words import words64
from shared.segment import PAGE_SIZE, create_segment, round_to_pages

_LINE: Final = 8  # words of a client: a cache line
OPERATIONS, COMPLETIONS, STEP, MOVED_NS = range(4)


def make_counts(places: int) -> int:
    """Make the segment; return its descriptor, which the caller owns."""
    return create_segment("softhca-stress-counts", round_to_pages(places * _LINE * 8))


class Counts:
    """The words of all places."""

    def __init__(self, descriptor: int) -> None:
        length = os.fstat(descriptor).st_size
        self._map: Final = mmap.mmap(descriptor, max(length, PAGE_SIZE))
        self._words: Final = words64(memoryview(self._map))

    def clear(self, place: int) -> None:
        """Begin anew for another client at a place."""
        for word in range(_LINE):
            self._words[place * _LINE + word] = 0
        self._words[place * _LINE + MOVED_NS] = now_ns()

    def read(self, place: int) -> tuple[int, int, int, int]:
        """Return operations, completions, number of the step, and when it last moved on."""
        first = place * _LINE
        words = self._words
        return words[first], words[first + 1], words[first + 2], words[first + 3]

    def count(self, place: int, operations: int, completions: int) -> None:
        """Tell how much a client has done."""
        first = place * _LINE
        self._words[first + OPERATIONS] = operations
        self._words[first + COMPLETIONS] = completions
        self._words[first + MOVED_NS] = now_ns()

    def begin_step(self, place: int, number: int) -> None:
        """Tell which step a client is about to do."""
        self._words[place * _LINE + STEP] = number
        self._words[place * _LINE + MOVED_NS] = now_ns()
