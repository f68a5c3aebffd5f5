"""Events that wait to be fetched, and requests that wait for events, until one meets the other.

Every object has a latch, and in it a line for each kind of event it can have; a context has a line
of each kind for requests that take the event of any object. An unread event stands in its object's
line and in the context's. Repetitions of an unread event are counted in it, always for completion
events, else while it is the object's latest, or its line is full.

One event ends at most one request, but all of those that wait for this CQ itself.

Rules: everything but the queues of requests is changed at DISPATCH_LEVEL under the spin lock of
`Notification`, of which the queues' own locks are below.
Spec: NetworkDirect, IND2CompletionQueue::Notify; WinOF core/winverbs/kernel/wv_cq.c.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue
from shared import verb_codes as codes
from shared.verb_messages import Event

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.event import Event as KernelEvent
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

MOST_UNREAD: Final = 64  # of one line, before other repetitions are counted together as well
_MOST_COUNTED: Final = 0xFFFF_FFFF


class EventKind(IntEnum):
    """What a notification request fetches, in the order of their control codes."""

    CA_FATAL = 0
    CA_PORT = 1
    CQ_COMPLETION = 2
    CQ_ASYNC = 3
    QP_ASYNC = 4
    SRQ_ASYNC = 5


KIND_OF_REQUEST: Final[dict[int, EventKind]] = {
    codes.IOCTL_GET_CA_FATAL_EVENT: EventKind.CA_FATAL,
    codes.IOCTL_GET_CA_PORT_EVENT: EventKind.CA_PORT,
    codes.IOCTL_GET_CQ_COMP_EVENT: EventKind.CQ_COMPLETION,
    codes.IOCTL_GET_CQ_ASYNC_EVENT: EventKind.CQ_ASYNC,
    codes.IOCTL_GET_QP_ASYNC_EVENT: EventKind.QP_ASYNC,
    codes.IOCTL_GET_SRQ_ASYNC_EVENT: EventKind.SRQ_ASYNC,
}

OF_DEVICE: Final = (EventKind.CA_FATAL, EventKind.CA_PORT)
OF_CQ: Final = (EventKind.CQ_COMPLETION, EventKind.CQ_ASYNC)
OF_QP: Final = (EventKind.QP_ASYNC,)
OF_SRQ: Final = (EventKind.SRQ_ASYNC,)


class EventObject(Protocol):
    """What a latch belongs to."""

    handle: int

    def note_event(self, event_type: int) -> None:
        """Learn what the event tells of the object; called at DISPATCH_LEVEL."""


class LatchedEvent:
    """One unread event and how often it happened."""

    __slots__ = ("count", "event_type", "kind", "latch", "place", "port")

    def __init__(self, latch: "EventLatch", kind: EventKind, event_type: int, port: int) -> None:
        self.place = next(latch.events.places)
        self.latch = latch
        self.kind = kind
        self.event_type = event_type
        self.port = port
        self.count = 1

    def message(self) -> Event:
        """Return what a request that fetches it is answered."""
        return Event(self.event_type, self.latch.handle, self.port, self.count)

    def happens_again(self) -> None:
        """Count a repetition."""
        self.count = min(self.count + 1, _MOST_COUNTED)


class EventLine:
    """One kind of event, of an object or of all: the unread in order, and who waits for one."""

    __slots__ = ("closed", "requests", "unread")

    def __init__(self, processor: "Processor", name: str) -> None:
        self.closed = False  # no event will come any more
        self.unread: dict[LatchedEvent, None] = {}
        self.requests = CancelSafeQueue(processor, name)

    def repeated(self, event_type: int, port: int, latch: "EventLatch") -> LatchedEvent | None:
        """Return the unread event that a new one only repeats."""
        full = len(self.unread) >= MOST_UNREAD
        for event in reversed(self.unread):
            same = event.event_type == event_type and event.port == port and event.latch is latch
            if same or not full:
                return event if same else None
        return None

    def take_requests(self, most: int) -> "list[Irp]":
        """Take requests nobody is cancelling, at most so many; they are the caller's to end."""
        taken: list[Irp] = []
        while len(taken) < most:
            irp = self.requests.remove_next()
            if irp is None:
                break
            taken.append(irp)
        return taken


class EventLatch:
    """The events of one object; `owner` is None for the context's own latch, of device and ports.

    `completion_events` and `async_events` count what was delivered. A kernel client's CQ has
    `on_completion`, which is called instead.
    """

    __slots__ = (
        "async_events",
        "closed",
        "completion_events",
        "events",
        "lines",
        "on_completion",
        "on_told",
        "owner",
        "told_by",
    )

    def __init__(
        self,
        events: "ContextEvents",
        owner: EventObject | None,
        lines: dict[EventKind, EventLine],
        on_completion: Callable[[], object] | None = None,
    ) -> None:
        self.events = events
        self.owner = owner
        self.lines = lines
        self.on_completion = on_completion
        self.completion_events = 0
        self.async_events = 0
        self.closed = False
        self.told_by: KThread | None = None  # where a kernel client's callback is under way
        self.on_told: list[KernelEvent] = []  # whose owners wait for that callback's end

    @property
    def handle(self) -> int:
        """Return the object's handle, 0 of the device."""
        return 0 if self.owner is None else self.owner.handle

    def add(self, kind: EventKind, event_type: int, port: int = 0) -> None:
        """Latch one event; after the latch was closed it is lost, as nobody can ask for it."""
        if self.closed:
            return
        line = self.lines[kind]
        again = line.repeated(event_type, port, self)
        if again is not None:
            again.happens_again()
            return
        event = LatchedEvent(self, kind, event_type, port)
        line.unread[event] = None
        self.events.lines[kind].unread[event] = None

    def deliver(self, event: LatchedEvent) -> None:
        """Take an unread event out of both lines and count it."""
        self.forget(event)
        if event.kind is EventKind.CQ_COMPLETION:
            self.count_completions(event.count)
        else:
            self.async_events = min(self.async_events + event.count, _MOST_COUNTED)

    def count_completions(self, number: int) -> None:
        """Count completion events as delivered."""
        self.completion_events = min(self.completion_events + number, _MOST_COUNTED)

    def forget(self, event: LatchedEvent) -> None:
        """Take an unread event out of both lines."""
        self.lines[event.kind].unread.pop(event, None)
        self.events.lines[event.kind].unread.pop(event, None)

    def forget_all(self) -> None:
        """Discard everything unread, and whatever comes later."""
        self.closed = True
        for line in self.lines.values():
            line.closed = True
            for event in list(line.unread):
                self.forget(event)

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {
            "unread": sum(len(line.unread) for line in self.lines.values()),
            "waiting": sum(len(line.requests.irps) for line in self.lines.values()),
            "completion_events": self.completion_events,
            "async_events": self.async_events,
        }


class ContextEvents:
    """All events of one context, and its requests for the event of any object.

    A kernel client's context has `asynchronous`, which is called when an event is there for its
    callback.
    """

    __slots__ = (
        "_processor",
        "asynchronous",
        "closing",
        "fatal",
        "latches",
        "lines",
        "own",
        "places",
        "telling",
    )

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor
        self.asynchronous: Callable[[], object] | None = None
        self.closing = False
        self.fatal = False
        self.telling = False  # a thread is calling the kernel client back
        self.places = count()  # of events in the order of the whole context
        self.lines = {kind: EventLine(processor, f"any {kind.name}") for kind in EventKind}
        self.latches: dict[EventLatch, None] = {}
        self.own = EventLatch(self, None, {kind: self.lines[kind] for kind in OF_DEVICE})

    def make_latch(
        self,
        owner: EventObject,
        kinds: Iterable[EventKind],
        on_completion: Callable[[], object] | None = None,
    ) -> EventLatch:
        """Make the latch of a new object."""
        lines = {kind: EventLine(self._processor, kind.name) for kind in kinds}
        latch = EventLatch(self, owner, lines, on_completion)
        self.latches[latch] = None
        return latch

    def all_lines(self) -> list[tuple[EventKind, EventLine]]:
        """Return the lines of the context and of its objects."""
        own = list(self.lines.items())
        return own + [pair for latch in self.latches for pair in latch.lines.items()]

    def match(self, kind: EventKind, line: EventLine) -> "tuple[LatchedEvent, list[Irp]] | None":
        """Find an unread event of a line and who gets it; both are taken out."""
        event = next(iter(line.unread), None)
        if event is None:
            return None
        own, every = event.latch.lines[kind], self.lines[kind]
        requests = own.take_requests(len(own.requests.irps) if kind in OF_CQ else 1)
        if not requests and own is not every:
            requests = every.take_requests(1)
        if not requests:
            return None
        event.latch.deliver(event)
        return event, requests

    def next_request(self, latch: EventLatch, kind: EventKind) -> "Irp | None":
        """Take the request that gets an event which happens now, if that is plain.

        It is if nothing is unread that would be fetched before, and nobody waits for this object.
        """
        own, every = latch.lines[kind], self.lines[kind]
        if latch.closed or self.asynchronous is not None:
            return None
        if every.unread or own.requests.irps or not every.requests.irps:
            return None
        return every.requests.remove_next()

    def next_asynchronous(self) -> LatchedEvent | None:
        """Take the oldest unread event that is no completion, for a callback."""
        first = [
            next(iter(line.unread))
            for kind, line in self.lines.items()
            if line.unread and kind is not EventKind.CQ_COMPLETION
        ]
        if not first:
            return None
        event = min(first, key=lambda one: one.place)
        event.latch.deliver(event)
        return event

    def inspect(self) -> dict[str, Any]:
        """Return plain figures by kind."""
        return {
            kind.name.lower(): {"unread": len(line.unread), "waiting": len(line.requests.irps)}
            for kind, line in self.lines.items()
        }
