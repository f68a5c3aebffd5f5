"""How many events of an object came here and were acknowledged; destroying it waits for the rest.

The driver says at the end how many it has delivered. Those still on their way are waited for,
those nobody has fetched are dropped, those fetched must be acknowledged by the program.

Rules: `count` from the listener, all else from any thread. The wait can be interrupted; the object
is destroyed by then.
Spec: ibv_destroy_cq(3), ibv_ack_async_event(3).
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from user_proc.transport.one_time_flag import OneTimeFlag

_LOOK_SECONDS: Final = 0.5  # how late the end of the session is noticed


class EventCounts:
    """The events of one kind of one object."""

    __slots__ = ("_lock", "_waiting", "acknowledged", "received")

    def __init__(self) -> None:
        self.received = 0
        self.acknowledged = 0
        self._lock: Final = threading.Lock()
        self._waiting: Final[deque[OneTimeFlag]] = deque()

    def count(self, number: int) -> None:
        """Note that so many have come."""
        with self._lock:
            self.received += number
        self._wake()

    def acknowledge(self, number: int) -> None:
        """Note that so many are done with."""
        with self._lock:
            self.acknowledged += number
        self._wake()

    def wait_for_delivery(self, delivered: int, hopeless: Callable[[], bool]) -> None:
        """Wait until what the driver has delivered is here, or the session has ended."""
        self._wait(lambda: self.received >= delivered, hopeless)

    def wait_for_acknowledgement(self, hopeless: Callable[[], bool]) -> None:
        """Wait until everything that came is acknowledged, or the session has ended."""
        self._wait(lambda: self.acknowledged >= self.received, hopeless)

    def _wait(self, reached: Callable[[], bool], hopeless: Callable[[], bool]) -> None:
        while not reached() and not hopeless():
            changed = OneTimeFlag()
            self._waiting.append(changed)
            if not reached():  # looked at again: it may have come before the flag stood there
                changed.wait(_LOOK_SECONDS)

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.popleft().set()
