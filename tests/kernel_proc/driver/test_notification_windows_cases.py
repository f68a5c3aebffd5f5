"""N1 to N3: what NetworkDirect promises of Notify, with the driver's own requests and the HCA.

Notify is here an arm of the CQ and a pended request: ERRORS is GetCqAsyncEvent, SOLICITED and ANY
are GetCqCompEvent after an arm of that kind.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest

from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.io_manager.request import DeviceControlRequest
from shared import verb_codes as codes
from shared.nt_status import STATUS_PENDING, STATUS_SUCCESS
from shared.verb_messages import COMPLETION_EVENT, Event, Object
from shared.verbs_enums import ibv_event_type
from tests.kernel_proc.driver.hca_box import HcaBox, answer_of
from tests.kernel_proc.driver.queue_user import CqUser, QueueUser

CQ_ERROR = int(ibv_event_type.IBV_EVENT_CQ_ERR)


class Cq(NamedTuple):
    """A completion queue of a user's, and the HCA's side of it, to store completions there."""

    user: QueueUser
    own: CqUser
    hca: CompletionQueue

    def completion(self, *, solicited: int = 0, status: int = 0) -> None:
        """Store one, as the engine would for a message that came in."""
        self.hca.post(77, 0, status, is_send=0, solicited=solicited)
        self.user.box.hca.tables.events.raised = True
        self.user.settle()

    def arm(self, *, solicited: bool = False) -> None:
        self.own.arm(solicited=solicited)
        self.user.settle()

    def notify(self, code: int = codes.IOCTL_GET_CQ_COMP_EVENT) -> DeviceControlRequest:
        """Send a request for this CQ; it may be pended."""
        call, request = self.user.session.begin_verb(code, Object(self.own.handle))
        self.user.box.processor.run_until(lambda: call.done)
        assert call.value in (STATUS_PENDING, STATUS_SUCCESS)
        return request

    def told(self, request: DeviceControlRequest) -> Event | None:
        """The event a request has ended with, None while it is pended."""
        self.user.settle()  # its end goes through the thread that sent it
        if not request.finished:
            return None
        assert request.iosb_status == STATUS_SUCCESS
        event = answer_of(request.output or b"").reply
        assert isinstance(event, Event)
        return event

    def event(self, count: int = 1) -> Event:
        return Event(COMPLETION_EVENT, self.own.handle, 0, count)


def make(user: QueueUser, cqe: int = 15) -> Cq:
    own = user.cq(cqe)
    hca = user.box.hca.tables.cqs.find(own.number)
    assert hca is not None
    return Cq(user, own, hca)


@pytest.fixture
def cq(box: HcaBox) -> Cq:
    return make(QueueUser(box))


def test_n1_a_new_cq_is_not_armed(cq: Cq):
    request = cq.notify()
    for solicited in (0, 1):
        cq.completion(solicited=solicited)
    assert cq.told(request) is None
    assert len(cq.own.poll_all()) == 2
    cq.arm()
    assert cq.told(request) is None
    cq.completion()
    assert cq.told(request) == cq.event()


def test_n1_notify_arms_it_and_is_pending(cq: Cq):
    cq.arm()
    request = cq.notify()
    assert cq.told(request) is None
    cq.completion()
    assert cq.told(request) == cq.event()
    assert cq.user.destroy(codes.IOCTL_DESTROY_CQ, cq.own.handle).completion_events == 1


@pytest.mark.parametrize(("solicited", "status"), [(1, 0), (0, 5), (1, 5)])
def test_n1_solicited_waits_for_a_solicited_send_or_an_error(cq: Cq, solicited: int, status: int):
    cq.arm(solicited=True)
    request = cq.notify()
    cq.completion()
    cq.completion()
    assert cq.told(request) is None
    cq.completion(solicited=solicited, status=status)
    assert cq.told(request) == cq.event()


def test_n1_any_while_solicited_is_outstanding_makes_it_any(cq: Cq):
    cq.arm(solicited=True)
    first = cq.notify()
    cq.arm()
    second = cq.notify()
    cq.completion()
    assert cq.told(first) == cq.told(second) == cq.event()


def test_n1_solicited_while_any_is_outstanding_leaves_it_any(cq: Cq):
    cq.arm()
    request = cq.notify()
    cq.arm(solicited=True)
    cq.completion()
    assert cq.told(request) == cq.event()


def test_n1_errors_are_the_overrun_and_no_completion(box: HcaBox):
    cq = make(QueueUser(box), 1)
    errors = cq.notify(codes.IOCTL_GET_CQ_ASYNC_EVENT)
    cq.arm()
    completions = cq.notify()
    cq.completion()
    assert cq.told(completions) == cq.event()
    assert cq.told(errors) is None
    for _ in range(3):
        cq.completion(solicited=1)
    assert cq.told(errors) == Event(CQ_ERROR, cq.own.handle, 0, 1)


@pytest.mark.parametrize("count", [2, 3, 17])
def test_n2_one_completion_completes_every_notify_and_none_later(cq: Cq, count: int):
    cq.arm()
    requests = [cq.notify() for _ in range(count)]
    cq.completion()
    assert [cq.told(request) for request in requests] == [cq.event()] * count
    later = cq.notify()
    cq.user.settle()
    assert cq.told(later) is None  # that completion has triggered already
    assert len(cq.own.poll_all()) == 1
    cq.arm()
    assert cq.told(later) is None
    cq.completion()
    assert cq.told(later) == cq.event()
    # Each completion was one event, however many requests it ended.
    assert cq.user.destroy(codes.IOCTL_DESTROY_CQ, cq.own.handle).completion_events == 2


def test_n2_of_two_completions_the_second_triggers_nothing(cq: Cq):
    cq.arm()
    requests = [cq.notify() for _ in range(2)]
    cq.completion()
    cq.completion()
    later = cq.notify()
    assert [cq.told(request) for request in (*requests, later)] == [cq.event(), cq.event(), None]


ORDERS = list(itertools.permutations(["arm", "request", "completion"]))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("solicited", [False, True], ids=["any", "solicited"])
def test_n3_a_completion_after_an_empty_poll_is_not_lost(
    cq: Cq, order: tuple[str, ...], solicited: bool
):
    assert cq.own.poll() is None
    requests: list[DeviceControlRequest] = []
    steps: dict[str, Callable[[], object]] = {
        "arm": lambda: cq.arm(solicited=solicited),
        "request": lambda: requests.append(cq.notify()),
        "completion": lambda: cq.completion(solicited=int(solicited)),
    }
    for step in order:
        steps[step]()
    assert [cq.told(request) for request in requests] == [cq.event()]
    assert len(cq.own.poll_all()) == 1


def test_n3_fewer_results_than_asked_then_a_completion_then_notify(cq: Cq):
    cq.completion()
    assert [cq.own.poll() is not None for _ in range(2)] == [True, False]
    cq.completion()
    request = cq.notify()
    cq.arm()
    assert cq.told(request) == cq.event()
    assert cq.own.poll() is not None
