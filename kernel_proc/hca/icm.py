"""The ICM: which pages of the device's context memory the host has mapped.

The HCA keeps contexts in its own tables; the ICM decides which of them may exist, as on the
device, where a context without a page under it is no context.

Spec: docs/command-interface.md; Linux drivers/infiniband/hw/mthca/mthca_memfree.c.
"""

from typing import Final

from kernel_proc.hca.command import CommandRefused, bad_parameter
from kernel_proc.hca.device_memory import DeviceMemory
from kernel_proc.hca_abi.command_opcodes import CMD_STAT_EXCEED_LIM
from kernel_proc.hca_abi.contexts import ICM_MAP_ENTRY, ICM_PAGE_SIZE, MAP_ICM_MOST_ENTRIES

_PAGE_SHIFT: Final = ICM_PAGE_SIZE.bit_length() - 1
_MOST_BYTES: Final = 1 << 40
_MOST_RUN_LOG2: Final = 20  # pages of one entry


class Icm:
    """Pages of the firmware area, of the auxiliary area and of the ICM itself."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory: Final = memory
        self._pages: Final[dict[int, int]] = {}
        self.firmware_pages = 0
        self.auxiliary_pages = 0
        self.size = 0

    def set_size(self, size: int) -> int:
        """Set the bytes of the ICM; return the auxiliary pages it will need."""
        if size > _MOST_BYTES:
            raise CommandRefused(CMD_STAT_EXCEED_LIM)
        if size % ICM_PAGE_SIZE:
            raise bad_parameter()
        self.size = size
        return self.auxiliary_needed()

    def auxiliary_needed(self) -> int:
        """Return how many auxiliary pages this size needs: 8 bytes a page, and one."""
        return (self.size >> _PAGE_SHIFT) // (ICM_PAGE_SIZE // 8) + 1

    def count_run_pages(self, mailbox: bytes) -> int:
        """Check entries without virtual address (firmware, auxiliary) and count their pages."""
        return sum(1 << log2 for _, _, log2 in self._entries(mailbox))

    def map(self, mailbox: bytes) -> None:
        """Map entries; all or nothing: no page twice, none beyond the size, real memory only."""
        fresh: dict[int, int] = {}
        for virtual, bus, log2 in self._entries(mailbox):
            first = virtual >> _PAGE_SHIFT
            if virtual % ICM_PAGE_SIZE or virtual + (ICM_PAGE_SIZE << log2) > self.size:
                raise bad_parameter()
            for page in range(first, first + (1 << log2)):
                if page in self._pages or page in fresh:
                    raise bad_parameter()
                fresh[page] = bus + ((page - first) << _PAGE_SHIFT)
        self._pages.update(fresh)

    def unmap(self, virtual: int, count: int) -> None:
        """Unmap pages; all or nothing."""
        first = virtual >> _PAGE_SHIFT
        if virtual % ICM_PAGE_SIZE or not 0 < count <= len(self._pages):
            raise bad_parameter()
        pages = range(first, first + count)
        if not all(page in self._pages for page in pages):
            raise bad_parameter()
        for page in pages:
            del self._pages[page]

    def unmap_all(self) -> None:
        """Forget everything: the device was stopped."""
        self._pages.clear()

    def is_mapped(self, virtual: int, length: int) -> bool:
        """Say whether every page of the range is mapped."""
        first = virtual >> _PAGE_SHIFT
        last = (virtual + length - 1) >> _PAGE_SHIFT
        if first == last:
            return first in self._pages
        return all(page in self._pages for page in range(first, last + 1))

    def inspect(self) -> dict[str, object]:
        """Return sizes in pages."""
        return {
            "firmware_pages": self.firmware_pages,
            "auxiliary_pages": self.auxiliary_pages,
            "size": self.size,
            "mapped_pages": len(self._pages),
        }

    def _entries(self, mailbox: bytes) -> list[tuple[int, int, int]]:
        entries = []
        for virtual, run in ICM_MAP_ENTRY.iter_unpack(mailbox):
            log2 = run & (ICM_PAGE_SIZE - 1)
            bus = run - log2
            if log2 > _MOST_RUN_LOG2 or not self._memory.contains(bus, ICM_PAGE_SIZE << log2):
                raise bad_parameter()
            entries.append((virtual, bus, log2))
        return entries


def map_mailbox_length(count: int) -> int:
    """Return the bytes of a mailbox with so many entries; BAD_PARAM for none or too many."""
    if not 0 < count <= MAP_ICM_MOST_ENTRIES:
        raise bad_parameter()
    return count * ICM_MAP_ENTRY.size
