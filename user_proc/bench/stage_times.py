"""From trace points to stages: where the time of one request went, without a gap.

A stage is what happened until the point that ends it, so the stages of a request add up to its
time, from the reading of the clock before the call to the one after it. Points of the sending
side that the other process may overtake are left out: USER_SENT and ANSWER_SENT.

Rules: made after a block, from the points of both processes; synchronous requests only.
Spec: shared/trace_points.py.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from shared.trace_points import (
    BUFFERS_READY,
    COMPLETING,
    COPIED_BACK,
    COPYING_BACK,
    DEVICE_QUEUED,
    DPC_ENTERED,
    DRIVER_CALLED,
    DRIVER_RETURNED,
    FAST_IO,
    FINISHED,
    INTERRUPT,
    KERNEL_RECEIVED,
    SERVICE_ENTERED,
    USER_ANSWERED,
    USER_CALL,
    USER_COPIED,
    USER_SENDING,
    TracePoint,
)

MARSHAL: Final = "user marshal"
TO_KERNEL: Final = "to the kernel"
DISPATCH: Final = "dispatch"
COPY_IN: Final = "copy in or map"
DRIVER: Final = "driver"
QUEUE: Final = "queue"
DPC: Final = "dpc"
COMPLETION: Final = "completion"
COPY_OUT: Final = "copy out"
TO_USER: Final = "to the user"
TO_CALLER: Final = "copy to caller"

#: In the order in which a request passes them.
STAGES: Final = (
    MARSHAL,
    TO_KERNEL,
    DISPATCH,
    COPY_IN,
    DRIVER,
    QUEUE,
    DPC,
    COMPLETION,
    COPY_OUT,
    TO_USER,
    TO_CALLER,
)

_ENDS: Final = {
    USER_CALL: MARSHAL,
    USER_SENDING: MARSHAL,
    KERNEL_RECEIVED: TO_KERNEL,
    SERVICE_ENTERED: DISPATCH,
    BUFFERS_READY: COPY_IN,
    DRIVER_CALLED: DRIVER,
    FAST_IO: DRIVER,
    DEVICE_QUEUED: DRIVER,
    INTERRUPT: QUEUE,
    DPC_ENTERED: QUEUE,
    COMPLETING: DRIVER,
    COPYING_BACK: COMPLETION,
    COPIED_BACK: COPY_OUT,
    FINISHED: COMPLETION,
    DRIVER_RETURNED: DRIVER,
    USER_ANSWERED: TO_USER,
    USER_COPIED: TO_CALLER,
}
_NEEDED: Final = (USER_SENDING, KERNEL_RECEIVED, SERVICE_ENTERED, USER_ANSWERED)


def stages_of(points: Sequence[TracePoint], begin_ns: int, end_ns: int) -> dict[str, int] | None:
    """Return the time of each stage of one request; None when points of it are missing.

    `points` are in order of time, `begin_ns` and `end_ns` what the caller's clock said.
    """
    known = [point for point in points if point.point in _ENDS]
    names = [point.point for point in known]
    if not all(name in names for name in _NEEDED) or not _inside(known, begin_ns, end_ns):
        return None
    times = dict.fromkeys(STAGES, 0)
    before, seen = begin_ns, set[str]()
    for point in known:
        times[_stage(point.point, seen)] += point.ns - before
        before = point.ns
        seen.add(point.point)
    times[TO_CALLER] += end_ns - before
    return times


def _inside(points: Sequence[TracePoint], begin_ns: int, end_ns: int) -> bool:
    return begin_ns <= points[0].ns and points[-1].ns <= end_ns


def _stage(point: str, seen: set[str]) -> str:
    """Return the stage a point ends, which may depend on those passed before."""
    if point == DPC_ENTERED and INTERRUPT in seen:
        return DPC
    if point == COMPLETING and DPC_ENTERED in seen:
        return DPC
    if point == DRIVER_RETURNED and COMPLETING in seen:
        return COMPLETION
    return _ENDS[point]


def stages_of_all(
    requests: Iterable[Sequence[TracePoint]], moments: Sequence[tuple[int, int]]
) -> list[dict[str, int] | None]:
    """Return the stages of each operation, given when each began and ended.

    A request belongs to the operation in which its first point was passed; those of none, such as
    the calls that switch the tracing, are left out.
    """
    begins = [begin for begin, _ in moments]
    found: list[dict[str, int] | None] = [None] * len(moments)
    for points in requests:
        index = bisect_right(begins, points[0].ns) - 1
        if index >= 0 and points[0].ns <= moments[index][1]:
            found[index] = stages_of(points, *moments[index])
    return found
