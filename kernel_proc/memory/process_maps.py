"""What a process may do at which of its addresses, asked of a /proc/PID/maps descriptor.

Rules: the descriptor stays bound to the address space it was opened for. These calls wait for
that process's mmap lock, so they are made by an OS thread that may block.
Spec: Linux, Documentation/filesystems/proc.rst (PROCMAP_QUERY, since 6.11).
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
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

    def allows(self, is_write: bool) -> bool:
        """Tell whether the owner may do it there."""
        return self.writable if is_write else self.readable


class _NoQuery(Exception):
    """This system cannot be asked."""


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
        if self.query_supported:
            try:
                return self._refusal_by_query(address, end, is_write)
            except _NoQuery:
                self.query_supported = False
        return self._refusal_in_text(address, end, is_write)

    def find(self, address: int) -> Region | None:
        """Return the mapping that covers `address`, or None."""
        if self.query_supported:
            try:
                return self._query(address)
            except _NoQuery:
                self.query_supported = False
        for region in self._regions_of_text():
            if address < region.end:
                return region if address >= region.start else None
        return None

    def _refusal_by_query(self, address: int, end: int, is_write: bool) -> int | None:
        while address < end:
            region = self._query(address)
            if region is None or not region.allows(is_write):
                return address
            address = region.end
        return None

    def _refusal_in_text(self, address: int, end: int, is_write: bool) -> int | None:
        # In one pass: a process can have tens of thousands of mappings.
        if address >= end:
            return None
        for region in self._regions_of_text():
            if address < region.end:
                if address < region.start or not region.allows(is_write):
                    return address
                address = region.end
                if address >= end:
                    return None
        return address

    def _query(self, address: int) -> Region | None:
        query = bytearray(_QUERY.pack(_QUERY.size, 0, address, *_NO_ANSWER))
        try:
            fcntl.ioctl(self._descriptor, _PROCMAP_QUERY, query)
        except OSError as error:  # mostly ENOENT, no mapping, and ESRCH, no address space
            if error.errno in _NO_SUCH_QUERY:
                raise _NoQuery from error
            return None
        _, _, _, start, end, flags, *_ = _QUERY.unpack(query)
        return Region(start, end, bool(flags & _READABLE), bool(flags & _WRITABLE))

    def _regions_of_text(self) -> Iterator[Region]:
        """Parse the text as far as needed; its lines are sorted by address.

        A text that its owner disturbs, by reading or by changing what it shows, ends there.
        """
        offset, rest = 0, b""
        while True:
            try:
                chunk = os.pread(self._descriptor, _TEXT_CHUNK, offset)
            except OSError:
                return
            if not chunk:
                return
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                try:
                    yield parse_maps_line(line)
                except ValueError:
                    return


def parse_maps_line(line: bytes) -> Region:
    """Read one line of /proc/PID/maps: `START-END PERMISSIONS ...`, addresses in hexadecimal."""
    span, permissions = line.split(maxsplit=2)[:2]
    start, end = span.split(b"-")
    return Region(int(start, 16), int(end, 16), permissions[:1] == b"r", permissions[1:2] == b"w")
