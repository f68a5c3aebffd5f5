"""An exception where a signal handler's may come: entering a function, and after a C function."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(Exception):
    """Stands for KeyboardInterrupt, which would end the run."""


def interrupted_at(step: int, routine: Callable[[], Any], *files: str) -> bool:
    """Call, and raise Interrupt at that step of the code of these files; False if it had fewer."""
    left = step

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(files):
            if not left:
                raise Interrupt
            left -= 1

    sys.setprofile(profile)
    try:
        routine()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
