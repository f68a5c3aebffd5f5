"""A timerfd through ctypes, since Python has it from 3.13 only.

Spec: timerfd_create(2); CLOCK_MONOTONIC, the clock of `shared.clock`.
"""

import ctypes
import os
import time
from typing import Final

_TFD_CLOEXEC: Final = 0o2000000
_TFD_NONBLOCK: Final = 0o4000
_TFD_TIMER_ABSTIME: Final = 1
_NS_PER_S: Final = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerDescriptor:
    """One descriptor that becomes readable at an absolute time."""

    __slots__ = ("_armed_ns", "_descriptor", "_spec")

    def __init__(self) -> None:
        descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_CLOEXEC | _TFD_NONBLOCK)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._descriptor: int = descriptor
        self._spec = _TimerSpec()
        self._armed_ns: int | None = None

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._descriptor

    def arm(self, when_ns: int | None) -> None:
        """Set the time, or disarm with None; the same time again costs nothing."""
        if when_ns == self._armed_ns:
            return
        self._armed_ns = when_ns
        # A zero value would disarm, so a deadline in the past is the first nanosecond.
        seconds, nanoseconds = divmod(max(when_ns, 1), _NS_PER_S) if when_ns is not None else (0, 0)
        self._spec.value.seconds = seconds
        self._spec.value.nanoseconds = nanoseconds
        if _libc.timerfd_settime(
            self._descriptor, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None
        ):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def drain(self) -> None:
        """Take the expiry, so that the descriptor is not readable any more."""
        self._armed_ns = None
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # re-armed between the poll and this read: it has not expired yet

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
