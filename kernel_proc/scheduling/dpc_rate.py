"""How many DPCs are asked for in one clock tick: half the history, half the last tick, as in NT.

A tick is 15.625 ms of the processor's clock, virtual or real. No tick interrupts anybody: the
rate is brought up to date when a DPC of low importance asks for it, and requests since the last
time count as spread evenly over the ticks since. While virtual time stands still, all requests
fall into one tick.

Spec: WDK, Organization of DPC Queues (minimum request rate). NT: KiMinimumDpcRate.
"""

from typing import Final

TICK_NS: Final = 15_625_000


class DpcRate:
    """The rate of one processor; at `start_ns` it is zero."""

    __slots__ = ("_requests", "_tick", "rate")

    def __init__(self, start_ns: int) -> None:
        self.rate = 0
        self._tick = start_ns // TICK_NS
        self._requests = 0

    def update(self, now_ns: int, requests: int) -> int:
        """Return the rate at `now_ns`; `requests` is how many there have been ever."""
        tick = now_ns // TICK_NS
        passed = tick - self._tick
        if passed > 0:
            # Fewer than before: some were taken out again and never ran.
            each, left_over = divmod(max(0, requests - self._requests), passed)
            self._tick_by(left_over, each + 1)
            self._tick_by(passed - left_over, each)
            self._tick = tick
            self._requests = requests
        return self.rate

    def _tick_by(self, ticks: int, requests: int) -> None:
        # Some dozen steps at most: then it has settled, however long the silence was.
        for _ in range(ticks):
            before = self.rate
            self.rate = (before + requests) >> 1
            if self.rate == before:
                return
