"""Notification alone: contexts and objects made of nothing, IRPs that note how they end."""

from typing import Any

from kernel_proc.driver.event_latch import (
    OF_CQ,
    OF_QP,
    OF_SRQ,
    ContextEvents,
    EventKind,
    EventLatch,
)
from kernel_proc.driver.notification import Notification
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    set_completion_routine,
    set_next_irp_stack_location,
)
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor
from shared.message_codec import decode
from shared.nt_status import STATUS_MORE_PROCESSING_REQUIRED
from shared.verb_codes import VERB_RESULT
from shared.verb_messages import Event

CLASSES = {"cq": OF_CQ, "qp": OF_QP, "srq": OF_SRQ}


class Context:
    """What notification knows of a context."""

    def __init__(self, number: int) -> None:
        self.number = number


class Thing:
    """An object with a latch."""

    def __init__(self, context: Context, handle: int) -> None:
        self.context = context
        self.handle = handle
        self.noted: list[int] = []
        self.latch: EventLatch

    def note_event(self, event_type: int) -> None:
        self.noted.append(event_type)


class Driver:
    """What notification knows of a life of the HCA."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.contexts: dict[int, Any] = {}
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


class Ended:
    """How a request ended."""

    def __init__(self, irp: Irp) -> None:
        self.status = irp.status
        self.errno = self.reason = 0
        self.event: Event | None = None
        if irp.information:
            output = bytes(irp.system_buffer[: irp.information])
            self.errno, self.reason, _, _ = VERB_RESULT.unpack_from(output)
            if not self.errno:
                message = decode(output[VERB_RESULT.size :])
                assert isinstance(message, Event)
                self.event = message


class Bench:
    """A processor, a notification, and whatever is pended in it."""

    def __init__(self, verifier: bool = True) -> None:
        self.processor = Processor(VirtualClock(), verifier=verifier)
        self.io = IoManager(self.processor)
        self.driver = Driver(self.processor)
        self.notification = Notification(self.driver)  # type: ignore[arg-type]  # as much as it uses
        self.ended: dict[Irp, Ended] = {}
        self.order: list[Irp] = []
        self._handles = 0

    def context(self) -> Context:
        context = Context(len(self.driver.contexts) + 1)
        self.driver.contexts[context.number] = context
        return context

    def events(self, context: Context) -> ContextEvents:
        return self.notification.events_of(context)  # type: ignore[arg-type]  # as above

    def thing(self, context: Context, kind: str, number: int, on_completion: Any = None) -> Thing:
        self._handles += 1
        thing = Thing(context, self._handles)
        latch = self.notification.make_latch(thing, CLASSES[kind], on_completion)  # type: ignore[arg-type]  # as above
        table = {
            "cq": self.notification.cqs,
            "qp": self.notification.qps,
            "srq": self.notification.srqs,
        }[kind]
        table[number] = latch
        thing.latch = latch
        return thing

    def request(self) -> Irp:
        """Make an IRP as a driver finds it."""
        irp = allocate_irp(self.processor, 1)
        irp.system_buffer = bytearray(256)
        set_completion_routine(irp, self._completed)
        set_next_irp_stack_location(irp)
        return irp

    def _completed(self, device: Any, irp: Irp, context: Any) -> int:
        assert irp not in self.ended, "an IRP ended twice"
        assert not self.notification.lock.held, "an IRP ended under the lock"
        self.ended[irp] = Ended(irp)
        self.order.append(irp)
        return STATUS_MORE_PROCESSING_REQUIRED

    def pend(
        self, context: Context, kind: EventKind, thing: Thing | None = None, irp: Irp | None = None
    ) -> Irp:
        irp = irp or self.request()
        latch = thing.latch if thing is not None else None
        self.notification.pend(irp, kind, self.events(context), latch)
        return irp

    def at_dispatch(self, routine: Any, *args: Any) -> None:
        """Call a sink as a DPC would."""
        old = self.processor.raise_irql(DISPATCH_LEVEL)
        routine(*args)
        self.processor.lower_irql(old)

    def event_of(self, irp: Irp) -> Event | None:
        ended = self.ended.get(irp)
        return ended.event if ended is not None else None
