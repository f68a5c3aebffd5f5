"""Events that wait to be fetched, with a descriptor that is readable exactly while one does.

Rules: any thread. `get` waits with every signal handled, and looks neither at the kernel nor at a
clock: who learns of the kernel's end tells it with `end`.
Spec: eventfd(2), EFD_SEMAPHORE; ibv_get_cq_event(3).
"""

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_E = TypeVar("_E")


class EventFdQueue(Generic[_E]):
    """Events in their order; `fd` is the caller's to poll, not to read."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._items: Final[deque[_E]] = deque()
        self._lock: Final = threading.Lock()
        self.ended = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _E, times: int = 1) -> None:
        """Add an event so many times."""
        with self._lock:
            if self.fd >= 0:
                self._items.extend([item] * times)
                os.eventfd_write(self.fd, times)

    def take(self) -> _E | None:
        """Take the oldest event, if there is one."""
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            os.eventfd_read(self.fd)
            return item

    def wait(self) -> None:
        """Wait until there is something to take, or there never will be."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll()

    def discard(self, unwanted: Callable[[_E], bool]) -> int:
        """Drop the events of something that is gone; give their number."""
        with self._lock:
            kept = [item for item in self._items if not unwanted(item)]
            dropped = len(self._items) - len(kept)
            self._items.clear()
            self._items.extend(kept)
            for _ in range(dropped):
                os.eventfd_read(self.fd)
            return dropped

    def end(self) -> None:
        """Have everyone who waits look: nothing will come any more."""
        with self._lock:
            if not self.ended and self.fd >= 0:
                self.ended = True
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            descriptor, self.fd = self.fd, -1
            self._items.clear()
            if descriptor >= 0:
                with contextlib.suppress(OSError):  # the program may have closed it
                    os.close(descriptor)
