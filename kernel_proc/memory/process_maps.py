"""What a process may do at which of its addresses, asked of a /proc/PID/maps descriptor.

Rules: the descriptor stays bound to the address space it was opened for. These calls wait for
that process's mmap lock, so they are made by an OS thread that may block.
Spec: Linux, Documentation/filesystems/proc.rst (PROCMAP_QUERY, since 6.11).
"""

import errno
import fcntl
import os
import struct
from typing import Final, NamedTuple

# _IOWR('f', 17, struct procmap_query); x86-64 and arm64 encode ioctl numbers alike.
_PROCMAP_QUERY: Final = 0xC068_6611
# size, query_flags, query_addr | vma start, end, flags, page size, offset, inode | dev major,
# minor, name size, build id size | name address, build id address
_QUERY: Final = struct.Struct("=3Q6Q4I2Q")
_NO_ANSWER: Final = (0,) * 12
_READABLE: Final = 1
_WRITABLE: Final = 2
_NO_SUCH_QUERY: Final = frozenset({errno.ENOTTY, errno.EINVAL, errno.ENOSYS})
_TEXT_CHUNK: Final = 1 << 16


class Region(NamedTuple):
    """One mapping: its range and what its owner may do there."""

    start: int
    end: int
    readable: bool
    writable: bool


class ProcessMaps:
    """The mappings of one address space.

    `query_supported` turns False when the system has no PROCMAP_QUERY; the text is parsed then.
    """

    def __init__(self, descriptor: int, *, query_supported: bool = True) -> None:
        self._descriptor = descriptor
        self.query_supported = query_supported

    def first_refusal(self, address: int, length: int, is_write: bool) -> int | None:
        """Return the first address of the range its owner could not read (or write), else None.

        Once the address space is gone, that is the first address of all.
        """
        end = address + length
        while address < end:
            region = self.find(address)
            if region is None or not (region.writable if is_write else region.readable):
                return address
            address = region.end
        return None

    def find(self, address: int) -> Region | None:
        """Return the mapping that covers `address`, or None."""
        if self.query_supported:
            try:
                return self._query(address)
            except OSError as error:
                if error.errno not in _NO_SUCH_QUERY:
                    return None
                self.query_supported = False
        return self._search_text(address)

    def _query(self, address: int) -> Region | None:
        query = bytearray(_QUERY.pack(_QUERY.size, 0, address, *_NO_ANSWER))
        try:
            fcntl.ioctl(self._descriptor, _PROCMAP_QUERY, query)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return None
            raise
        _, _, _, start, end, flags, *_ = _QUERY.unpack(query)
        return Region(start, end, bool(flags & _READABLE), bool(flags & _WRITABLE))

    def _search_text(self, address: int) -> Region | None:
        """Parse the text as far as needed; its lines are sorted by address."""
        offset, rest = 0, b""
        while True:
            try:
                chunk = os.pread(self._descriptor, _TEXT_CHUNK, offset)
            except OSError:
                return None
            if not chunk:
                return None
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                region = parse_maps_line(line)
                if address < region.end:
                    return region if address >= region.start else None


def parse_maps_line(line: bytes) -> Region:
    """Read one line of /proc/PID/maps: `START-END PERMISSIONS ...`, addresses in hexadecimal."""
    span, permissions = line.split(maxsplit=2)[:2]
    start, end = span.split(b"-")
    return Region(int(start, 16), int(end, 16), permissions[:1] == b"r", permissions[1:2] == b"w")
