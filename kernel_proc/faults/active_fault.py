"""A fault that is set: which of the calls that fit it takes.

Rules: one thread.
"""

import random
from typing import Any, Final

from shared.fault_messages import Fault
from shared.fault_points import CERTAIN, word_of


class ActiveFault:
    """A fault with its number, what has come of it, and when it is over (None: when cleared)."""

    __slots__ = ("_random", "calls", "fault", "hits", "number", "until_ns")

    def __init__(self, number: int, fault: Fault, now_ns: int) -> None:
        self.number: Final = number
        self.fault: Final = fault
        self.until_ns: Final = now_ns + fault.lasts_ns if fault.lasts_ns else None
        self.calls = 0
        self.hits = 0
        self._random: Final = random.Random(fault.seed)

    def __str__(self) -> str:
        kept = {k: v for k, v in self.inspect().items() if k not in ("number", "calls", "hits")}
        return " ".join((kept.pop("point"), *(f"{word}={value}" for word, value in kept.items())))

    @property
    def spent(self) -> bool:
        """Whether it can strike no more."""
        fault = self.fault
        most = fault.times or (1 if fault.nth else 0)
        return bool(most) and self.hits >= most

    def is_over(self, now_ns: int) -> bool:
        """Tell whether its time is over."""
        return self.until_ns is not None and now_ns >= self.until_ns

    def strikes(self) -> bool:
        """Count a call that fits; True if the fault takes it."""
        if self.spent:
            return False
        self.calls += 1
        fault = self.fault
        if fault.nth:
            hit = self.calls == fault.nth
        elif fault.every:
            hit = self.calls % fault.every == 0
        elif fault.probability:
            hit = self._random.random() * CERTAIN < fault.probability
        else:
            hit = True
        self.hits += hit
        return hit

    def inspect(self) -> dict[str, Any]:
        """Return what was asked for, how many calls fitted, and how many were struck."""
        given = {
            word_of(name): value
            for name, value in zip(self.fault._fields, self.fault, strict=True)
            if value and not name.endswith("_ns") and name != "probability"
        }
        if self.fault.probability:
            given["probability"] = self.fault.probability / CERTAIN
        for name in ("time_ns", "lasts_ns"):
            if value := getattr(self.fault, name):
                given[name] = value
        return {"number": self.number, **given, "calls": self.calls, "hits": self.hits}
