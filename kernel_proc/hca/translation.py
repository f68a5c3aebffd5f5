"""Translation: from memory key and address to bus addresses.

An access names a key with its generation, a PD and what it will do; the answer is the memory
itself, or a fault that says why. Arithmetic is exact, so nothing wraps around.

Of a region that is contiguous on the bus, in shared memory, its key keeps one view: an access is
then a slice.

Spec: IBA vol. 1, 10.6; PRM, MPT and MTT.
"""

import sys
from array import array
from typing import Final

from kernel_proc.hca.device_memory import BusError, DeviceMemory, Piece
from kernel_proc.hca.memory_key import (
    FaultReason,
    MemoryKey,
    TranslationFault,
    index_with_generation,
)
from kernel_proc.hca_abi import contexts as abi

_CHUNK_SHIFT: Final = 15  # MTT entries of one array: those of one ICM chunk
_CHUNK_ENTRIES: Final = 1 << _CHUNK_SHIFT
_LITTLE_ENDIAN: Final = sys.byteorder == "little"
_MOST_VIEW_PAGES: Final = 1 << 16  # looked at once, to see whether a region is contiguous
_SEGMENT_SHIFT: Final = abi.MTT_SEGMENT_ENTRIES.bit_length() - 1


class Translation:
    """The MPT and the MTT."""

    def __init__(self, memory: DeviceMemory | None = None) -> None:
        self._memory: Final = memory if memory is not None else DeviceMemory()
        self._keys: list[MemoryKey | None] = []
        self._mask = 0
        self._chunks: list[array[int] | None] = []
        self._viewed = bytearray()  # by MTT segment: a view may depend on it
        self.mtt_entries = 0
        self.page_look_ups = 0

    def configure(self, log_mpts: int, log_mtt_segments: int) -> None:
        """Take the sizes INIT_HCA gave; everything is empty."""
        self._close_views(0, self.mtt_entries)
        self._keys = [None] * (1 << log_mpts)
        self._mask = (1 << log_mpts) - 1
        self.mtt_entries = abi.MTT_SEGMENT_ENTRIES << log_mtt_segments
        self._chunks = [None] * (-(-self.mtt_entries // _CHUNK_ENTRIES))
        self._viewed = bytearray(1 << log_mtt_segments)

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

    def named(self, key: int) -> MemoryKey | None:
        """Return the hardware-owned entry of this very key."""
        entry = self._keys[key >> 8 & self._mask] if self._keys else None
        return entry if entry is not None and entry.key == key else None

    def insert(self, index: int, key: MemoryKey) -> None:
        """Give an entry to the hardware."""
        self._keys[index] = key

    def remove(self, index: int) -> None:
        """Give an entry back to software: from now on its key names nothing."""
        key = self._keys[index]
        self._keys[index] = None
        if key is not None:
            key.close_view()

    def reach(
        self, key: int, pd: int, rights: int, address: int, length: int, queue_pair: int = 0
    ) -> memoryview | list[Piece]:
        """Return the memory of an access, as one view or in pieces; or raise TranslationFault.

        `rights` are MPT flags that must all be set: MPT_FLAG_REGION among them for local access,
        which no window grants. `queue_pair` is whose request names the key, if a peer's does. No
        view may be kept beyond the call that asked for it.
        """
        keys = self._keys
        entry = keys[key >> 8 & self._mask] if keys else None
        if entry is None or entry.key != key or entry.pd != pd or entry.flags & rights != rights:
            entry = self.find(key, pd, rights, address, length, queue_pair)
        base = entry.base
        if address < base or address + length > entry.end:
            raise TranslationFault(FaultReason.OUT_OF_BOUNDS)
        view = entry.view
        if view is None:
            if not entry.view_tried:
                self._try_view(entry)
                view = entry.view
            if view is None:
                return self._pieces(entry, address, length)
        start = address - base
        return view[start : start + length]

    def find(
        self, key: int, pd: int, rights: int, address: int, length: int, queue_pair: int = 0
    ) -> MemoryKey:
        """Check an access as `reach` does and return its entry, or raise TranslationFault.

        A length of 0 is checked as any other.
        """
        entry = self._keys[index_with_generation(key) & self._mask] if self._keys else None
        if entry is None or entry.key != key or rights & ~entry.flags & abi.MPT_FLAG_REGION:
            raise TranslationFault(FaultReason.UNKNOWN_KEY)
        if entry.queue_pair:
            if entry.queue_pair != queue_pair:
                raise TranslationFault(FaultReason.WRONG_QUEUE_PAIR)
        elif entry.pd != pd:
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
        self._close_views(first, len(big_endian) // abi.MTT_ENTRY_SIZE)
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
            "keys": len(self._keys) - self._keys.count(None),
            "key_limit": len(self._keys),
            "page_look_ups": self.page_look_ups,
            "mtt_entries": self.mtt_entries,
            "mtt_chunks": len(self._chunks) - self._chunks.count(None),
        }

    def _pieces(self, entry: MemoryKey, address: int, length: int) -> list[Piece]:
        self.page_look_ups += (length >> entry.page_shift) + 1
        try:
            return [self._memory.piece(*run) for run in self.runs(entry, address, length)]
        except BusError:
            raise TranslationFault(FaultReason.NOT_PRESENT) from None

    def _try_view(self, entry: MemoryKey) -> None:
        """Keep a view of the whole region if it is contiguous in one shared segment."""
        entry.view_tried = True
        if not 0 < entry.mtt_entries <= _MOST_VIEW_PAGES:
            return
        try:
            runs = self.runs(entry, entry.base, entry.length)
            if len(runs) == 1:
                entry.open_view(self._memory, runs[0][0])
        except (TranslationFault, BusError):
            return
        first = entry.first_mtt >> _SEGMENT_SHIFT
        last = (entry.first_mtt + entry.mtt_entries - 1) >> _SEGMENT_SHIFT
        self._viewed[first : last + 1] = b"\x01" * (last + 1 - first)

    def _close_views(self, first: int, count: int) -> None:
        """Close the views that depend on MTT entries which change now."""
        start, stop = first >> _SEGMENT_SHIFT, (first + count - 1 >> _SEGMENT_SHIFT) + 1
        if self._viewed.find(1, start, stop) < 0:
            return
        for key in self._keys:
            if key is None or key.first_mtt >= stop << _SEGMENT_SHIFT:
                continue
            if start << _SEGMENT_SHIFT < key.first_mtt + key.mtt_entries:
                key.close_view()
        self._viewed[start:stop] = bytes(stop - start)

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
