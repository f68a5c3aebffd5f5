"""N1 to N3 through the door: overlapped device controls of a user process, entries of the HCA.

What was delivered is counted by the driver itself, in its answer to the destruction: an event too
many would be seen there, however late it came.
"""

import itertools
import uuid
from collections.abc import Iterator

import pytest

from shared import verb_codes as codes
from shared.nt_status import STATUS_CANCELLED
from shared.verb_messages import COMPLETION_EVENT, Event
from shared.verbs_enums import ibv_event_type
from tests.end_to_end.notification_queues import FlushingCq, RawUser
from tests.end_to_end.verbs_raw import Pended
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

NAME = f"notify-{uuid.uuid4().hex[:8]}"
CQ_ERROR = int(ibv_event_type.IBV_EVENT_CQ_ERR)


@pytest.fixture(scope="module")
def user() -> Iterator[RawUser]:
    with start_kernel(NAME, settings={"verifier": True}), UserProcess.connect(NAME) as process:
        made = RawUser(process)
        yield made
        made.close()


@pytest.fixture
def cq(user: RawUser) -> FlushingCq:
    return FlushingCq(user)


def told(cq: FlushingCq) -> Event:
    return Event(COMPLETION_EVENT, cq.handle, 0, 1)


def cancelled(request: Pended) -> bool:
    with pytest.raises(NtStatusError) as caught:
        request.answer()
    return caught.value.status == STATUS_CANCELLED


@pytest.mark.parametrize("solicited", [False, True])
def test_n1_a_new_cq_is_not_armed_and_notify_arms_it(cq: FlushingCq, solicited: bool):
    request = cq.notify()
    cq.flush(3)
    cq.poll_until(3)
    cq.settle()
    assert not request.overlapped.done
    cq.ring.arm(solicited)
    cq.settle()
    assert not request.overlapped.done
    cq.flush()
    assert request.answer().reply == told(cq)
    assert cq.events_delivered() == 1


def test_n1_a_request_that_nothing_ends_is_cancelled_by_the_destruction(cq: FlushingCq):
    request = cq.notify()
    cq.flush()
    cq.poll_until(1)
    assert cq.events_delivered() == 0
    assert cancelled(request)


def test_n1_any_while_solicited_is_outstanding_is_one_request_more(cq: FlushingCq):
    cq.ring.arm(True)
    first = cq.notify()
    cq.ring.arm(False)
    second = cq.notify()
    cq.flush()
    assert [first.answer().reply, second.answer().reply] == [told(cq)] * 2
    assert cq.events_delivered() == 1


def test_n1_errors_are_the_overrun_and_no_completion(user: RawUser):
    cq = FlushingCq(user, cqe=1)
    errors = cq.notify(codes.IOCTL_GET_CQ_ASYNC_EVENT)
    cq.ring.arm(False)
    completions = cq.notify()
    cq.flush()
    assert completions.answer().reply == told(cq)
    cq.settle()
    assert not errors.overlapped.done
    cq.flush(3)
    assert errors.answer().reply == Event(CQ_ERROR, cq.handle, 0, 1)
    assert cq.events_delivered() == 1


@pytest.mark.parametrize("count", [2, 3, 17])
def test_n2_one_completion_completes_every_notify_and_none_later(cq: FlushingCq, count: int):
    cq.ring.arm(False)
    requests = [cq.notify() for _ in range(count)]
    cq.flush()
    assert [request.answer().reply for request in requests] == [told(cq)] * count
    later = cq.notify()
    cq.poll_until(1)
    cq.ring.arm(False)
    cq.settle()
    assert not later.overlapped.done
    cq.flush()
    assert later.answer().reply == told(cq)
    assert cq.events_delivered() == 2


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["arm", "request", "completion"])), ids="-".join
)
@pytest.mark.parametrize("settled", [False, True])
def test_n3_a_completion_after_an_empty_poll_is_not_lost(
    cq: FlushingCq, order: tuple[str, ...], settled: bool
):
    assert cq.ring.poll(4) == []
    requests = []
    for step in order:
        if step == "arm":
            cq.ring.arm(False)
        elif step == "request":
            requests.append(cq.notify())
        else:
            cq.flush()
        if settled:
            cq.settle()
    assert [request.answer().reply for request in requests] == [told(cq)]
    cq.poll_until(1)
    assert cq.events_delivered() == 1


def test_n3_fewer_results_than_asked_then_a_completion_then_notify(cq: FlushingCq):
    cq.flush()
    cq.poll_until(1)
    assert cq.ring.poll(4) == []
    cq.flush()
    cq.ring.arm(False)
    assert cq.notify().answer().reply == told(cq)
    assert cq.events_delivered() == 1
