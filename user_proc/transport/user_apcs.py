"""A thread's user APCs: the routines its requests may queue, and those that are to run.

The kernel queues an APC by the id of its request and tells, at the end of an alertable wait, which
are to run. They run in this thread, when that wait has returned, one after the other; one that
raises leaves those behind it for the next alertable wait.

Rules: the owning thread only; `forget` from any thread.
Spec: `shared/envelope.py`, user APCs; WDK: Waits and APCs; Win32: SleepEx.
"""

import struct
from collections import deque
from collections.abc import Callable

from user_proc.errors import ProtocolError

Routine = Callable[[], object]

_ID_BYTES = 8


class UserApcs:
    """The routines of one thread."""

    __slots__ = ("_due", "_expected")

    def __init__(self) -> None:
        self._expected: dict[int, Routine] = {}
        self._due: deque[Routine] = deque()

    def expect(self, request_id: int, routine: Routine) -> None:
        """Note what to run for a request, before it is sent."""
        self._expected[request_id] = routine

    def forget(self, request_id: int) -> None:
        """Note that the kernel queues no APC for a request."""
        self._expected.pop(request_id, None)

    def deliver(self, ids: bytes) -> None:
        """Take the ids an alertable wait has come back with; their routines are due."""
        count, rest = divmod(len(ids), _ID_BYTES)
        if rest:
            raise ProtocolError(f"{len(ids)} bytes are no whole number of request ids")
        for request_id in struct.unpack(f"<{count}Q", ids):
            routine = self._expected.pop(request_id, None)
            if routine is not None:
                self._due.append(routine)

    def run_due(self) -> bool:
        """Run what is due, in order; tell whether there was anything."""
        if not self._due:
            return False
        while self._due:
            self._due.popleft()()
        return True
