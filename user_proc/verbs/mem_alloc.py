"""Memory by address: allocation, mappings, and raw reads and writes.

Rules: addresses are the caller's word; a wrong one crashes the program, as in C.
Spec: rdma-core, pyverbs/mem_alloc.pyx; mmap(2), posix_memalign(3).
"""

import ctypes
import mmap as _mmap
import struct
from typing import Final

from user_proc.verbs.c_integers import IntLike, to_int, to_u32, to_u64
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

PROT_EXEC_: Final = _mmap.PROT_EXEC
PROT_READ_: Final = _mmap.PROT_READ
PROT_WRITE_: Final = _mmap.PROT_WRITE
PROT_NONE_: Final = 0
MAP_PRIVATE_: Final = _mmap.MAP_PRIVATE
MAP_SHARED_: Final = _mmap.MAP_SHARED
MAP_FIXED_: Final = 0x10
MAP_ANONYMOUS_: Final = _mmap.MAP_ANONYMOUS
MAP_STACK_: Final = 0x20000
MAP_LOCKED_: Final = 0x2000
MAP_HUGETLB_: Final = 0x40000
MAP_POPULATE_: Final = 0x8000
MAP_NORESERVE_: Final = 0x4000
MAP_GROWSDOWN_: Final = 0x100

_FAILED: Final = ctypes.c_void_p(-1).value
_WORD: Final = 4
_DOUBLE_WORD: Final = 8

_libc: Final = ctypes.CDLL(None, use_errno=True)
_address: Final = ctypes.c_void_p
_size: Final = ctypes.c_size_t
_int: Final = ctypes.c_int

_libc.mmap.restype = _address
_libc.mmap.argtypes = (_address, _size, _int, _int, _int, ctypes.c_long)
_libc.munmap.argtypes = (_address, _size)
_libc.madvise.argtypes = (_address, _size, _int)
_libc.malloc.restype = _address
_libc.malloc.argtypes = (_size,)
_libc.posix_memalign.argtypes = (ctypes.POINTER(_address), _size, _size)
_libc.free.argtypes = (_address,)


def mmap(
    addr: IntLike = 0,
    length: IntLike = 100,
    prot: IntLike = PROT_READ_ | PROT_WRITE_,
    flags: IntLike = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: IntLike = 0,
    offset: IntLike = 0,
) -> int:
    """Map memory; give its address."""
    found = _libc.mmap(
        to_u64(addr), to_u64(length), to_int(prot), to_int(flags), to_int(fd), to_u64(offset)
    )
    if found is None or found == _FAILED:
        raise MemoryError(f"Failed to map memory of size {length}")
    return int(found)


def munmap(addr: IntLike, length: IntLike) -> None:
    """Unmap memory."""
    if _libc.munmap(to_u64(addr), to_u64(length)):
        raise MemoryError("Failed to unmap the memory address")


def madvise(addr: IntLike, length: IntLike, flags: IntLike = _mmap.MADV_DONTNEED) -> None:
    """Tell the system how a range will be used."""
    if _libc.madvise(to_u64(addr), to_u64(length), to_int(flags)):
        raise PyverbsRDMAError(f"Failed to madvise memory of size {length}", ctypes.get_errno())


def malloc(size: IntLike) -> int:
    """Allocate memory, not zeroed; give its address."""
    found = _libc.malloc(to_u64(size))
    if not found:
        raise MemoryError(f"Failed to allocate memory of size {size}")
    return int(found)


def posix_memalign(size: IntLike, alignment: IntLike = 8) -> int:
    """Allocate aligned, zeroed memory; give its address."""
    found, length = _address(), to_u64(size)
    if _libc.posix_memalign(ctypes.byref(found), to_u64(alignment), length) or not found.value:
        raise MemoryError(f"Failed to allocate memory of size {size}")
    ctypes.memset(found.value, 0, length)
    return found.value


def free(ptr: IntLike) -> None:
    """Free what malloc or posix_memalign gave."""
    _libc.free(to_u64(ptr))


def write(addr: IntLike, data: str | bytes, length: IntLike, offset: IntLike = 0) -> None:
    """Store text or bytes; the offset is in bytes."""
    source = data.encode() if isinstance(data, str) else bytes(data)
    size = to_u64(length)
    if size > len(source):
        raise ValueError(f"the data has {len(source)} bytes, fewer than {size}")
    ctypes.memmove(to_u64(addr) + to_u64(offset), source, size)


def read(addr: IntLike, length: IntLike, offset: IntLike = 0) -> bytes:
    """Load bytes; the offset is in bytes."""
    return ctypes.string_at(to_u64(addr) + to_u64(offset), to_u64(length))


def writebe32(addr: IntLike, val: IntLike, offset: IntLike = 0) -> None:
    """Store 32 bits in big-endian order; the offset counts words."""
    ctypes.memmove(to_u64(addr) + _WORD * to_u64(offset), struct.pack(">I", to_u32(val)), _WORD)


def writebe64(addr: IntLike, val: IntLike, offset: IntLike = 0) -> None:
    """Store 64 bits in big-endian order; the offset counts double words."""
    ctypes.memmove(
        to_u64(addr) + _DOUBLE_WORD * to_u64(offset),
        struct.pack(">Q", to_u64(val)),
        _DOUBLE_WORD,
    )


def read32(addr: IntLike, offset: IntLike = 0) -> int:
    """Load 32 bits in host order; the offset counts words."""
    return ctypes.c_uint32.from_address(to_u64(addr) + _WORD * to_u64(offset)).value


def read64(addr: IntLike, offset: IntLike = 0) -> int:
    """Load 64 bits in host order; the offset counts double words."""
    return ctypes.c_uint64.from_address(to_u64(addr) + _DOUBLE_WORD * to_u64(offset)).value
