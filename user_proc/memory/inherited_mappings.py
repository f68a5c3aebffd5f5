"""Mappings with pages that no child inherits: a child of fork keeps the objects for its whole life.

MADV_DONTFORK takes the pages from a child, not the Python object. When that object goes, it unmaps
its range, and in the child something else may lie in the hole by then: a segment of its own.

Rules: any thread. A child pays for what is kept with addresses, not with memory.
Spec: madvise(2), fork(2).
"""

import mmap
import os
import weakref
from typing import Final

_mapped: Final["weakref.WeakSet[mmap.mmap]"] = weakref.WeakSet()
_kept: Final[list[mmap.mmap]] = []


def keep_in_children(mapping: mmap.mmap) -> None:
    """Have a child of fork never unmap this; here it goes with its last reference."""
    _mapped.add(mapping)


def _keep() -> None:
    _kept.extend(_mapped)


os.register_at_fork(after_in_child=_keep)
