"""Whether the bell that has ended the HCA's sleep will end in an event: as it did the last times.

The kernel's processor takes about as long to wake as the HCA takes from a bell to the interrupt.
So it is woken at once when the last bells that woke the HCA were followed by events; both have
woken side by side then. Told in vain it looks for a while and sleeps again, and after some times
it is not told any more.

Rules: the HCA's thread.
Spec: docs/hca-process.md.
"""

from typing import Final

from kernel_proc.hca.event_table import EventTable

_MOST: Final = 8
_GAIN: Final = 2  # an arm may wake the HCA as well, and needs no event


class Foretelling:
    """The trust in an event to come, from those that came."""

    __slots__ = ("_events", "_seen", "_trust", "told")

    def __init__(self, events: EventTable) -> None:
        self._events: Final = events
        self._seen = events.written
        self._trust = 0
        self.told = 0

    def rung(self) -> bool:
        """Say, when a bell has ended a sleep, whether an event is likely to follow."""
        written = self._events.written
        if written != self._seen:
            self._seen = written
            self._trust = min(_MOST, self._trust + _GAIN)
        elif self._trust:
            self._trust -= 1
        self.told += self._trust > 0
        return self._trust > 0
