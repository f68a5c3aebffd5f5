"""The two clocks a processor can run by: the machine's own, or one that tests advance."""

from typing import Protocol

from shared.clock import now_ns


class KernelClock(Protocol):
    """Tell the time in integer nanoseconds; never goes back."""

    def now_ns(self) -> int:
        """Return the present time."""


class RealClock:
    """The system's monotonic clock, comparable between processes."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""
        return now_ns()


class VirtualClock:
    """A clock that stands still until the idle processor advances it to the next deadline."""

    __slots__ = ("_now",)

    def __init__(self, start_ns: int = 0) -> None:
        self._now = start_ns

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now

    def advance_to(self, when_ns: int) -> None:
        """Move to `when_ns`, or stay if it has passed already."""
        self._now = max(self._now, when_ns)
