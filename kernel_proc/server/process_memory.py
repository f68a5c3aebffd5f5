"""How much memory this process has of its own, and giving back what the allocator keeps.

Rules: any OS thread; not on the path of a request.
Spec: proc(5), statm; malloc_trim(3).
"""

import ctypes
import os
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None)


def private_bytes() -> int:
    """Return the resident memory that is nobody else's: without arenas and files."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * _PAGE


def machine_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def give_back_unused() -> None:
    """Return to the system what has been freed; another C library than GNU's does it by itself."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
