"""A bounded ring of (ns, point, id) trace points, off unless asked for, and the points' names.

One request leaves its points in the rings of both processes under its request id, on one clock:

    USER_CALL        the caller's buffers are looked at
    USER_SENDING     the header is packed
    USER_SENT        the message is with ZeroMQ
    KERNEL_RECEIVED  it was taken from the kernel's socket
    SERVICE_ENTERED  the system service begins, on the caller's kernel thread
    BUFFERS_READY    IRP made; input copied in, or pages locked
    DRIVER_CALLED    the driver is called; FAST_IO: its fast I/O routine has returned
    DEVICE_QUEUED    pended: in the driver's list, or given to its hardware
    INTERRUPT        the service routine has found it finished
    DPC_ENTERED      the DPC takes it up
    COMPLETING       IoCompleteRequest
    COPYING_BACK     the completion APC begins to copy the output for the caller
    COPIED_BACK      the output was copied for the caller
    FINISHED         the completion APC is done
    DRIVER_RETURNED  the dispatch routine has returned
    ANSWER_SENT      the reply is with ZeroMQ; COMPLETION_SENT: the completion
    USER_ANSWERED    the reply was read; USER_COMPLETION: the listener has the completion
    USER_COPIED      the output is in the caller's buffer

    with process.open_device("benchmark") as device:
        device.device_io_control(IOCTL_TRACE_CONTROL, (1).to_bytes(4, "little"))
        trace.clear()
        trace.enabled = True                       # this process's own ring
        ...                                        # requests
        trace.enabled = False
        device.device_io_control(IOCTL_TRACE_CONTROL, (0).to_bytes(4, "little"))
        room = bytearray(POINT_SIZE * trace.capacity)
        length = device.device_io_control(IOCTL_TRACE_FETCH, None, room)
    for request_id, points in by_request([*trace.last(), *unpack_points(room[:length])]).items():
        ...                                        # each request's points, in order of time

Rules: any thread; a hot path asks `trace.enabled` first, so that a ring that is off costs one
attribute read. An entry is one reference stored in a list, which no reader can see half of.
"""

import itertools
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from shared.clock import now_ns

USER_CALL: Final = "user call"
USER_SENDING: Final = "user sending"
USER_SENT: Final = "user sent"
KERNEL_RECEIVED: Final = "kernel received"
SERVICE_ENTERED: Final = "io service"
BUFFERS_READY: Final = "io buffers"
FAST_IO: Final = "io fast"
DRIVER_CALLED: Final = "io driver called"
DEVICE_QUEUED: Final = "device queued"
INTERRUPT: Final = "device interrupt"
DPC_ENTERED: Final = "device dpc"
COMPLETING: Final = "io completing"
COPYING_BACK: Final = "io copying back"
COPIED_BACK: Final = "io copied back"
FINISHED: Final = "io finished"
DRIVER_RETURNED: Final = "io driver returned"
ANSWER_SENT: Final = "kernel answered"
COMPLETION_SENT: Final = "kernel completed"
USER_ANSWERED: Final = "user answered"
USER_COMPLETION: Final = "user completion"
USER_COPIED: Final = "user copied"

_OTHER: Final = "other"  # a point only its own process has a name for

#: The numbers of the points when they travel.
POINTS: Final = (
    _OTHER,
    USER_CALL,
    USER_SENDING,
    USER_SENT,
    KERNEL_RECEIVED,
    SERVICE_ENTERED,
    BUFFERS_READY,
    FAST_IO,
    DRIVER_CALLED,
    DEVICE_QUEUED,
    INTERRUPT,
    DPC_ENTERED,
    COMPLETING,
    COPYING_BACK,
    COPIED_BACK,
    FINISHED,
    DRIVER_RETURNED,
    ANSWER_SENT,
    COMPLETION_SENT,
    USER_ANSWERED,
    USER_COMPLETION,
    USER_COPIED,
)
_NUMBERS: Final = {point: number for number, point in enumerate(POINTS)}

# ns, id, number of the point
_POINT: Final = struct.Struct("<QQI4x")
_LARGEST_ID: Final = (1 << 64) - 1
POINT_SIZE: Final = _POINT.size


class TracePoint(NamedTuple):
    """One passage: when, where, and of which request or object."""

    ns: int
    point: str
    id: int


class TraceRing:
    """The last `capacity` trace points."""

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a trace ring needs room for at least one point, not {capacity}")
        self.capacity: Final = capacity
        self.enabled = False
        self._entries: list[tuple[int, str, int] | None] = [None] * capacity
        self._counter = itertools.count()

    def record(self, point: str, id: int = 0) -> None:  # noqa: A002 - the field's name
        """Note that `id` passes `point` now; nothing is noted while the ring is off."""
        if self.enabled:
            self._entries[next(self._counter) % self.capacity] = (now_ns(), point, id)

    def last(self, n: int | None = None) -> list[TracePoint]:
        """Give the latest `n` points (all when None), oldest first."""
        entries = sorted(entry for entry in self._entries if entry is not None)
        wanted = entries if n is None else entries[max(0, len(entries) - n) :]
        return [TracePoint._make(entry) for entry in wanted]

    def clear(self) -> None:
        """Forget every point."""
        self._entries[:] = [None] * self.capacity


def pack_points(points: Iterable[TracePoint]) -> bytes:
    """Pack points for the other process."""
    return b"".join(
        _POINT.pack(point.ns, point.id & _LARGEST_ID, _NUMBERS.get(point.point, 0))
        for point in points
    )


def unpack_points(data: bytes | bytearray | memoryview) -> list[TracePoint]:
    """Unpack points; ValueError for bytes that are none."""
    if len(data) % POINT_SIZE:
        raise ValueError(f"{len(data)} bytes are no whole number of trace points")
    points = []
    for ns, passed_by, number in _POINT.iter_unpack(data):
        if number >= len(POINTS):
            raise ValueError(f"there is no trace point {number}")
        points.append(TracePoint(ns, POINTS[number], passed_by))
    return points


def by_request(points: Iterable[TracePoint]) -> dict[int, list[TracePoint]]:
    """Sort points into requests by their id, each in order of time."""
    requests: dict[int, list[TracePoint]] = {}
    for point in sorted(points):
        requests.setdefault(point.id, []).append(point)
    return requests


trace: Final = TraceRing()
