"""The part of a run of given duration that is measured: all but the margins at both ends."""

from typing import Final

_SECOND: Final = 1_000_000_000


class Window:
    """From when to when counts what happens; `stop` is when the run is over."""

    def __init__(self, start: int, duration: int, margin: int) -> None:
        self.begin: Final = start + margin * _SECOND
        self.end: Final = start + (duration - margin) * _SECOND
        self.stop: Final = start + duration * _SECOND
        self.count = 0

    @property
    def length(self) -> int:
        """Its length in nanoseconds."""
        return self.end - self.begin

    def note(self, when: int, number: int) -> None:
        """Count what happened at this time, if that is within."""
        if self.begin <= when < self.end:
            self.count += number
