"""The session's way to the HCA as this process has it mapped: doorbell segment and status page.

Neither is there in a forked child: what it wrote would be its parent's.

Rules: any thread.
Spec: shared/doorbell_layout.py; madvise(2), MADV_DONTFORK.
"""

import contextlib
import errno
import mmap
import os
from typing import Self

from shared.segment import map_segment
from user_proc.memory.inherited_mappings import keep_in_children


class MappedDoorbells:
    """Segment `number` (UAR) to write, the HCA's status page to read, `poke_fd` to wake the HCA."""

    def __init__(
        self, number: int, segment: memoryview, status_page: memoryview, poke_fd: int
    ) -> None:
        self.number = number
        self.segment = segment
        self.status_page = status_page
        self.poke_fd = poke_fd

    @classmethod
    def map(
        cls,
        number: int,
        doorbell_fd: int,
        status_fd: int,
        poke_fd: int,
        length: int,
        status_length: int,
    ) -> Self:
        """Map what the kernel granted; its descriptors are taken over, whatever happens."""
        try:
            segment = map_segment(doorbell_fd, length)
            keep_in_children(segment)
            segment.madvise(mmap.MADV_DONTFORK)
            status = _map_for_reading(status_fd, status_length)
            keep_in_children(status)
            status.madvise(mmap.MADV_DONTFORK)
            return cls(number, memoryview(segment), memoryview(status), poke_fd)
        except BaseException:
            os.close(poke_fd)
            raise
        finally:
            os.close(doorbell_fd)
            os.close(status_fd)

    def close(self) -> None:
        """Let go; a view that was handed on keeps its memory."""
        for view in (self.segment, self.status_page):
            with contextlib.suppress(BufferError):
                view.release()
        if self.poke_fd >= 0:
            os.close(self.poke_fd)
            self.poke_fd = -1


def _map_for_reading(descriptor: int, length: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if not 0 < length <= size:
        raise OSError(errno.EINVAL, f"cannot map {length} bytes of a page of {size}")
    return mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
