"""Notification: what the HCA tells is latched, and ends the requests that users have pended for it.

A request is put into its queue first and matched with what is latched afterwards; an event is
latched first and matched afterwards, or both at once where the match is plain. Whichever of the two
is second finds the other, so none is lost and none is fetched twice.

Rules: the sinks at DISPATCH_LEVEL; requests at PASSIVE_LEVEL. Requests are ended after the lock is
released, but before the IRQL is lowered: a later event cannot overtake.
Spec: NetworkDirect, IND2CompletionQueue::Notify; WinOF core/winverbs/kernel/wv_cq.c; WDK,
Cancel-Safe IRP Queues; docs/notification.md.
"""

import errno
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.event_latch import (
    ContextEvents,
    EventKind,
    EventLatch,
    EventLine,
    LatchedEvent,
)
from kernel_proc.driver.event_types import PORT_EVENTS, QP_EVENTS, SRQ_EVENTS
from kernel_proc.driver.gid_cache import GidCache
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp_flags import IO_NETWORK_INCREMENT
from kernel_proc.scheduling.event import Event as KernelEvent
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.spinlock import SpinLock
from shared.message_codec import encode
from shared.nt_status import STATUS_CANCELLED, STATUS_SUCCESS
from shared.verb_codes import VERB_RESULT
from shared.verb_messages import COMPLETION_EVENT, Event
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_event_type

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.kernel_doorbells import KernelDoorbells
    from kernel_proc.driver.queue_resource import QueueResource
    from kernel_proc.driver.xrcd_verbs import Domain
    from kernel_proc.io_manager.irp import Irp

_ALL: Final = 1 << 32
_KNOWN_EVENTS: Final = 1024
_SUCCESS: Final = VERB_RESULT.pack(0, VerbReason.NONE, 0, 0)
_DEAD: Final = VERB_RESULT.pack(errno.EIO, VerbReason.DEVICE_FATAL, 0, 0)

_CQ_ERROR: Final = int(ibv_event_type.IBV_EVENT_CQ_ERR)
_DEVICE_FATAL: Final = int(ibv_event_type.IBV_EVENT_DEVICE_FATAL)


class Notification:
    """The events of one life of the HCA; what the driver calls its event sinks.

    Queues are found by their numbers without a lock: who takes one out has its HCA context taken
    back first, and flushes the queued DPCs afterwards. What else queues of all contexts share is
    here too: XRC domains by inode, GIDs, the lock of the multicast table, the kernel's doorbells.
    """

    __slots__ = (
        "_contexts",
        "_driver",
        "_processor",
        "cqs",
        "domains",
        "gids",
        "kernel_doorbells",
        "lock",
        "multicast_lock",
        "multicast_repairs",
        "qps",
        "srqs",
    )

    def __init__(self, driver: "HcaDriver") -> None:
        self._driver = driver
        self._processor = driver.processor
        self._contexts: dict[int, ContextEvents] = {}
        self.lock = SpinLock(driver.processor, "notification")
        self.cqs: dict[int, EventLatch] = {}
        self.qps: dict[int, EventLatch] = {}
        self.srqs: dict[int, EventLatch] = {}
        self.domains: dict[tuple[int, int], Domain] = {}
        self.multicast_lock = Mutex(driver.processor)
        self.multicast_repairs: list[tuple[bytes, int]] = []  # see multicast_groups
        self.gids = GidCache()
        self.kernel_doorbells: KernelDoorbells | None = None

    # Contexts and objects

    def events_of(self, context: "Context") -> ContextEvents:
        """Return the events of a context, made at first use."""
        events = self._contexts.get(context.number)
        if events is None:
            for number in [n for n in self._contexts if n not in self._driver.contexts]:
                del self._contexts[number]
            events = self._contexts[context.number] = ContextEvents(self._processor)
        return events

    def make_latch(
        self,
        owner: "QueueResource",
        kinds: Iterable[EventKind],
        on_completion: Callable[[], object] | None = None,
    ) -> EventLatch:
        """Make the latch of an object that is being created."""
        events = self.events_of(owner.context)
        old = self.lock.acquire()
        latch = events.make_latch(owner, kinds, on_completion)
        self.lock.release(old)
        return latch

    def close_latch(self, latch: EventLatch) -> None:
        """End an object's events: discard the unread, cancel its requests; PASSIVE_LEVEL.

        Returns when no callback about the object is under way, but in a callback itself.
        """
        events = latch.events
        old = self.lock.acquire()
        latch.forget_all()
        events.latches.pop(latch, None)
        self.lock.release(old)
        for kind, line in latch.lines.items():
            self._settle(events, kind, line)
        self._await_callback(latch)

    def _await_callback(self, latch: EventLatch) -> None:
        while latch.told_by not in (None, self._processor.current_thread):
            ended = KernelEvent(self._processor, notification=True)
            latch.on_told.append(ended)
            ended.wait()

    # What the interrupt side tells

    def completion(self, cqn: int) -> None:
        """Latch a completion event of an armed CQ, or call its kernel client."""
        latch = self.cqs.get(cqn)
        if latch is None:
            return
        if latch.on_completion is not None:
            latch.on_completion()
        elif not self._hand_over(latch):
            self._latch(latch, EventKind.CQ_COMPLETION, COMPLETION_EVENT)

    def _hand_over(self, latch: EventLatch) -> bool:
        """End a request with a completion event at once: what latch and match come to mostly.

        False, and nothing is done, unless it is plain who gets it (`next_request`).
        """
        self.lock.acquire_at_dpc_level()
        irp = latch.events.next_request(latch, EventKind.CQ_COMPLETION)
        if irp is not None:
            latch.count_completions(1)
        self.lock.release_from_dpc_level()
        if irp is None:
            return False
        _answer(irp, _output_of(COMPLETION_EVENT, latch.handle, 0, 1))
        return True

    def cq_error(self, cqn: int, syndrome: int) -> None:
        """Latch the error of a CQ."""
        latch = self.cqs.get(cqn)
        if latch is not None:
            self._driver.log(f"CQ {cqn:#x}: error, syndrome {syndrome}")
            self._latch(latch, EventKind.CQ_ASYNC, _CQ_ERROR)

    def qp_event(self, qpn: int, event_type: int) -> None:
        """Latch an event of a QP, which may have been moved by the HCA."""
        self._object_event(self.qps.get(qpn), EventKind.QP_ASYNC, QP_EVENTS.get(event_type))

    def srq_event(self, srqn: int, event_type: int) -> None:
        """Latch an event of an SRQ."""
        self._object_event(self.srqs.get(srqn), EventKind.SRQ_ASYNC, SRQ_EVENTS.get(event_type))

    def port_event(self, port: int, subtype: int) -> None:
        """Latch a change of a port in every context."""
        self.gids.forget(port)
        event_type = PORT_EVENTS.get(subtype)
        if event_type is None:
            return
        for context in list(self._driver.contexts.values()):
            self._latch(self.events_of(context).own, EventKind.CA_PORT, event_type, port)

    def device_fatal(self) -> None:
        """Latch the death of the HCA in every context; whatever else is pended is refused."""
        for context in list(self._driver.contexts.values()):
            events = self.events_of(context)
            if events.fatal:
                continue
            events.fatal = True
            self._latch(events.own, EventKind.CA_FATAL, _DEVICE_FATAL)
            for kind, line in events.all_lines():
                self._settle(events, kind, line)

    def context_closing(self, context: "Context") -> None:
        """Cancel every request of a context, discard what it has not read; PASSIVE_LEVEL.

        Returns when no callback of the context is under way, but in a callback itself.
        """
        events = self.events_of(context)
        old = self.lock.acquire()
        events.closing = True
        latches = [events.own, *events.latches]
        for latch in latches:
            latch.forget_all()
        self.lock.release(old)
        for kind, line in events.all_lines():
            self._settle(events, kind, line)
        for latch in latches:
            self._await_callback(latch)

    def _object_event(
        self, latch: EventLatch | None, kind: EventKind, event_type: int | None
    ) -> None:
        if latch is None or event_type is None:
            return
        if latch.owner is not None:
            latch.owner.note_event(event_type)
        self._latch(latch, kind, event_type)

    def _latch(self, latch: EventLatch, kind: EventKind, event_type: int, port: int = 0) -> None:
        old = self.lock.acquire()
        latch.add(kind, event_type, port)
        self.lock.release(old)
        if latch.events.asynchronous is not None:
            latch.events.asynchronous()
            return
        self._settle(latch.events, kind, latch.lines[kind])

    # Requests

    def pend(
        self, irp: "Irp", kind: EventKind, events: ContextEvents, latch: EventLatch | None
    ) -> None:
        """Queue a request for an event of an object, of any object if `latch` is None.

        It may have ended when this returns: the IRP is not the caller's any more.
        """
        line = events.lines[kind] if latch is None else latch.lines[kind]
        line.requests.insert(irp)
        self._settle(events, kind, line)

    def _settle(self, events: ContextEvents, kind: EventKind, line: EventLine) -> None:
        """Give events of a line to requests while there are both; end requests without hope."""
        processor = self._processor
        old = processor.raise_irql(DISPATCH_LEVEL)
        while line.unread:
            self.lock.acquire_at_dpc_level()
            found = events.match(kind, line)
            self.lock.release_from_dpc_level()
            if found is None:
                break
            event, requests = found
            for irp in requests:
                _answer(irp, _output_of(*event.message()))
        if events.closing or line.closed:
            for irp in line.take_requests(_ALL):
                _cancel(irp)
        elif events.fatal:
            for irp in line.take_requests(_ALL):
                _answer(irp, _DEAD)
        processor.lower_irql(old)

    # Callbacks of kernel clients

    def tell(self, events: ContextEvents, routine: Callable[[Event], object]) -> None:
        """Call a kernel client's routine with every unread event, the oldest first.

        At PASSIVE_LEVEL; one thread of a context at a time does it, for all.
        """
        old = self.lock.acquire()
        busy, events.telling = events.telling, True
        self.lock.release(old)
        while not busy and self._tell_next(events, routine):
            pass

    def _tell_next(self, events: ContextEvents, routine: Callable[[Event], object]) -> bool:
        old = self.lock.acquire()
        event: LatchedEvent | None = events.next_asynchronous()
        if event is not None:
            event.latch.told_by = self._processor.current_thread
        else:
            events.telling = False
        self.lock.release(old)
        if event is None:
            return False
        routine(event.message())
        event.latch.told_by = None
        for ended in event.latch.on_told:
            ended.set()
        event.latch.on_told.clear()
        return True

    def inspect(self) -> dict[str, Any]:
        """Return plain figures of every context."""
        return {str(number): events.inspect() for number, events in self._contexts.items()}


@lru_cache(_KNOWN_EVENTS)
def _output_of(event_type: int, handle: int, port: int, count: int) -> bytes:
    """Lay out what a request that fetches an event is answered; most are like one before."""
    return _SUCCESS + encode(Event(event_type, handle, port, count))


def _answer(irp: "Irp", output: bytes) -> None:
    irp.system_buffer[: len(output)] = output
    irp.status = STATUS_SUCCESS
    irp.information = len(output)
    complete_request(irp, IO_NETWORK_INCREMENT)


def _cancel(irp: "Irp") -> None:
    irp.status = STATUS_CANCELLED
    irp.information = 0
    complete_request(irp)


def notification_of(driver: "HcaDriver") -> Notification:
    """Return the notification of one life of the HCA."""
    sinks = driver.event_sinks
    assert isinstance(sinks, Notification)
    return sinks
