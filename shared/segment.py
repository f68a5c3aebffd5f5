"""Shared-memory segments: made by the kernel, mapped by every process that is handed one.

Rules: pages are reserved at creation, so a segment that exists never ends in SIGBUS; the size is
sealed, so no holder can shrink or grow it under the others. Failures are OSError.
"""

import errno
import fcntl
import mmap
import os
from typing import Final

PAGE_SIZE: Final = mmap.PAGESIZE

_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def round_to_pages(length: int) -> int:
    """Return `length` rounded up to whole pages."""
    return (length + PAGE_SIZE - 1) & -PAGE_SIZE


def create_segment(name: str, length: int) -> int:
    """Make a memfd of exactly `length` bytes, reserved and sealed; the caller owns the descriptor.

    `name` shows in /proc/PID/maps only; two segments may have the same.
    """
    if length <= 0:
        raise OSError(errno.EINVAL, "a segment needs at least one byte")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_segment(descriptor: int, length: int) -> mmap.mmap:
    """Map `length` bytes of a segment for reading and writing; `descriptor` may then be closed.

    The true size is compared first: a page mapped beyond the end would be SIGBUS when touched.
    """
    size = os.fstat(descriptor).st_size
    if not 0 < length <= size:
        raise OSError(errno.EINVAL, f"cannot map {length} bytes of a segment of {size}")
    return mmap.mmap(descriptor, length)
