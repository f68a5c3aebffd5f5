"""What the processor does when no thread can run.

Across processes it sleeps in one zmq poller over the zmq sockets and one epoll descriptor
(plain descriptors, the timer, the wake-up eventfd). In process it has nothing to wait for.

Rules: dispatcher only; `wake` alone may be called from other OS threads.
"""

import gc
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import zmq

from kernel_proc.scheduling.timer_descriptor import TimerDescriptor

_COLLECT_ABOVE: Final = 50_000  # young objects; the collector itself is off in the kernel process
_FULL_AFTER: Final = 20  # collections of the young, or what they let grow old would stay for ever


class Idle(Protocol):
    """Sources of outside work, and the sleep until one of them or a deadline is due."""

    asleep: bool
    sleeps: int

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Call back when `source` is readable."""

    def remove_source(self, source: Any) -> None:
        """Forget `source`."""

    def wait(self, deadline_ns: int | None, posted: deque[Any]) -> None:
        """Sleep until a source, a deadline or a wake-up; run the callbacks of ready sources."""

    def look(self) -> None:
        """Run the callbacks of ready sources without sleeping."""

    def wake(self) -> None:
        """End a sleep; safe from any OS thread."""

    def close(self) -> None:
        """Give descriptors back."""


class VirtualIdle:
    """In process there is no outside: sources never become ready."""

    __slots__ = ("_sources", "asleep", "sleeps")

    def __init__(self) -> None:
        self.asleep = False
        self.sleeps = 0
        self._sources: dict[Any, Callable[[], object]] = {}

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Remember the source; only a test calls its callback."""
        self._sources[source] = callback

    def remove_source(self, source: Any) -> None:
        """Forget the source."""
        self._sources.pop(source, None)

    def wait(self, deadline_ns: int | None, posted: deque[Any]) -> None:
        """Return at once: virtual time is advanced by the dispatcher."""

    def look(self) -> None:
        """Return at once."""

    def wake(self) -> None:
        """Nothing sleeps."""

    def close(self) -> None:
        """Nothing is held."""


class PollerIdle:
    """The real sleep.

    `asleep` is announced before the posted work is looked at once more, and a poster appends
    before it looks at `asleep`, so that one of the two always sees the other.
    """

    __slots__ = (
        "_callbacks",
        "_epoll",
        "_poller",
        "_sockets",
        "_timer",
        "_wake",
        "_wake_lock",
        "asleep",
        "sleeps",
    )

    def __init__(self) -> None:
        self.asleep = False
        self.sleeps = 0
        self._sockets: dict[Any, Callable[[], object]] = {}
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._epoll = select.epoll()
        self._poller = zmq.Poller()
        self._poller.register(self._epoll.fileno(), zmq.POLLIN)
        self._wake: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.Lock()  # between a late `wake` and `close`
        self._timer = TimerDescriptor()
        self.add_source(self._wake, self._drain_wake)
        self.add_source(self._timer.fileno(), self._timer.drain)

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Watch a descriptor (through epoll) or a zmq socket (in the poller)."""
        if isinstance(source, zmq.Socket):
            self._sockets[source] = callback
            self._poller.register(source, zmq.POLLIN)
            return
        descriptor = source if isinstance(source, int) else source.fileno()
        self._callbacks[descriptor] = callback
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove_source(self, source: Any) -> None:
        """Stop watching; call it before the descriptor is closed."""
        if isinstance(source, zmq.Socket):
            if self._sockets.pop(source, None) is not None:
                self._poller.unregister(source)
            return
        descriptor = source if isinstance(source, int) else source.fileno()
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(self, deadline_ns: int | None, posted: deque[Any]) -> None:
        """Sleep; costs no processor time until something happens."""
        young, _, middle_collections = gc.get_count()
        if young > _COLLECT_ABOVE:
            gc.collect(2 if middle_collections >= _FULL_AFTER else 1)
        self._timer.arm(deadline_ns)
        self.asleep = True
        ready = self._poller.poll(0 if posted else None)
        self.sleeps += 1
        self.asleep = False
        self._dispatch(ready)

    def look(self) -> None:
        """Serve what is ready now."""
        self._dispatch(self._poller.poll(0))

    def _dispatch(self, ready: list[tuple[Any, int]]) -> None:
        for source, _ in ready:
            if isinstance(source, zmq.Socket):
                callback = self._sockets.get(source)  # None: an earlier callback removed it
                if callback is not None:
                    callback()
            else:
                self._dispatch_descriptors()

    def _dispatch_descriptors(self) -> None:
        callbacks = self._callbacks
        events = [(descriptor, callbacks.get(descriptor)) for descriptor, _ in self._epoll.poll(0)]
        for descriptor, callback in events:
            # An earlier callback may have removed a later source, even reused its number.
            if callback is not None and callbacks.get(descriptor) is callback:
                callback()

    def wake(self) -> None:
        """Write the eventfd, but only if the processor has announced sleep."""
        if self.asleep:
            with self._wake_lock:
                if self._wake is not None:
                    os.eventfd_write(self._wake, 1)

    def _drain_wake(self) -> None:
        if self._wake is not None:
            os.eventfd_read(self._wake)

    def close(self) -> None:
        """Close epoll, timer and eventfd."""
        self._epoll.close()
        self._timer.close()
        with self._wake_lock:
            if self._wake is not None:
                os.close(self._wake)
            self._wake = None
