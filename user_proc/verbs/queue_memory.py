"""The memory of a queue: a piece of an arena that a forked child does not get.

Rules: any thread. Views of it are released before it is.
Spec: madvise(2), MADV_DONTFORK; pitfall: a child that writes into its parent's queues.
"""

import ctypes
import errno
import mmap
from typing import Final, Protocol

from shared.segment import round_to_pages
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.verbs.verb_session import VerbRefusal

#: Queues that would need more are refused by their numbers, before any memory is taken.
MOST_BYTES: Final = 256 << 20

_madvise: Final = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class QueueBuffer(Protocol):
    """Memory in an arena."""

    address: int
    length: int

    @property
    def view(self) -> memoryview:
        """Give the bytes themselves."""

    def release(self) -> None:
        """Give it back."""


class QueueAllocator(Protocol):
    """Who gives queues their memory: the process, or a parent domain's program."""

    def allocate(self, length: int, *, page_aligned: bool = False) -> QueueBuffer:
        """Give memory; SofthcaError or VerbRefusal if there is none."""


class QueueMemory:
    """Zeroed, page-aligned memory of a queue; none at all for a queue without entries."""

    __slots__ = ("_buffer", "address", "length")

    def __init__(self, allocator: QueueAllocator, length: int) -> None:
        self._buffer: QueueBuffer | None = None
        self.address = 0
        self.length = length if length <= MOST_BYTES else 0
        if not self.length:
            return
        try:
            buffer = allocator.allocate(round_to_pages(length), page_aligned=True)
        except SofthcaError as error:
            number = error.errno if isinstance(error, NtStatusError) else errno.EIO
            code = errno.ENOMEM if isinstance(error, NtStatusError) else number
            raise VerbRefusal(
                code or errno.EIO, f"the queue's memory cannot be had: {error}"
            ) from error
        ctypes.memset(buffer.address, 0, buffer.length)
        # The pages are wholly the queue's, so no other buffer is taken from a child.
        _madvise(buffer.address, buffer.length, mmap.MADV_DONTFORK)
        self._buffer = buffer
        self.address = buffer.address

    def view(self, start: int = 0, end: int | None = None) -> memoryview:
        """Give a part of it."""
        if self._buffer is None:
            return memoryview(b"")
        return self._buffer.view[start : self.length if end is None else end]

    def release(self) -> None:
        """Give it back to the arena, where a child may see it again."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            _madvise(buffer.address, buffer.length, mmap.MADV_DOFORK)
            buffer.release()
