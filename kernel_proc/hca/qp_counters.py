"""What is counted of a queue pair and of a port: messages, bytes, retries, and drops by reason.

A port's figures are those of its queue pairs, living and gone, and its own drops; so a message is
counted once, where it is sent or taken.
"""

from collections import Counter
from typing import Final

FIGURES: Final = (
    "sent_messages",
    "sent_bytes",
    "received_messages",
    "received_bytes",
    "rnr_naks_sent",
    "rnr_naks_received",
    "retries",
    "timeouts",
    "flushes",
)


class QpCounters:
    """The figures of one queue pair; `drops` counts arriving messages by why they went nowhere."""

    __slots__ = ("drops", *FIGURES)

    def __init__(self) -> None:
        self.sent_messages = 0
        self.sent_bytes = 0
        self.received_messages = 0
        self.received_bytes = 0
        self.rnr_naks_sent = 0
        self.rnr_naks_received = 0
        self.retries = 0
        self.timeouts = 0
        self.flushes = 0
        self.drops: Counter[str] = Counter()

    def add(self, other: "QpCounters") -> None:
        """Take another's figures into these."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.drops += other.drops

    def inspect(self) -> dict[str, object]:
        """Return every figure."""
        return {**{name: getattr(self, name) for name in FIGURES}, "drops": dict(self.drops)}
