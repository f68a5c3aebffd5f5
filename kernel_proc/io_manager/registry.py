"""Finds the I/O manager of a processor for routines that NT gives no machine to name.

Entries are weak: a machine that is dropped leaves the table by itself.
"""

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.processor import Processor

# By id of the processor: an I/O manager keeps its processor alive, so the id is its own.
_managers: Final[dict[int, "weakref.ref[IoManager]"]] = {}


def register_io_manager(io: "IoManager") -> None:
    """Make `io` the I/O manager of its processor; a processor has one."""
    key = id(io.processor)
    if key in _managers:
        raise RuntimeError("this processor has an I/O manager already")
    _managers[key] = weakref.ref(io, lambda _: _managers.pop(key, None))


def io_manager_of(processor: "Processor") -> "IoManager":
    """Return the I/O manager of a processor."""
    try:
        io = _managers[id(processor)]()
    except KeyError:
        io = None
    if io is None:
        raise RuntimeError("this processor has no I/O manager; make one with IoManager(processor)")
    return io
