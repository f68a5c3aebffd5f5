"""Which processor a thread runs on at the moment.

The HCA says where it runs, and a program that polls looks whether it is there, too.
"""

import ctypes
from collections.abc import Callable
from typing import Final


def _unknown() -> int:
    return -1


#: Give the number of the processor the calling thread runs on, -1 where nobody can tell.
current_processor: Final[Callable[[], int]] = getattr(ctypes.CDLL(None), "sched_getcpu", _unknown)
