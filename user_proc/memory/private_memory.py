"""Name this process's own memory to the kernel: addresses of buffers, and the two descriptors.

Rules: an address is good only while its buffer is pinned; bytearrays move when they grow.
Spec: docs/private-memory.md; Python C API: Buffer Protocol.
"""

import ctypes
import os
from types import TracebackType
from typing import Final, NamedTuple

_SIMPLE: Final = 0
_WRITABLE: Final = 1


class OwnMemory(NamedTuple):
    """Descriptors that give their receiver this address space, until exec or death."""

    memory: int
    maps: int

    def close(self) -> None:
        """Close both here; descriptors already sent stay good."""
        os.close(self.memory)
        os.close(self.maps)


def open_own_memory() -> OwnMemory:
    """Open /proc/self/mem for reading and writing, and /proc/self/maps; raise OSError.

    Opened by the owner itself, they work in a kernel process that has no right to trace it.
    """
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        return OwnMemory(memory, os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        os.close(memory)
        raise


class _PyBuffer(ctypes.Structure):
    """Py_buffer, part of the stable ABI since Python 3.11."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


class PinnedBuffer:
    """A buffer held where it is: `address` and `length` stay true until `release`.

    Takes whatever has the buffer protocol: bytes, bytearray, memoryview, array, ctypes, mmap.
    Raises BufferError for a read-only buffer to be written, or one that is not contiguous.
    """

    __slots__ = ("_held", "address", "length")

    def __init__(self, buffer: object, *, writable: bool = False) -> None:
        self._held: _PyBuffer | None = None
        held = _PyBuffer()
        _get_buffer(buffer, held, _WRITABLE if writable else _SIMPLE)
        self._held = held
        self.length: int = held.len
        self.address: int = held.buf or 0

    def release(self) -> None:
        """Let the buffer move again; the kernel must be done with it."""
        held, self._held = self._held, None
        if held is not None:
            _release_buffer(held)

    def __enter__(self) -> "PinnedBuffer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_held"):  # else interrupted before there was anything
            self.release()
