"""How the HCA's process spends its time: asleep, looking for work, or at work, which is the rest.

Kept where the loop changes from one to the other, so that a round costs no more for it.

Rules: one thread.
"""

from typing import Any


class LoopTimes:
    """Sums in nanoseconds; a device that is stepped in process has none."""

    __slots__ = ("looked_ns", "sleeps", "slept_ns")

    def __init__(self) -> None:
        self.looked_ns = 0
        self.slept_ns = 0
        self.sleeps = 0

    def inspect(self, now_ns: int) -> dict[str, Any]:
        """Return the sums, and the time at which they are so."""
        return {
            "now_ns": now_ns,
            "looked_ns": self.looked_ns,
            "slept_ns": self.slept_ns,
            "sleeps": self.sleeps,
        }
