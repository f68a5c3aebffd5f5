"""The multicast group table: hashed heads and chains of 56 QPs each, as the driver writes them.

Half of the table is the hash part. The HCA only reads chains; whatever the driver wrote, a walk
ends: it visits no entry twice.

Spec: IBA vol. 1, 10.5; Linux drivers/infiniband/hw/mthca/mthca_mcg.c.
"""

import zlib
from typing import Final

from kernel_proc.hca_abi.contexts import (
    MGM_ENTRY_SIZE,
    MGM_HEAD,
    MGM_QP_OFFSET,
    MGM_QP_VALID,
    MGM_QPS,
)

_NEXT_SHIFT: Final = 6
_QPN_MASK: Final = 0xFFFFFF
_EMPTY: Final = bytes(MGM_ENTRY_SIZE)


class MulticastTable:
    """The entries by index, as bytes of the wire."""

    def __init__(self) -> None:
        self._entries: list[bytes | None] = []

    def configure(self, log_size: int) -> None:
        """Take the size INIT_HCA gave; every entry is zero."""
        self._entries = [None] * (1 << log_size)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    def read(self, index: int) -> bytes:
        """Return an entry that is in range."""
        return self._entries[index] or _EMPTY

    def write(self, index: int, entry: bytes) -> None:
        """Replace an entry that is in range."""
        self._entries[index] = entry if any(entry) else None

    def hash_of(self, gid: bytes) -> int:
        """Return the head of the chain for a GID, 16 bits at most."""
        return zlib.crc32(gid) % (max(1, len(self._entries) // 2)) & 0xFFFF

    def members(self, gid: bytes) -> list[int]:
        """Return the QPs of a group."""
        index = self.hash_of(gid)
        seen: set[int] = set()
        while index < len(self._entries) and index not in seen:
            seen.add(index)
            entry = self.read(index)
            following, entry_gid = MGM_HEAD.unpack_from(entry)
            if entry_gid == gid:
                return _queue_pairs(entry)
            index = following >> _NEXT_SHIFT
            if not index:
                break
        return []

    def inspect(self) -> dict[str, object]:
        """Return size and entries in use."""
        used = sum(1 for entry in self._entries if entry is not None)
        return {"size": len(self._entries), "used": used}


def _queue_pairs(entry: bytes) -> list[int]:
    slots = memoryview(entry)[MGM_QP_OFFSET:]
    words = (int.from_bytes(slots[4 * n : 4 * n + 4], "big") for n in range(MGM_QPS))
    return [word & _QPN_MASK for word in words if word & MGM_QP_VALID]
