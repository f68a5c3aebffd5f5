"""Looking for work for a while before sleeping, but not while others want the core.

Who looks yields the core after each look. Should that last, others have work for it, and the
scheduler makes whoever yields wait until they have had their share, while a sleeper that is woken
goes before them. So after a yield that came back late nobody looks for some time: who sleeps is
there sooner then.

Rules: one thread.
Spec: sched_yield(2); Linux Documentation/scheduler/sched-eevdf.rst.
"""

import os
from typing import Final

from shared.clock import now_ns

LATE_NS: Final = 400_000  # more than a step of others takes, less than their share of a core
REST_NS: Final = 50_000_000


class SpinWindow:
    """How long its owner looks before it sleeps; `late` counts the yields that came back late.

    `yielded_ns` is when the last of them came back.
    """

    __slots__ = ("_rests_until_ns", "late", "late_ns", "length_ns", "yielded_ns")

    def __init__(self, length_ns: int, late_ns: int = LATE_NS) -> None:
        self.length_ns = length_ns
        self.late = 0
        self.late_ns = late_ns
        self.yielded_ns = 0
        self._rests_until_ns = 0

    def end(self, begin_ns: int) -> int:
        """Return until when to look if the looking begins now: not at all while others want it."""
        return begin_ns + self.length_ns if begin_ns >= self._rests_until_ns else begin_ns

    def is_open(self, begin_ns: int, at_ns: int) -> bool:
        """Say whether its owner, without work since the one time, is to look on at the other."""
        return at_ns - begin_ns < self.length_ns and at_ns >= self._rests_until_ns

    def yield_core(self, at_ns: int) -> bool:
        """Let others run; False if that took long, and is no good idea any more."""
        os.sched_yield()
        self.yielded_ns = now = now_ns()
        if now - at_ns <= self.late_ns:
            return True
        self.late += 1
        self._rests_until_ns = now + REST_NS
        return False
