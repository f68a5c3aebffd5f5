"""The shortest program that still finds the same: parts are left out as long as it does.

Delta debugging over the steps, then over the requests within each burst that is left. Bounded in
time: what has been reached by then is what is given.

Spec: Zeller, Hildebrandt, Simplifying and Isolating Failure-Inducing Input (ddmin).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from shared.clock import now_ns
from user_proc.stress.step_table import Step

#: Tells whether a program still finds what it should.
StillFails = Callable[[Sequence[Step]], bool]
_BURSTS: Final = ("burst", "link")
_ATTEMPTS: Final = 3


class Reducer:
    """One reduction; `tried` is how many programs were run."""

    def __init__(self, still_fails: StillFails, seconds: float) -> None:
        self._still_fails: Final = still_fails
        self._deadline: Final = now_ns() + int(seconds * 1e9)
        self.tried = 0

    @property
    def _over(self) -> bool:
        return now_ns() > self._deadline

    def _fails(self, steps: Sequence[Step]) -> bool:
        self.tried += 1
        return self._still_fails(steps)

    def reduce(self, steps: Sequence[Step]) -> list[Step] | None:
        """Return the shortest program reached; None if the whole one does not fail again."""
        if not any(self._fails(steps) for _ in range(_ATTEMPTS) if not self._over):
            return None
        left = self._without_parts(list(steps), self._fails)
        for place, step in enumerate(left):
            if step[0] in _BURSTS and len(step[-1]) > 1:
                left[place] = self._with_fewer_requests(left, place)
        return left

    def _with_fewer_requests(self, steps: list[Step], place: int) -> Step:
        *head, requests = steps[place]

        def fails(fewer: Sequence[Any]) -> bool:
            return self._fails([*steps[:place], [*head, list(fewer)], *steps[place + 1 :]])

        return [*head, self._without_parts(list(requests), fails)]

    def _without_parts(self, whole: list[Any], fails: Callable[[Sequence[Any]], bool]) -> list[Any]:
        """Leave out halves, quarters and so on down to single ones, as long as it fails."""
        size = max(1, len(whole) // 2)
        while whole and not self._over:
            begin, shorter = 0, False
            while begin < len(whole) and not self._over:
                fewer = whole[:begin] + whole[begin + size :]
                if fewer and fails(fewer):
                    whole, shorter = fewer, True
                else:
                    begin += size
            if size == 1 and not shorter:
                break
            if not shorter:
                size = max(1, size // 2)
        return whole
