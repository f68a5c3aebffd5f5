"""Memory one user process of the benchmark has and another maps: bare words, and arena regions.

A place is named by a path below /proc that leads to the memory's descriptor, and an offset; it can
be mapped as long as its owner lives.

Rules: processes of one user. Nothing has a name in a file system, so nothing can be left behind.
"""

import ctypes
import mmap
import os
from typing import Final

from shared.live_words import words64
from shared.segment import PAGE_SIZE, create_segment, round_to_pages
from user_proc.errors import SofthcaError

_LINE_WORDS: Final = 8  # a word to each cache line
WORD_TO_RELAY: Final = 0 * _LINE_WORDS
WORD_FROM_RELAY: Final = 1 * _LINE_WORDS
WORD_TO_RELAY_BACK: Final = 2 * _LINE_WORDS
WORD_FROM_RELAY_BACK: Final = 3 * _LINE_WORDS
WORD_STOP: Final = 4 * _LINE_WORDS
WORD_CREDIT: Final = 5 * _LINE_WORDS


class PlaceUnknown(SofthcaError):
    """Memory is not where it should be."""


def make_words() -> tuple[int, str]:
    """Make a page of words; return its descriptor, which the caller owns, and its path."""
    descriptor = create_segment("softhca-bench-words", PAGE_SIZE)
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


def map_words(path: str) -> memoryview:
    """Map the page of words another process has made."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return words64(memoryview(mmap.mmap(descriptor, PAGE_SIZE)))
    finally:
        os.close(descriptor)


def place_of(address: int) -> tuple[str, int]:
    """Return path and offset of the shared memory at an address of this process."""
    inode, offset = _mapped_file(address)
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{name}").st_ino
        except OSError:  # the descriptor of the listing itself
            continue
        if found == inode and "memfd:" in os.readlink(f"/proc/self/fd/{name}"):
            return f"/proc/{os.getpid()}/fd/{name}", offset
    raise PlaceUnknown(f"no descriptor leads to the memory at {address:#x}")


def _mapped_file(address: int) -> tuple[int, int]:
    with open("/proc/self/maps", encoding="ascii") as lines:
        for line in lines:
            bounds, _, offset, _, inode, *_ = line.split()
            first, end = (int(part, 16) for part in bounds.split("-"))
            if first <= address < end and int(inode):
                return int(inode), address - first + int(offset, 16)
    raise PlaceUnknown(f"nothing is mapped at {address:#x}")


class MappedPlace:
    """Another process's memory, mapped here; `address` is this process's."""

    def __init__(self, path: str, offset: int, length: int) -> None:
        start = offset & -PAGE_SIZE
        descriptor = os.open(path, os.O_RDWR)
        try:
            whole = round_to_pages(offset - start + length)
            self._mapping = mmap.mmap(descriptor, whole, offset=start)
        finally:
            os.close(descriptor)
        self._held = (ctypes.c_ubyte * length).from_buffer(self._mapping, offset - start)
        self.address = ctypes.addressof(self._held)

    def close(self) -> None:
        """Unmap it."""
        del self._held
        self._mapping.close()
