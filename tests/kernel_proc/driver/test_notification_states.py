"""Notification against a model that knows nothing of queues: lists, and the rules in words."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kernel_proc.driver.event_latch import EventKind
from kernel_proc.hca_abi import event_entries as entries
from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.irp import Irp
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.nt_status import STATUS_CANCELLED
from tests.kernel_proc.driver.latched import Bench, Context, Thing

KINDS_OF = {
    "cq": (EventKind.CQ_COMPLETION, EventKind.CQ_ASYNC),
    "qp": (EventKind.QP_ASYNC,),
    "srq": (EventKind.SRQ_ASYNC,),
}
TOGETHER = KINDS_OF["cq"]


@dataclass(eq=False)
class Known:
    """An object as the model has it."""

    context: Context
    thing: Thing
    kind: str
    number: int
    alive: bool = True
    told: int = 0  # events raised, delivered or discarded
    delivered: int = 0


@dataclass(eq=False)
class Waiting:
    """A request as the model has it."""

    irp: Irp
    context: Context
    kind: EventKind
    known: Known | None


@dataclass
class World:
    """What is unread and who waits, in order."""

    unread: list[tuple[Context, EventKind, Known | None]] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)


class Notifying(RuleBasedStateMachine):
    """Pend, cancel, tell, destroy, close and die in any order."""

    contexts = Bundle("contexts")
    things = Bundle("things")
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.world = World()
        self.known: list[Known] = []
        self.closed: set[int] = set()
        self.dead: set[int] = set()
        self.expected: dict[Irp, str] = {}
        self.fetched: dict[tuple[int, EventKind, int], int] = {}

    # The model's one rule: who gets what

    def meet(self) -> None:
        """Match unread events with requests until no event finds any."""
        for entry in list(self.world.unread):
            if entry not in self.world.unread:
                continue
            context, kind, known = entry
            fits = [w for w in self.world.waiting if w.context is context and w.kind is kind]
            own = [w for w in fits if known is not None and w.known is known]
            anyone = [w for w in fits if w.known is None]
            chosen = (own if kind in TOGETHER else own[:1]) or anyone[:1]
            if not chosen:
                continue
            same = [other for other in self.world.unread if other == entry]
            taken = len(same)  # repetitions are counted in one event
            for _ in range(taken):
                self.world.unread.remove(entry)
            if known is not None:
                known.delivered += taken
            for waiting in chosen:
                self.world.waiting.remove(waiting)
                self.expected[waiting.irp] = "event"
        for waiting in list(self.world.waiting):
            if waiting.context.number in self.closed or (
                waiting.known is not None and not waiting.known.alive
            ):
                self.end(waiting, "cancelled")
            elif waiting.context.number in self.dead:
                self.end(waiting, "dead")

    def end(self, waiting: Waiting, how: str) -> None:
        self.world.waiting.remove(waiting)
        self.expected[waiting.irp] = how

    def told(self, context: Context, kind: EventKind, known: Known | None) -> None:
        if context.number in self.closed or (known is not None and not known.alive):
            return
        self.world.unread.append((context, kind, known))
        self.meet()

    # What can happen

    @rule(target=contexts)
    def open_context(self) -> Context:
        return self.bench.context()

    @rule(target=things, context=contexts, kind=st.sampled_from(sorted(KINDS_OF)))
    def create(self, context: Context, kind: str) -> Known:
        number = len(self.known) + 1
        known = Known(context, self.bench.thing(context, kind, number), kind, number)
        self.known.append(known)
        if context.number in self.closed:
            self.bench.notification.close_latch(known.thing.latch)
            known.alive = False
        return known

    @rule(target=requests, known=things, which=st.integers(0, 1), own=st.booleans())
    def pend(self, known: Known, which: int, own: bool) -> Irp:
        kinds = KINDS_OF[known.kind]
        kind = kinds[which % len(kinds)]
        irp = self.bench.request()
        self.world.waiting.append(Waiting(irp, known.context, kind, known if own else None))
        self.meet()
        self.bench.pend(known.context, kind, known.thing if own else None, irp)
        return irp

    @rule(
        target=requests,
        context=contexts,
        kind=st.sampled_from([EventKind.CA_FATAL, EventKind.CA_PORT]),
    )
    def pend_for_device(self, context: Context, kind: EventKind) -> Irp:
        irp = self.bench.request()
        self.world.waiting.append(Waiting(irp, context, kind, None))
        self.meet()
        self.bench.pend(context, kind, None, irp)
        return irp

    @rule(known=things, which=st.integers(0, 1))
    def tell(self, known: Known, which: int) -> None:
        notification = self.bench.notification
        kinds = KINDS_OF[known.kind]
        kind = kinds[which % len(kinds)]
        self.told(known.context, kind, known)
        if kind is EventKind.CQ_COMPLETION:
            self.bench.at_dispatch(notification.completion, known.number)
        elif kind is EventKind.CQ_ASYNC:
            self.bench.at_dispatch(notification.cq_error, known.number, entries.CQ_OVERRUN)
        elif kind is EventKind.QP_ASYNC:
            self.bench.at_dispatch(notification.qp_event, known.number, entries.EVENT_SQ_DRAINED)
        else:
            self.bench.at_dispatch(notification.srq_event, known.number, entries.EVENT_SRQ_LIMIT)

    @rule()
    def tell_port(self) -> None:
        for context in self.bench.driver.contexts.values():
            self.told(context, EventKind.CA_PORT, None)
        self.bench.at_dispatch(self.bench.notification.port_event, 1, entries.PORT_UP)

    @rule(irp=consumes(requests))
    def cancel(self, irp: Irp) -> None:
        waiting = [one for one in self.world.waiting if one.irp is irp]
        if waiting:
            self.end(waiting[0], "cancelled")
        elif irp in self.bench.ended:
            return  # nobody cancels an IRP that has ended
        cancel_irp(irp)

    @rule(known=consumes(things))
    def destroy(self, known: Known) -> None:
        if not known.alive:
            return
        known.alive = False
        self.world.unread = [entry for entry in self.world.unread if entry[2] is not known]
        self.meet()
        self.bench.notification.close_latch(known.thing.latch)

    @rule(context=consumes(contexts))
    def close(self, context: Context) -> None:
        self.closed.add(context.number)
        self.world.unread = [entry for entry in self.world.unread if entry[0] is not context]
        self.meet()
        self.bench.notification.context_closing(context)  # type: ignore[arg-type]  # as much as it uses

    @rule(yes=st.integers(0, 5))
    def die(self, yes: int) -> None:
        if yes:
            return
        for number, context in self.bench.driver.contexts.items():
            if number not in self.dead:
                self.dead.add(number)
                self.told(context, EventKind.CA_FATAL, None)
                self.meet()
        self.bench.at_dispatch(self.bench.notification.device_fatal)

    # What always holds

    @invariant()
    def every_request_ended_as_it_should(self) -> None:
        ended = self.bench.ended
        assert ended.keys() == self.expected.keys()
        for irp, how in self.expected.items():
            end = ended[irp]
            if how == "event":
                assert end.event is not None
            elif how == "cancelled":
                assert end.status == STATUS_CANCELLED
            else:
                assert end.errno
                assert end.event is None

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for context in self.bench.driver.contexts.values():
            events = self.bench.events(context)
            for kind, line in events.lines.items():
                assert not (line.unread and line.requests.irps)
                unread = sum(event.count for event in line.unread)
                model = [e for e in self.world.unread if e[0] is context and e[1] is kind]
                assert unread == len(model)

    @invariant()
    def deliveries_are_counted_by_object(self) -> None:
        for known in self.known:
            latch = known.thing.latch
            assert latch.completion_events + latch.async_events == known.delivered
        assert self.bench.processor.irql == PASSIVE_LEVEL
        assert not self.bench.notification.lock.held


TestNotifying = Notifying.TestCase
TestNotifying.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
