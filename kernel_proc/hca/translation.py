"""Memory keys and translation: from key and address to bus addresses.

An access names a key with its generation, a PD and what it will do; the answer is the runs of bus
addresses, or a fault that says why. Arithmetic is exact, so nothing wraps around.

Spec: IBA vol. 1, 10.6; PRM, MPT and MTT; key = index with generation rotated left by 8.
"""

import sys
from array import array
from enum import IntEnum
from typing import Final

from kernel_proc.hca_abi import contexts as abi

_CHUNK_SHIFT: Final = 15  # MTT entries of one array: those of one ICM chunk
_CHUNK_ENTRIES: Final = 1 << _CHUNK_SHIFT
_KEY_BITS: Final = (1 << 32) - 1
_ADDRESS_END: Final = 1 << 64
_SMALLEST_PAGE_SHIFT: Final = 12
_LITTLE_ENDIAN: Final = sys.byteorder == "little"


class FaultReason(IntEnum):
    """Why an access was refused."""

    UNKNOWN_KEY = 1
    WRONG_PD = 2
    NO_RIGHT = 3
    OUT_OF_BOUNDS = 4
    NOT_PRESENT = 5


class TranslationFault(Exception):
    """An access that the key does not grant."""

    def __init__(self, reason: FaultReason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def index_with_generation(key: int) -> int:
    """Return the index, with its generation above it, that a key stands for."""
    return (key >> 8 | key << 24) & _KEY_BITS


class MemoryKey:
    """One hardware-owned entry of the MPT; `users` are live queues that lie in it."""

    __slots__ = (
        "base",
        "entry",
        "first_mtt",
        "flags",
        "key",
        "length",
        "page_shift",
        "pd",
        "start",
        "users",
        "windows",
    )

    def __init__(self, entry: abi.MptEntry) -> None:
        self.entry = entry
        self.flags = entry.flags
        self.key = entry.key
        self.pd = entry.pd & 0xFFFFFF
        self.start = entry.start
        self.base = 0 if entry.flags & abi.MPT_FLAG_ZERO_BASED else entry.start
        self.length = entry.length
        self.page_shift = entry.page_size + _SMALLEST_PAGE_SHIFT
        self.first_mtt = entry.mtt_address // abi.MTT_ENTRY_SIZE
        self.users = 0
        self.windows = 0

    @property
    def mtt_entries(self) -> int:
        """How many MTT entries the region uses."""
        if self.flags & abi.MPT_FLAG_PHYSICAL or not self.flags & abi.MPT_FLAG_REGION:
            return 0
        page = 1 << self.page_shift
        return ((self.start & (page - 1)) + self.length + page - 1) >> self.page_shift


class Translation:
    """The MPT and the MTT."""

    def __init__(self) -> None:
        self._keys: list[MemoryKey | None] = []
        self._mask = 0
        self._chunks: list[array[int] | None] = []
        self.mtt_entries = 0

    def configure(self, log_mpts: int, log_mtt_segments: int) -> None:
        """Take the sizes INIT_HCA gave; everything is empty."""
        self._keys = [None] * (1 << log_mpts)
        self._mask = (1 << log_mpts) - 1
        self.mtt_entries = abi.MTT_SEGMENT_ENTRIES << log_mtt_segments
        self._chunks = [None] * (-(-self.mtt_entries // _CHUNK_ENTRIES))

    @property
    def key_count(self) -> int:
        """How many keys the MPT holds."""
        return len(self._keys)

    def index_of(self, key: int) -> int:
        """Return the MPT index of a key."""
        return index_with_generation(key) & self._mask

    def entry(self, index: int) -> MemoryKey | None:
        """Return the hardware-owned entry at an index that is in range."""
        return self._keys[index]

    def insert(self, index: int, key: MemoryKey) -> None:
        """Give an entry to the hardware."""
        self._keys[index] = key

    def remove(self, index: int) -> None:
        """Give an entry back to software: from now on its key names nothing."""
        self._keys[index] = None

    def find(self, key: int, pd: int, rights: int, address: int, length: int) -> MemoryKey:
        """Check an access and return its entry, or raise TranslationFault.

        `rights` are MPT flags that must all be set. A length of 0 is checked as any other.
        """
        entry = self._keys[index_with_generation(key) & self._mask] if self._keys else None
        if entry is None or entry.key != key or not entry.flags & abi.MPT_FLAG_REGION:
            raise TranslationFault(FaultReason.UNKNOWN_KEY)
        if entry.pd != pd:
            raise TranslationFault(FaultReason.WRONG_PD)
        if entry.flags & rights != rights:
            raise TranslationFault(FaultReason.NO_RIGHT)
        if address < entry.base or address + length > entry.base + entry.length:
            raise TranslationFault(FaultReason.OUT_OF_BOUNDS)
        return entry

    def runs(self, entry: MemoryKey, address: int, length: int) -> list[tuple[int, int]]:
        """Return bus address and length of each contiguous piece of a checked range."""
        if length == 0:
            return []
        if entry.flags & abi.MPT_FLAG_PHYSICAL:
            return [(entry.start + address - entry.base, length)]
        page = 1 << entry.page_shift
        position = (entry.start & (page - 1)) + address - entry.base
        offset = position & (page - 1)
        first = entry.first_mtt + (position >> entry.page_shift)
        count = (offset + length + page - 1) >> entry.page_shift
        if offset + length <= page:
            return [(self._page(first, page) + offset, length)]
        return _merge(self.read_mtt(first, count), page, offset, length)

    def read_mtt(self, first: int, count: int) -> "array[int]":
        """Copy entries that are in range; those never written are 0."""
        found = array("Q")
        while count:
            offset = first & (_CHUNK_ENTRIES - 1)
            part = min(count, _CHUNK_ENTRIES - offset)
            chunk = self._chunks[first >> _CHUNK_SHIFT]
            found.extend(chunk[offset : offset + part] if chunk else array("Q", bytes(8 * part)))
            first += part
            count -= part
        return found

    def write_mtt(self, first: int, big_endian: bytes) -> None:
        """Store entries that are in range, as a mailbox holds them."""
        entries = array("Q")
        entries.frombytes(big_endian)
        if _LITTLE_ENDIAN:
            entries.byteswap()
        done = 0
        while done < len(entries):
            offset = first & (_CHUNK_ENTRIES - 1)
            part = min(len(entries) - done, _CHUNK_ENTRIES - offset)
            chunk = self._chunks[first >> _CHUNK_SHIFT]
            if chunk is None:
                chunk = array("Q", bytes(8 * _CHUNK_ENTRIES))
                self._chunks[first >> _CHUNK_SHIFT] = chunk
            chunk[offset : offset + part] = entries[done : done + part]
            first += part
            done += part

    def inspect(self) -> dict[str, object]:
        """Return how many keys are in use and how much MTT exists."""
        return {
            "keys": sum(1 for key in self._keys if key is not None),
            "key_limit": len(self._keys),
            "mtt_entries": self.mtt_entries,
            "mtt_chunks": sum(1 for chunk in self._chunks if chunk is not None),
        }

    def _page(self, number: int, page: int) -> int:
        chunk = self._chunks[number >> _CHUNK_SHIFT] if number < self.mtt_entries else None
        entry = chunk[number & (_CHUNK_ENTRIES - 1)] if chunk else 0
        if not entry & abi.MTT_PRESENT:
            raise TranslationFault(FaultReason.NOT_PRESENT)
        return entry & -page


def _merge(pages: "array[int]", page: int, offset: int, length: int) -> list[tuple[int, int]]:
    """Join neighbours whose bus addresses follow each other."""
    runs: list[tuple[int, int]] = []
    start = end = -1
    rest = offset + length
    for entry in pages:
        if not entry & abi.MTT_PRESENT:
            raise TranslationFault(FaultReason.NOT_PRESENT)
        bus = entry & -page
        if bus != end:
            if end >= 0:
                runs.append((start, end - start))
            start = bus + offset
            offset = 0
        part = min(page, rest)
        rest -= part
        end = bus + part
    runs.append((start, end - start))
    return runs


def check_entry(entry: abi.MptEntry, mtt_entries: int) -> bool:
    """Say whether an entry's values can be at all: page size, bounds, place in the MTT."""
    if entry.page_size > 31 - _SMALLEST_PAGE_SHIFT or entry.pd >> 24:
        return False
    if entry.start + entry.length > _ADDRESS_END or entry.mtt_address % abi.MTT_ENTRY_SIZE:
        return False
    if entry.flags & abi.MPT_FLAG_REGION and not entry.length:
        return False
    key = MemoryKey(entry)
    return key.first_mtt + key.mtt_entries <= mtt_entries
