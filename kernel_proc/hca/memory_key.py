"""Memory keys: an entry of the MPT that the hardware owns, and why an access to it is refused.

Of a region that is contiguous on the bus, in shared memory, one view is kept. It closes with its
key, its segment, or a change of its translation.

Keys without MPT_FLAG_REGION are memory windows: they grant remote access only, to what they are
bound to, and those that are bound to a queue pair grant it to that one alone.

Spec: IBA vol. 1, 10.6; PRM, MPT; key = index with generation rotated left by 8.
"""

from enum import IntEnum
from typing import Final

from kernel_proc.hca.device_memory import DeviceMemory
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi.registers import SEGMENT_SHIFT

_KEY_BITS: Final = (1 << 32) - 1
_ADDRESS_END: Final = 1 << 64
_SMALLEST_PAGE_SHIFT: Final = 12
_WINDOW_FLAGS: Final = abi.MPT_FLAG_TYPE_2 | 0xF << 28  # and its status


class FaultReason(IntEnum):
    """Why an access was refused."""

    UNKNOWN_KEY = 1
    WRONG_PD = 2
    NO_RIGHT = 3
    OUT_OF_BOUNDS = 4
    NOT_PRESENT = 5
    WRONG_QUEUE_PAIR = 6


class TranslationFault(Exception):
    """An access that the key does not grant."""

    def __init__(self, reason: FaultReason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def index_with_generation(key: int) -> int:
    """Return the index, with its generation above it, that a key stands for."""
    return (key >> 8 | key << 24) & _KEY_BITS


class MemoryKey:
    """One hardware-owned entry of the MPT; `users` are live queues, `windows` bound to it.

    `copies` are transfers under way by a thread: the key is not given back before they end.
    `queue_pair` is the only one that has access, 0 if any of the PD has.
    """

    __slots__ = (
        "_bus",
        "_memory",
        "base",
        "copies",
        "end",
        "entry",
        "first_mtt",
        "flags",
        "key",
        "length",
        "page_shift",
        "pd",
        "queue_pair",
        "start",
        "users",
        "view",
        "view_tried",
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
        self.end = self.base + self.length
        self.queue_pair = 0
        self.users = 0
        self.windows = 0
        self.copies = 0
        self.view: memoryview | None = None
        self.view_tried = False
        self._bus = 0
        self._memory: DeviceMemory | None = None

    def open_view(self, memory: DeviceMemory, bus: int) -> None:
        """Keep one view of the whole region, which is contiguous from a bus address on."""
        self.view = memory.view(bus, self.length)
        self._memory, self._bus = memory, bus
        memory.hold(bus, self)

    def close_view(self) -> None:
        """Drop the view; the next access looks again."""
        self.view_tried = False
        if self.view is not None and self._memory is not None:
            self.view.release()
            self.view = None
            self._memory.drop(self._bus, self)

    def segment_gone(self, number: int) -> None:
        """Drop the view of a segment that is unmapped now."""
        if self._bus >> SEGMENT_SHIFT == number:
            self.close_view()

    @property
    def mtt_entries(self) -> int:
        """How many MTT entries it uses; a window that is not bound uses none."""
        if self.flags & abi.MPT_FLAG_PHYSICAL or not self.length:
            return 0
        page = 1 << self.page_shift
        return ((self.start & (page - 1)) + self.length + page - 1) >> self.page_shift


def check_entry(entry: abi.MptEntry, mtt_entries: int) -> bool:
    """Say whether an entry's values can be at all: page size, bounds, place in the MTT."""
    if entry.page_size > 31 - _SMALLEST_PAGE_SHIFT or entry.pd >> 24:
        return False
    if entry.start + entry.length > _ADDRESS_END or entry.mtt_address % abi.MTT_ENTRY_SIZE:
        return False
    if not entry.flags & abi.MPT_FLAG_REGION:  # a window, which is not bound yet
        return not entry.length and not entry.flags & ~_WINDOW_FLAGS
    if not entry.length:
        return False
    key = MemoryKey(entry)
    return key.first_mtt + key.mtt_entries <= mtt_entries
