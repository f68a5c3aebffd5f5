"""What the HCA reaches by bus address: shared segments and private memories of processes.

A segment that is taken away leaves nothing behind: whoever keeps views of it is told first.

Rules: an address outside what was given is a BusError and touches nothing.
Spec: docs/hca-process.md; a bus address is segment << 48 | offset.
"""

import os
from typing import Final, NamedTuple, Protocol

from kernel_proc.hca_abi.registers import MOST_SEGMENTS, SEGMENT_OFFSET_MASK, SEGMENT_SHIFT


class BusError(Exception):
    """An address range that no segment holds, or that its process does not answer for."""


class SegmentUser(Protocol):
    """Somebody who keeps views of a segment."""

    def segment_gone(self, number: int) -> None:
        """Drop every view of the segment; it is unmapped after this call."""


class PrivateRun(NamedTuple):
    """A range of one process's private memory; `address` is that process's own."""

    segment: "PrivateSegment"
    address: int
    length: int


class PrivateSegment(Protocol):
    """The private memory of one process: who copies from and to it counts himself."""

    number: int
    fd: int
    copies: int  # under way; the descriptor stays open for them

    def close_if_idle(self) -> None:
        """Close the descriptor if the segment is gone and nothing copies."""


Piece = memoryview | PrivateRun


class _Segment:
    """Shared memory (`view`), or the private memory of one process (`fd`)."""

    __slots__ = ("closing", "copies", "fd", "length", "number", "users", "view")

    def __init__(self, number: int, view: memoryview | None, fd: int) -> None:
        self.number = number
        self.view = view
        self.fd = fd
        self.copies = 0
        self.closing = False
        self.length = len(view) if view is not None else SEGMENT_OFFSET_MASK + 1
        self.users: dict[SegmentUser, int] = {}

    def close(self) -> None:
        if self.view is not None:
            self.view.release()
        self.closing = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Give the descriptor back, unless a copy uses it: its number would be another's."""
        if self.closing and not self.copies and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        # A device in this process may just be dropped; its descriptors are its own.
        if self.fd >= 0:
            os.close(self.fd)


class DeviceMemory:
    """The segments by number."""

    def __init__(self) -> None:
        self._segments: Final[dict[int, _Segment]] = {}

    def add(self, number: int, view: memoryview | None, memory_fd: int = -1) -> None:
        """Take a segment; a descriptor is owned from now on."""
        if not 0 < number < MOST_SEGMENTS or number in self._segments:
            raise ValueError(f"{number} is no free segment number")
        if view is None and memory_fd < 0:
            raise ValueError("a segment needs a view or a descriptor")
        own = view.cast("B") if view is not None else None
        self._segments[number] = _Segment(number, own, memory_fd)

    def remove(self, number: int) -> None:
        """Forget a segment, after its users have dropped their views."""
        segment = self._segments.pop(number, None)
        if segment is None:
            return
        for user in list(segment.users):
            user.segment_gone(number)
        segment.close()

    def contains(self, address: int, length: int) -> bool:
        """Say whether the range lies within one segment."""
        segment = self._segments.get(address >> SEGMENT_SHIFT)
        return segment is not None and (address & SEGMENT_OFFSET_MASK) + length <= segment.length

    def view(self, address: int, length: int) -> memoryview:
        """Return the bytes themselves; only shared segments have them."""
        segment = self._segments.get(address >> SEGMENT_SHIFT)
        offset = address & SEGMENT_OFFSET_MASK
        if segment is None or segment.view is None or offset + length > segment.length:
            raise BusError(f"no shared memory at {address:#x} for {length} bytes")
        return segment.view[offset : offset + length]

    def piece(self, address: int, length: int) -> Piece:
        """Return the bytes themselves, or where they are if they are private."""
        segment = self._find(address, length)
        offset = address & SEGMENT_OFFSET_MASK
        if segment.view is not None:
            return segment.view[offset : offset + length]
        return PrivateRun(segment, offset, length)

    def hold(self, address: int, user: SegmentUser) -> None:
        """Note that `user` keeps a view of the segment of this address."""
        users = self._segments[address >> SEGMENT_SHIFT].users
        users[user] = users.get(user, 0) + 1

    def drop(self, address: int, user: SegmentUser) -> None:
        """Undo one `hold`."""
        segment = self._segments.get(address >> SEGMENT_SHIFT)
        if segment is None or user not in segment.users:
            return
        segment.users[user] -= 1
        if not segment.users[user]:
            del segment.users[user]

    def read(self, address: int, length: int) -> bytes:
        """Copy bytes out; private memory that does not answer in full is a BusError."""
        segment = self._find(address, length)
        offset = address & SEGMENT_OFFSET_MASK
        if segment.view is not None:
            return bytes(segment.view[offset : offset + length])
        parts = bytearray()
        while len(parts) < length:
            part = self._private_read(segment.fd, length - len(parts), offset + len(parts))
            if not part:
                raise BusError(f"private memory at {address:#x} does not answer")
            parts += part
        return bytes(parts)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes in; a part may have been written when a BusError comes."""
        length = len(data)
        segment = self._find(address, length)
        offset = address & SEGMENT_OFFSET_MASK
        if segment.view is not None:
            segment.view[offset : offset + length] = data
            return
        done = 0
        rest = memoryview(data)
        while done < length:
            try:
                count = os.pwrite(segment.fd, rest[done:], offset + done)
            except OSError as error:
                raise BusError(f"private memory at {address:#x}: {error.strerror}") from error
            if count == 0:
                raise BusError(f"private memory at {address:#x} does not answer")
            done += count

    def inspect(self) -> dict[str, object]:
        """Return each segment's kind and length."""
        return {
            str(number): {
                "kind": "shared" if segment.view is not None else "private",
                "length": segment.length,
            }
            for number, segment in self._segments.items()
        }

    def close(self) -> None:
        """Forget everything."""
        for number in list(self._segments):
            self.remove(number)

    def _find(self, address: int, length: int) -> _Segment:
        segment = self._segments.get(address >> SEGMENT_SHIFT)
        if segment is None or (address & SEGMENT_OFFSET_MASK) + length > segment.length:
            raise BusError(f"no memory at {address:#x} for {length} bytes")
        return segment

    @staticmethod
    def _private_read(fd: int, length: int, offset: int) -> bytes:
        try:
            return os.pread(fd, length, offset)
        except (OSError, OverflowError) as error:
            raise BusError(f"private memory at {offset:#x}: {error}") from error
