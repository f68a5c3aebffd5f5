"""Names the driver's code on the present call stack, for reports.

What lies outside the rooms of the kernel is a driver, and so are those of the kernel's own rooms
that hold drivers.

Spec: WDK, Bug Check 0xCB (parameter 1: the calling address in the driver).
"""

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_KERNEL: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_DRIVERS: Final = tuple(_KERNEL + room + os.sep for room in ("devices", "clients", "driver"))
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep


def calling_driver(depth: int = 1) -> str:
    """Return function, file and line of the innermost driver code on the stack, or "".

    With a greater depth its callers follow, as far as they are the driver's too.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_driver(frame.f_code.co_filename):
        frame = frame.f_back
    names: list[str] = []
    while frame is not None and len(names) < depth and _is_driver(frame.f_code.co_filename):
        code = frame.f_code
        names.append(f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(names)


@functools.cache
def _is_driver(path: str) -> bool:
    if path.startswith(_KERNEL):
        return path.startswith(_DRIVERS)
    return not path.startswith(("<", _LIBRARY))


def routine_name(routine: Callable[..., Any]) -> str:
    """Return a routine's name with the file and line it begins at."""
    name = getattr(routine, "__qualname__", None) or repr(routine)
    code = getattr(routine, "__code__", None)
    if code is None:
        return str(name)
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
