"""What the processor does when no thread can run.

Across processes it sleeps in one zmq poller over the zmq sockets and one epoll descriptor
(plain descriptors, the timer, the wake-up eventfd). Before it sleeps it looks for a short while,
yielding to whoever else wants the core: a client that has its answer asks again at once, a device
command is done in less time than a sleep and a wake-up take. In process it has nothing to wait for.

Rules: dispatcher only; `wake` alone may be called from other OS threads.
"""

import gc
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from kernel_proc.scheduling.timer_descriptor import TimerDescriptor
from shared.clock import now_ns
from shared.spin_window import SpinWindow

if TYPE_CHECKING:
    from kernel_proc.scheduling.interrupt_line import InterruptLine

_COLLECT_ABOVE: Final = 50_000  # young objects; the collector itself is off in the kernel process
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_FULL_AFTER: Final = 20  # collections of the young, or what they let grow old would stay for ever


class Idle(Protocol):
    """Sources of outside work, and the sleep until one of them or a deadline is due."""

    asleep: bool
    sleeps: int
    window: SpinWindow

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Call back when `source` is readable."""

    def remove_source(self, source: Any) -> None:
        """Forget `source`."""

    def wait(
        self, deadline_ns: int | None, posted: deque[Any], line: "InterruptLine | None" = None
    ) -> None:
        """Sleep until a source, a deadline, a wake-up or the line; run callbacks of ready sources.

        The device of `line` is told of the sleep, since it writes its eventfd for a sleeper only.
        """

    def look(self) -> None:
        """Run the callbacks of ready sources without sleeping."""

    def wake(self) -> None:
        """End a sleep; safe from any OS thread."""

    def close(self) -> None:
        """Give descriptors back."""


class VirtualIdle:
    """In process there is no outside: sources never become ready."""

    __slots__ = ("_sources", "asleep", "sleeps", "window")

    def __init__(self) -> None:
        self.asleep = False
        self.sleeps = 0
        self.window = SpinWindow(0)
        self._sources: dict[Any, Callable[[], object]] = {}

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        """Remember the source; only a test calls its callback."""
        self._sources[source] = callback

    def remove_source(self, source: Any) -> None:
        """Forget the source."""
        self._sources.pop(source, None)

    def wait(
        self, deadline_ns: int | None, posted: deque[Any], line: "InterruptLine | None" = None
    ) -> None:
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
    before it looks at `asleep`, so that one of the two always sees the other. `window` is how
    long it looks before it sleeps. An interrupt that ended the sleep goes before the descriptors,
    which are looked at when there is nothing to do again.
    """

    __slots__ = (
        "_callbacks",
        "_epoll",
        "_looks",
        "_owes_look",
        "_poller",
        "_sockets",
        "_timer",
        "_wake",
        "_wake_lock",
        "asleep",
        "sleeps",
        "window",
    )

    def __init__(self) -> None:
        self.asleep = False
        self.sleeps = 0
        self.window = SpinWindow(0)
        self._sockets: dict[Any, Callable[[], object]] = {}
        self._looks: dict[Any, Callable[[int], Any]] = {}
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._owes_look = False
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
            # The C method itself: the Python layer above it costs more than it gives.
            self._looks[source] = super(zmq.Socket, source).get
            self._poller.register(source, zmq.POLLIN)
            return
        descriptor = source if isinstance(source, int) else source.fileno()
        self._callbacks[descriptor] = callback
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove_source(self, source: Any) -> None:
        """Stop watching; call it before the descriptor is closed."""
        if isinstance(source, zmq.Socket):
            if self._sockets.pop(source, None) is not None:
                del self._looks[source]
                self._poller.unregister(source)
            return
        descriptor = source if isinstance(source, int) else source.fileno()
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(
        self, deadline_ns: int | None, posted: deque[Any], line: "InterruptLine | None" = None
    ) -> None:
        """Sleep; costs no processor time until something happens."""
        young, _, middle_collections = gc.get_count()
        if young > _COLLECT_ABOVE:
            gc.collect(2 if middle_collections >= _FULL_AFTER else 1)
        if self._owes_look:
            self.look()
            return
        if self.window.length_ns and self._spin(deadline_ns, posted, line):
            return
        self._timer.arm(deadline_ns)
        self.asleep = True
        if line is None:
            ready = self._poller.poll(0 if posted else None)
        else:
            ready = self._poller.poll(0 if line.announce_sleep() or posted else None)
            line.awake()
        self.sleeps += 1
        self.asleep = False
        if line is not None and line.is_raised():
            self._owes_look = True
        else:
            self._dispatch(ready)

    def _spin(
        self, deadline_ns: int | None, posted: deque[Any], line: "InterruptLine | None"
    ) -> bool:
        """Look for a while; True if there is something to do. Descriptors are not looked at."""
        now = now_ns()
        until = self.window.end(now)
        if deadline_ns is not None and deadline_ns < until:
            until = deadline_ns
        while True:
            for socket, get in self._looks.items():
                if get(_EVENTS) & _POLLIN:
                    self._sockets[socket]()
                    return True
            if posted or (line is not None and line.is_raised()):
                return True
            now = now_ns()
            if now >= until:
                return False
            if not self.window.yield_core(now):
                until = now

    def look(self) -> None:
        """Serve what is ready now."""
        self._owes_look = False
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
