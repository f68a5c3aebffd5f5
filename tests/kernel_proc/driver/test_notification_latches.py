"""Events and requests that meet: each rule by itself, without a device."""

import errno
from typing import Any

import pytest

from kernel_proc.driver.event_latch import MOST_UNREAD, EventKind
from kernel_proc.hca_abi import event_entries as entries
from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue
from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.nt_status import STATUS_CANCELLED, STATUS_SUCCESS
from shared.verb_messages import COMPLETION_EVENT, Event
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_event_type as event_type
from tests.kernel_proc.driver.latched import Bench

COMPLETION = EventKind.CQ_COMPLETION


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_event_ends_the_request_that_waits_for_it(bench: Bench):
    context = bench.context()
    cq = bench.thing(context, "cq", 0x80)
    irp = bench.pend(context, COMPLETION)
    assert not bench.ended
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.event_of(irp) == Event(COMPLETION_EVENT, cq.handle, 0, 1)
    assert bench.ended[irp].status == STATUS_SUCCESS
    assert bench.processor.irql == PASSIVE_LEVEL


def test_an_event_needs_no_request_to_be_kept(bench: Bench):
    context = bench.context()
    cq = bench.thing(context, "cq", 0x80)
    for _ in range(3):
        bench.at_dispatch(bench.notification.completion, 0x80)
    irp = bench.pend(context, COMPLETION, cq)
    assert bench.event_of(irp) == Event(COMPLETION_EVENT, cq.handle, 0, 3)
    assert cq.latch.completion_events == 3
    assert not bench.ended.get(bench.pend(context, COMPLETION, cq))


def test_all_that_wait_for_one_cq_end_with_one_event(bench: Bench):
    # N2: several Notify requests, one completion: all are completed, a later one is not.
    context = bench.context()
    cq = bench.thing(context, "cq", 0x80)
    waiting = [bench.pend(context, COMPLETION, cq) for _ in range(3)]
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.order == waiting
    assert len({bench.event_of(irp) for irp in waiting}) == 1
    assert cq.latch.completion_events == 1
    assert bench.pend(context, COMPLETION, cq) not in bench.ended


def test_one_event_ends_one_request_for_any_object(bench: Bench):
    context = bench.context()
    bench.thing(context, "cq", 0x80)
    first, second = bench.pend(context, COMPLETION), bench.pend(context, COMPLETION)
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.order == [first]
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.order == [first, second]


@pytest.mark.parametrize("waiting", ["nobody", "for any", "for it", "for both"])
@pytest.mark.parametrize("unread", [False, True])
def test_an_event_is_counted_and_told_once_whether_it_was_latched_or_handed_over(
    bench: Bench, waiting: str, unread: bool
):
    context = bench.context()
    cq, other = bench.thing(context, "cq", 0x80), bench.thing(context, "cq", 0x81)
    if unread:  # a request can only find it unread if it came while the other was not there
        bench.at_dispatch(bench.notification.completion, 0x81)
    for of in {"nobody": [], "for any": [None], "for it": [cq], "for both": [None, cq]}[waiting]:
        bench.pend(context, COMPLETION, of)
    bench.at_dispatch(bench.notification.completion, 0x80)
    told = [bench.event_of(irp).object for irp in bench.order]
    first = [other.handle] if unread and waiting in ("for any", "for both") else []
    mine = [cq.handle] if waiting in ("for it", "for both") else []
    if waiting == "for any" and not unread:
        mine = [cq.handle]
    assert told == first + mine
    assert cq.latch.completion_events == len(mine)
    assert other.latch.completion_events == len(first)
    left = [bench.pend(context, COMPLETION) for _ in range(3)]
    rest = [bench.event_of(irp).object for irp in left if irp in bench.ended]
    came = [cq.handle] + [other.handle] * unread
    assert sorted(told + rest) == sorted(came)


def test_requests_for_the_object_itself_come_first(bench: Bench):
    context = bench.context()
    cq = bench.thing(context, "cq", 0x80)
    anyone = bench.pend(context, COMPLETION)
    own = bench.pend(context, COMPLETION, cq)
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.order == [own]
    bench.at_dispatch(bench.notification.completion, 0x80)
    assert bench.order == [own, anyone]


def test_unread_events_are_fetched_in_their_order(bench: Bench):
    context = bench.context()
    qps = [bench.thing(context, "qp", number) for number in range(3)]
    for number in (2, 0, 1):
        bench.at_dispatch(bench.notification.qp_event, number, entries.EVENT_SQ_DRAINED)
    fetched = [bench.event_of(bench.pend(context, EventKind.QP_ASYNC)) for _ in range(3)]
    assert [event.object for event in fetched if event] == [qps[n].handle for n in (2, 0, 1)]


@pytest.mark.parametrize(
    ("entry", "event"),
    [
        (entries.EVENT_PATH_MIGRATED, event_type.IBV_EVENT_PATH_MIG),
        (entries.EVENT_COMMUNICATION_ESTABLISHED, event_type.IBV_EVENT_COMM_EST),
        (entries.EVENT_SQ_DRAINED, event_type.IBV_EVENT_SQ_DRAINED),
        (entries.EVENT_WQ_CATASTROPHIC, event_type.IBV_EVENT_QP_FATAL),
        (entries.EVENT_MIGRATION_FAILED, event_type.IBV_EVENT_PATH_MIG_ERR),
        (entries.EVENT_INVALID_REQUEST, event_type.IBV_EVENT_QP_REQ_ERR),
        (entries.EVENT_ACCESS_ERROR, event_type.IBV_EVENT_QP_ACCESS_ERR),
        (entries.EVENT_LAST_WQE_REACHED, event_type.IBV_EVENT_QP_LAST_WQE_REACHED),
    ],
)
def test_every_event_of_a_qp(bench: Bench, entry: int, event: int):
    context = bench.context()
    qp = bench.thing(context, "qp", 7)
    irp = bench.pend(context, EventKind.QP_ASYNC, qp)
    bench.at_dispatch(bench.notification.qp_event, 7, entry)
    assert bench.event_of(irp) == Event(event, qp.handle, 0, 1)
    assert qp.noted == [event]


@pytest.mark.parametrize(
    ("entry", "event"),
    [
        (entries.EVENT_SRQ_CATASTROPHIC, event_type.IBV_EVENT_SRQ_ERR),
        (entries.EVENT_SRQ_LIMIT, event_type.IBV_EVENT_SRQ_LIMIT_REACHED),
    ],
)
def test_every_event_of_an_srq(bench: Bench, entry: int, event: int):
    context = bench.context()
    srq = bench.thing(context, "srq", 7)
    bench.at_dispatch(bench.notification.srq_event, 7, entry)
    irp = bench.pend(context, EventKind.SRQ_ASYNC)
    assert bench.event_of(irp) == Event(event, srq.handle, 0, 1)


def test_an_error_of_a_cq(bench: Bench):
    context = bench.context()
    cq = bench.thing(context, "cq", 5)
    waiting = [bench.pend(context, EventKind.CQ_ASYNC, cq) for _ in range(2)]
    bench.at_dispatch(bench.notification.cq_error, 5, entries.CQ_OVERRUN)
    assert [bench.event_of(irp) for irp in waiting] == [
        Event(event_type.IBV_EVENT_CQ_ERR, cq.handle, 0, 1)
    ] * 2
    assert "syndrome 1" in bench.driver.lines[0]


@pytest.mark.parametrize(
    ("subtype", "event"),
    [
        (entries.PORT_DOWN, event_type.IBV_EVENT_PORT_ERR),
        (entries.PORT_UP, event_type.IBV_EVENT_PORT_ACTIVE),
        (entries.PORT_LID_CHANGE, event_type.IBV_EVENT_LID_CHANGE),
        (entries.PORT_PKEY_CHANGE, event_type.IBV_EVENT_PKEY_CHANGE),
        (entries.PORT_GID_CHANGE, event_type.IBV_EVENT_GID_CHANGE),
        (entries.PORT_SM_CHANGE, event_type.IBV_EVENT_SM_CHANGE),
        (entries.PORT_CLIENT_REREGISTER, event_type.IBV_EVENT_CLIENT_REREGISTER),
    ],
)
def test_a_change_of_a_port_is_told_to_every_context(bench: Bench, subtype: int, event: int):
    contexts = [bench.context() for _ in range(3)]
    bench.at_dispatch(bench.notification.port_event, 2, subtype)
    for context in contexts:
        assert bench.event_of(bench.pend(context, EventKind.CA_PORT)) == Event(event, 0, 2, 1)


def test_a_port_that_flaps_is_told_in_order(bench: Bench):
    context = bench.context()
    for subtype in (entries.PORT_DOWN, entries.PORT_UP, entries.PORT_UP, entries.PORT_DOWN):
        bench.at_dispatch(bench.notification.port_event, 1, subtype)
    fetched = [bench.event_of(bench.pend(context, EventKind.CA_PORT)) for _ in range(3)]
    down, up = event_type.IBV_EVENT_PORT_ERR, event_type.IBV_EVENT_PORT_ACTIVE
    assert fetched == [Event(down, 0, 1, 1), Event(up, 0, 1, 2), Event(down, 0, 1, 1)]


def test_nobody_who_reads_nothing_grows_without_bound(bench: Bench):
    context = bench.context()
    for _ in range(1000):
        bench.at_dispatch(bench.notification.port_event, 1, entries.PORT_DOWN)
        bench.at_dispatch(bench.notification.port_event, 1, entries.PORT_UP)
    line = bench.events(context).lines[EventKind.CA_PORT]
    assert len(line.unread) == MOST_UNREAD
    total = 0
    while line.unread:
        event = bench.event_of(bench.pend(context, EventKind.CA_PORT))
        assert event is not None
        total += event.count
    assert total == 2000


def test_unknown_numbers_and_types_are_ignored(bench: Bench):
    bench.context()
    for sink in (
        lambda: bench.notification.completion(9),
        lambda: bench.notification.cq_error(9, 1),
        lambda: bench.notification.qp_event(9, entries.EVENT_SQ_DRAINED),
        lambda: bench.notification.srq_event(9, entries.EVENT_SRQ_LIMIT),
        lambda: bench.notification.port_event(1, 0x77),
    ):
        bench.at_dispatch(sink)
    assert not bench.ended


def test_destroying_an_object_cancels_its_requests_and_drops_its_events(bench: Bench):
    context = bench.context()
    gone, kept = bench.thing(context, "qp", 1), bench.thing(context, "qp", 2)
    for number in (1, 2):
        bench.at_dispatch(bench.notification.qp_event, number, entries.EVENT_SQ_DRAINED)
    bench.notification.close_latch(gone.latch)
    assert gone.latch.async_events == 0
    event = bench.event_of(bench.pend(context, EventKind.QP_ASYNC))
    assert event is not None
    assert event.object == kept.handle
    waits = bench.pend(context, EventKind.QP_ASYNC, kept)
    bench.notification.close_latch(kept.latch)
    assert bench.ended[waits].status == STATUS_CANCELLED
    late = bench.pend(context, EventKind.QP_ASYNC, kept)  # found before, queued after
    assert bench.ended[late].status == STATUS_CANCELLED
    bench.at_dispatch(bench.notification.qp_event, 2, entries.EVENT_SQ_DRAINED)
    assert bench.pend(context, EventKind.QP_ASYNC) not in bench.ended


def test_closing_a_context_ends_everything_of_it_alone(bench: Bench):
    mine, other = bench.context(), bench.context()
    cq = bench.thing(mine, "cq", 1)
    waiting = [bench.pend(mine, kind) for kind in EventKind]
    waiting += [bench.pend(mine, kind, cq) for kind in (COMPLETION, EventKind.CQ_ASYNC)]
    theirs = [bench.pend(other, kind) for kind in EventKind]
    bench.notification.context_closing(mine)  # type: ignore[arg-type]  # as much as it uses
    assert [bench.ended[irp].status for irp in waiting] == [STATUS_CANCELLED] * 8
    assert not any(irp in bench.ended for irp in theirs)
    assert bench.ended[bench.pend(mine, COMPLETION)].status == STATUS_CANCELLED


def test_the_death_of_the_hca_is_told_once_and_nobody_waits_for_ever(bench: Bench):
    contexts = [bench.context(), bench.context()]
    cq = bench.thing(contexts[0], "cq", 1)
    bench.at_dispatch(bench.notification.completion, 1)
    fatal = bench.pend(contexts[0], EventKind.CA_FATAL)
    others = [bench.pend(contexts[0], kind) for kind in EventKind if kind > 0 and kind != 2]
    own = bench.pend(contexts[0], EventKind.CQ_ASYNC, cq)
    for _ in range(2):
        bench.at_dispatch(bench.notification.device_fatal)
    dead = Event(event_type.IBV_EVENT_DEVICE_FATAL, 0, 0, 1)
    assert bench.event_of(fatal) == dead
    for irp in (*others, own):
        ended = bench.ended[irp]
        assert (ended.status, ended.errno, ended.reason) == (
            STATUS_SUCCESS,
            errno.EIO,
            VerbReason.DEVICE_FATAL,
        )
    # What was latched before can still be fetched, and the other context is told when it asks.
    assert bench.event_of(bench.pend(contexts[0], COMPLETION)) is not None
    assert bench.event_of(bench.pend(contexts[1], EventKind.CA_FATAL)) == dead
    assert bench.ended[bench.pend(contexts[1], EventKind.CA_FATAL)].errno == errno.EIO
    assert bench.ended[bench.pend(contexts[0], COMPLETION)].errno == errno.EIO


def test_a_cancelled_request_takes_no_event_with_it(bench: Bench):
    context = bench.context()
    bench.thing(context, "cq", 1)
    first, second = bench.pend(context, COMPLETION), bench.pend(context, COMPLETION)
    assert cancel_irp(first)
    assert bench.ended[first].status == STATUS_CANCELLED
    bench.at_dispatch(bench.notification.completion, 1)
    assert bench.event_of(second) is not None


def test_a_request_cancelled_before_it_is_queued_takes_none_either(bench: Bench):
    context = bench.context()
    cq = bench.thing(context, "cq", 1)
    bench.at_dispatch(bench.notification.completion, 1)
    irp = bench.request()
    cancel_irp(irp)
    bench.pend(context, COMPLETION, cq, irp)
    assert bench.ended[irp].status == STATUS_CANCELLED
    assert bench.event_of(bench.pend(context, COMPLETION, cq)) is not None


def _orders() -> list[tuple[str, str]]:
    places = ("before the request is queued", "after it is queued", "after pend")
    whats = ("event", "two events", "cancel", "destroy", "close", "death")
    return [(place, what) for place in places for what in whats]


ORDERS = _orders()


def test_all_orders_are_there():
    assert len(ORDERS) == 18


@pytest.mark.parametrize(("place", "what"), ORDERS)
@pytest.mark.parametrize("own", [True, False])
def test_whatever_comes_between_asking_and_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str, what: str, own: bool
):
    # The pause points are those where a DPC or another thread can come: round the queueing.
    context = bench.context()
    cq = bench.thing(context, "cq", 1)
    irp = bench.request()
    insert = CancelSafeQueue.insert

    def come() -> None:
        notification = bench.notification
        if what in ("event", "two events"):
            for _ in range(2 if what == "two events" else 1):
                bench.at_dispatch(notification.completion, 1)
        elif what == "cancel":
            cancel_irp(irp)
        elif what == "destroy":
            notification.close_latch(cq.latch)
        elif what == "close":
            notification.context_closing(context)  # type: ignore[arg-type]  # as much as it uses
        else:
            bench.at_dispatch(notification.device_fatal)

    def paused(queue: CancelSafeQueue, request: Any, *more: Any) -> None:
        if place == "before the request is queued":
            come()
        insert(queue, request, *more)
        if place == "after it is queued":
            come()

    monkeypatch.setattr(CancelSafeQueue, "insert", paused)
    bench.pend(context, COMPLETION, cq if own else None, irp)
    monkeypatch.undo()
    if place == "after pend":
        come()
    if what == "destroy" and not own:
        assert irp not in bench.ended  # it waits for any other CQ
        return
    ended = bench.ended[irp]
    if what in ("event", "two events"):
        assert ended.event is not None
        again = bench.event_of(bench.pend(context, COMPLETION, cq))
        fetched = ended.event.count + (again.count if again is not None else 0)
        assert fetched == (2 if what == "two events" else 1)
    elif what == "death":
        assert ended.errno == errno.EIO
    else:
        assert ended.status == STATUS_CANCELLED
