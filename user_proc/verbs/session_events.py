"""What becomes of the events of a context: into channels, into the asynchronous queue, counted.

Rules: the sinks run in the listener; they take short locks and wait for nothing else.
Spec: ibv_get_cq_event(3), ibv_get_async_event(3); docs/verbs.md.
"""

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from shared.message_codec import decode_as
from shared.verb_codes import (
    IOCTL_GET_CA_FATAL_EVENT,
    IOCTL_GET_CA_PORT_EVENT,
    IOCTL_GET_CQ_ASYNC_EVENT,
    IOCTL_GET_CQ_COMP_EVENT,
    IOCTL_GET_QP_ASYNC_EVENT,
    IOCTL_GET_SRQ_ASYNC_EVENT,
)
from shared.verb_messages import Destroyed, Event
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_event_type
from user_proc.errors import SofthcaError
from user_proc.verbs.event_counts import EventCounts
from user_proc.verbs.event_fd_queue import EventFdQueue
from user_proc.verbs.event_pump import EventPump, Sink
from user_proc.verbs.reasons import reason_text
from user_proc.verbs.verb_session import VerbSession

if TYPE_CHECKING:
    from user_proc.transport.completion_table import Flag

_CQ_ERROR: Final = int(ibv_event_type.IBV_EVENT_CQ_ERR)
_DEVICE_FATAL: Final = int(ibv_event_type.IBV_EVENT_DEVICE_FATAL)
_COMPLETIONS_AHEAD: Final = 2

_E = TypeVar("_E")


class ObjectEvents:
    """The events of one CQ, QP or SRQ, known by its handle; `channel` where completions go."""

    __slots__ = ("asynchronous", "broken", "channel", "completions")

    def __init__(self, channel: "EventFdQueue[ObjectEvents] | None" = None) -> None:
        self.channel: Final = channel
        self.completions: Final = EventCounts()
        self.asynchronous: Final = EventCounts()
        self.broken = False  # a CQ that reported an error


class AsynchronousEvent(NamedTuple):
    """An asynchronous event as it lies in the queue; `about` is None for device and ports."""

    event_type: int
    about: ObjectEvents | None
    port: int


class SessionEvents:
    """Every event of a context, and where it waits."""

    def __init__(self, session: VerbSession) -> None:
        self._session: Final = session
        self.pump: Final = EventPump(session)
        self.asynchronous: Final[EventFdQueue[AsynchronousEvent]] = EventFdQueue()
        self.forgotten_channels: Final[deque[EventFdQueue[ObjectEvents]]] = deque()
        self._channels: Final[list[EventFdQueue[ObjectEvents]]] = []
        self._objects: Final[dict[int, ObjectEvents]] = {}
        self._flags: Final[list[Flag]] = []
        self._failure_lock: Final = threading.Lock()
        self._failure_told = False
        session.when_dead(self._end)
        try:
            self._want(IOCTL_GET_CA_FATAL_EVENT, self._fatal, once=True)
        except BaseException:
            self.release()
            raise

    # Who wants what; VerbRefusal if it cannot be had

    def new_channel(self) -> "EventFdQueue[ObjectEvents]":
        """Make a completion channel."""
        self._want(IOCTL_GET_CQ_COMP_EVENT, self._completion, depth=_COMPLETIONS_AHEAD)
        while self.forgotten_channels:
            self.close_channel(self.forgotten_channels.popleft())
        channel: EventFdQueue[ObjectEvents] = EventFdQueue()
        self._channels.append(channel)
        if self._session.dead:
            channel.end()
        return channel

    def close_channel(self, channel: "EventFdQueue[ObjectEvents]") -> None:
        """Give up a channel none of whose CQs is left."""
        self._channels.remove(channel)
        channel.close()

    def want_cq_errors(self) -> None:
        """Learn of completion queues that break."""
        self._want(IOCTL_GET_CQ_ASYNC_EVENT, self._asynchronous)

    def want_asynchronous(self) -> None:
        """Have all asynchronous events come here."""
        self.want_cq_errors()
        self._want(IOCTL_GET_CA_PORT_EVENT, self._asynchronous)
        self._want(IOCTL_GET_QP_ASYNC_EVENT, self._asynchronous)
        self._want(IOCTL_GET_SRQ_ASYNC_EVENT, self._asynchronous)

    def _want(self, code: int, sink: Sink, *, depth: int = 1, once: bool = False) -> None:
        try:
            self.pump.want(code, sink, depth=depth, once=once)
        except SofthcaError as error:
            raise self._session.refused(error) from error

    def add(self, handle: int, events: ObjectEvents) -> None:
        """Know an object by its handle."""
        self._objects[handle] = events

    def retire(self, handle: int, events: ObjectEvents, answer: bytes) -> None:
        """Wait for the events of an object that is destroyed, as the driver's answer counts them.

        Without an answer the session is over, and none will come. Events nobody has fetched are
        dropped; those fetched must be acknowledged.
        """
        if answer:
            delivered = decode_as(Destroyed, answer)
            events.completions.wait_for_delivery(delivered.completion_events, self._hopeless)
            events.asynchronous.wait_for_delivery(delivered.async_events, self._hopeless)
        self._objects.pop(handle, None)
        if events.channel is not None:
            dropped = events.channel.discard(lambda one: one is events)
            events.completions.acknowledge(dropped)
        dropped = self.asynchronous.discard(lambda one: one.about is events)
        events.asynchronous.acknowledge(dropped)
        events.completions.wait_for_acknowledgement(self._hopeless)
        events.asynchronous.wait_for_acknowledgement(self._hopeless)

    def forget(self, handle: int) -> None:
        """Know an object no more that went out of reach; nobody can acknowledge its events."""
        events = self._objects.pop(handle, None)
        if events is not None:
            if events.channel is not None:
                events.channel.discard(lambda one: one is events)
            self.asynchronous.discard(lambda one: one.about is events)

    # Waiting

    def wait_for(self, events: "EventFdQueue[_E]") -> _E | None:
        """Take the oldest event, waiting for it; None when none will come any more."""
        while True:
            self.pump.fill()
            item = events.take()
            if item is not None or events.ended or events.fd < 0:
                return item
            if self.pump.in_process:
                self._run_kernel(events)
            else:
                events.wait()

    def _run_kernel(self, events: "EventFdQueue[_E]") -> None:
        """Have the kernel in this process go on until something has come."""
        flag = self._session.process.channel.listener().new_flag()
        self._flags.append(flag)
        try:
            if not events and not events.ended:
                flag.wait()
        finally:
            self._flags.remove(flag)

    # What comes

    def _completion(self, event: Event) -> None:
        found = self._objects.get(event.object)
        if found is not None and found.channel is not None:
            found.completions.count(event.count)
            found.channel.put(found, event.count)
        self._tell()

    def _asynchronous(self, event: Event) -> None:
        found = self._objects.get(event.object) if event.object else None
        if found is not None:
            found.asynchronous.count(event.count)
            found.broken = found.broken or event.event_type == _CQ_ERROR
        if found is not None or not event.object:
            self.asynchronous.put(
                AsynchronousEvent(event.event_type, found, event.port), event.count
            )
        self._tell()

    def _fatal(self, event: Event) -> None:
        self._session.die(
            reason_text(VerbReason.DEVICE_FATAL, 0, 0),
            device_failed=True,
        )

    def _tell_of_the_failure(self) -> None:
        """Queue the device's last event, once: a verb or a poll may learn of it before it comes."""
        with self._failure_lock:
            if not self._failure_told:
                self._failure_told = True
                self.asynchronous.put(AsynchronousEvent(_DEVICE_FATAL, None, 0))

    def _end(self) -> None:
        if self._session.device_failed:
            self._tell_of_the_failure()
        self.asynchronous.end()
        for channel in list(self._channels):
            channel.end()
        self._tell()

    def _tell(self) -> None:
        for flag in list(self._flags):
            flag.set()

    def _hopeless(self) -> bool:
        return bool(self._session.trouble)

    def close(self) -> None:
        """Stop asking; the file is closed after this."""
        self.pump.close()

    def release(self) -> None:
        """Give the descriptors back."""
        self.asynchronous.close()
        for channel in self._channels:
            channel.close()
        self._channels.clear()
