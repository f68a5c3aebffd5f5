"""A flag that is set once and waited for by any number of threads, Ctrl-C or not.

The Event and Condition of the library are Python code around a lock: an exception that a signal
handler raises inside them can leave that lock held, and whoever sets the flag then waits for
ever. Here the lock is taken by waiters alone, and nobody depends on its being given back.

Rules: any thread; `set` never waits.
"""

import threading
from typing import Final

from shared.clock import now_ns

_LOOK_SECONDS: Final = 0.5  # how late another waiter is when one was interrupted with the lock
_NS_PER_SECOND: Final = 1_000_000_000


class OneTimeFlag:
    """Made unset; `set` is for good."""

    __slots__ = ("_is_set", "_latch")

    def __init__(self) -> None:
        self._is_set = False
        self._latch = threading.Lock()
        self._latch.acquire()

    def is_set(self) -> bool:
        """Tell whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it; by one thread only."""
        if not self._is_set:
            self._is_set = True
            self._latch.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False when `timeout` seconds ran out."""
        if self._is_set:
            return True
        deadline = None if timeout is None else now_ns() + round(timeout * _NS_PER_SECOND)
        while not self._is_set:
            left = _LOOK_SECONDS
            if deadline is not None:
                left = min(left, (deadline - now_ns()) / _NS_PER_SECOND)
                if left <= 0:
                    break
            if self._latch.acquire(timeout=left):
                self._latch.release()  # for the next waiter
        return self._is_set
