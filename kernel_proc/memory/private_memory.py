"""Reach a user's own memory through the two descriptors it handed over, and nobody else's.

Rules: every call may block for as long as the user pleases (a page of a dead file system), so
calls are made by an OS thread of that session, never by the processor. Both descriptors are
bound to the address space that opened them: after exec or death they reach nothing.
Spec: docs/private-memory.md.
"""

import ctypes
import errno
import os
import threading
from typing import Final

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.process_maps import ProcessMaps

_PROC_SUPER_MAGIC: Final = 0x9FA0
_STATFS_SIZE: Final = 256  # more than any architecture's struct statfs
# One transfer allocates no more than this at once, however long the range is.
_LARGEST_TRANSFER: Final = 8 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class PrivateMemory:
    """The memory of one user process, by its /proc/self/mem and /proc/self/maps descriptors.

    Owns both descriptors. `close` may be called while another OS thread is stuck in a transfer:
    the descriptors' numbers are not given back before that transfer has ended, because a reused
    number would be somebody else's memory.
    """

    def __init__(self, memory_descriptor: int, maps_descriptor: int) -> None:
        self._memory = memory_descriptor
        self._maps_descriptor = maps_descriptor
        self.maps = ProcessMaps(maps_descriptor)
        self._lock = threading.Lock()
        self._transfers = 0
        self._closing = False
        try:
            _require_proc_file(memory_descriptor)
            _require_proc_file(maps_descriptor)
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """The /proc/self/mem of the owner; this object's, and open until `close`."""
        return self._memory

    def read(self, address: int, length: int) -> bytes:
        """Return the bytes of a range its owner may read, or raise AccessViolation."""
        self._begin(address, False)
        try:
            self._require(address, length, False)
            pieces, done = [], 0
            while done < length:
                data = self._pread(address + done, min(length - done, _LARGEST_TRANSFER))
                pieces.append(data)
                done += len(data)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            self._end()

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Store `data` where the owner may write; /proc/self/mem alone would ignore read-only."""
        view = memoryview(data).cast("B")
        self._begin(address, True)
        try:
            self._require(address, len(view), True)
            done = 0
            while done < len(view):
                done += self._pwrite(address + done, view[done : done + _LARGEST_TRANSFER])
        finally:
            self._end()

    def require(self, address: int, length: int, is_write: bool) -> None:
        """Raise AccessViolation unless the owner may touch the whole range."""
        self._begin(address, is_write)
        try:
            self._require(address, length, is_write)
        finally:
            self._end()

    def close(self) -> None:
        """Give the descriptors back, at once or when the transfers under way have ended."""
        with self._lock:
            already, self._closing = self._closing, True
            idle = self._transfers == 0
        if idle and not already:
            self._close_descriptors()

    def _begin(self, address: int, is_write: bool) -> None:
        """Note a transfer, which keeps the descriptors open."""
        with self._lock:
            if self._closing:
                raise AccessViolation(address, is_write, "the session has ended")
            self._transfers += 1

    def _end(self) -> None:
        """Note the end of a transfer, and do a close that waited for it."""
        with self._lock:
            self._transfers -= 1
            last = self._closing and self._transfers == 0
        if last:
            self._close_descriptors()

    def _require(self, address: int, length: int, is_write: bool) -> None:
        refused = self.maps.first_refusal(address, length, is_write)
        if refused is not None:
            raise AccessViolation(refused, is_write, "its owner has no such access there")

    def _pread(self, address: int, length: int) -> bytes:
        try:
            data = os.pread(self._memory, length, address)
        except OSError as error:
            raise _violation(error, address, False) from error
        if not data:
            raise AccessViolation(address, False, "the address space is gone")
        return data

    def _pwrite(self, address: int, data: memoryview) -> int:
        try:
            count = os.pwrite(self._memory, data, address)
        except OSError as error:
            raise _violation(error, address, True) from error
        if not count:
            raise AccessViolation(address, True, "the address space is gone")
        return count

    def _close_descriptors(self) -> None:
        os.close(self._memory)
        os.close(self._maps_descriptor)


def _violation(error: OSError, address: int, is_write: bool) -> AccessViolation:
    return AccessViolation(address, is_write, error.strerror or "")


def _require_proc_file(descriptor: int) -> None:
    """Refuse a descriptor that is not a file of procfs, on which an ioctl could mean anything."""
    answer = ctypes.create_string_buffer(_STATFS_SIZE)
    if _libc.fstatfs(descriptor, answer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if ctypes.c_long.from_buffer(answer).value != _PROC_SUPER_MAGIC:
        raise OSError(errno.EINVAL, "not a file of /proc")
