"""How long device control requests are in the kernel: a histogram of one request in seven.

Timing each would cost a tenth of a microsecond twice for a figure that is no better. Seven has no
common factor with the length of most sequences of verbs, so each verb of a loop has its turn.

Rules: dispatcher's OS thread only. A request that is pended is not counted: its driver decides.
"""

from typing import Any, Final

#: Of the requests of a session every seventh is timed, if it is a device control request.
TIMED_EVERY: Final = 7

_STEPS_LOG: Final = 2  # four buckets for each doubling
_STEPS: Final = 1 << _STEPS_LOG
_DOUBLINGS: Final = 48  # up to 78 hours
_MOST_NS: Final = (1 << _DOUBLINGS) - 1


class RequestTimes:
    """Counts by length; a bucket is at most a quarter longer than it is short."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * (_DOUBLINGS * _STEPS)

    def note(self, length_ns: int) -> None:
        """Count a request."""
        self._counts[_bucket(length_ns)] += 1

    def inspect(self) -> dict[str, Any]:
        """Return the longest time of each bucket that holds any, in order, with its count."""
        counts = enumerate(self._counts)
        return {
            "timed_every": TIMED_EVERY,
            "up_to_ns": [[_longest(bucket), count] for bucket, count in counts if count],
        }


def _bucket(length_ns: int) -> int:
    value = min(max(length_ns, _STEPS), _MOST_NS)
    doublings = value.bit_length() - 1
    return doublings << _STEPS_LOG | value >> doublings - _STEPS_LOG & _STEPS - 1


def _longest(bucket: int) -> int:
    doublings, step = divmod(bucket, _STEPS)
    return (_STEPS + step + 1 << doublings - _STEPS_LOG) - 1
