"""Notification requests as users make them: pended IRPs, and every road on which they end."""

import errno
from collections.abc import Callable

import pytest

from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.run_down import run_down_thread
from kernel_proc.io_manager.system_services import (
    cancel_io_file,
    cancel_io_file_ex,
    close_handle,
)
from shared import verb_codes as codes
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from shared.verb_messages import COMPLETION_EVENT, Destroyed, Event, Object
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import Answer, HcaBox, answer_of
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, CqUser, QpUser, QueueUser

STATE, TO_INIT = 0x1, 0x39
EVERY_CODE = (
    codes.IOCTL_GET_CA_FATAL_EVENT,
    codes.IOCTL_GET_CA_PORT_EVENT,
    codes.IOCTL_GET_CQ_COMP_EVENT,
    codes.IOCTL_GET_CQ_ASYNC_EVENT,
    codes.IOCTL_GET_QP_ASYNC_EVENT,
    codes.IOCTL_GET_SRQ_ASYNC_EVENT,
)


@pytest.fixture
def user(box: HcaBox) -> QueueUser:
    return QueueUser(box)


def pend(user: QueueUser, code: int, handle: int = 0) -> DeviceControlRequest:
    """Send a request that stays pended."""
    call, request = user.session.begin_verb(code, Object(handle))
    user.box.processor.run_until(lambda: call.done)
    assert call.value == STATUS_PENDING
    assert not request.finished
    return request


def answer(user: QueueUser, request: DeviceControlRequest) -> Answer:
    """Run until a request has ended well."""
    user.box.processor.run_until(lambda: request.finished)
    assert request.iosb_status == STATUS_SUCCESS
    return answer_of(request.output or b"")


def flushing(user: QueueUser) -> tuple[CqUser, QpUser]:
    cq = user.cq()
    qp = user.qp(cq, RC)
    user.modify(qp.handle, TO_INIT, qp_state=INIT)
    user.modify(qp.handle, STATE, qp_state=ERR)
    return cq, qp


def test_a_pended_request_ends_with_the_event(user: QueueUser):
    cq, qp = flushing(user)
    own, anyone = (
        pend(user, codes.IOCTL_GET_CQ_COMP_EVENT, cq.handle),
        pend(user, codes.IOCTL_GET_CQ_COMP_EVENT),
    )
    cq.arm()
    assert qp.receive is not None
    qp.receive.post()
    user.settle()
    assert answer(user, own).reply == Event(COMPLETION_EVENT, cq.handle, 0, 1)
    assert not anyone.finished
    cq.poll_all()
    cq.arm()
    qp.receive.post()
    user.settle()
    assert answer(user, anyone).reply == Event(COMPLETION_EVENT, cq.handle, 0, 1)
    user.destroy(codes.IOCTL_DESTROY_QP, qp.handle)
    assert user.destroy(codes.IOCTL_DESTROY_CQ, cq.handle) == Destroyed(2, 0)


def test_what_cannot_be_asked_for(user: QueueUser):
    cq = user.cq(has_channel=0)
    rows = [
        (codes.IOCTL_GET_CQ_COMP_EVENT, cq.handle, Reason.CQ_WITHOUT_CHANNEL),
        (codes.IOCTL_GET_QP_ASYNC_EVENT, cq.handle, Reason.WRONG_KIND),
        (codes.IOCTL_GET_CQ_ASYNC_EVENT, 9999, Reason.NO_SUCH_OBJECT),
        (codes.IOCTL_GET_CA_PORT_EVENT, cq.handle, Reason.NOT_PER_OBJECT),
        (codes.IOCTL_GET_CA_FATAL_EVENT, cq.handle, Reason.NOT_PER_OBJECT),
    ]
    for code, handle, reason in rows:
        assert user.ask(code, Object(handle))[:3] == (errno.EINVAL, reason, handle)
    status, _ = user.session.control(EVERY_CODE[2], b"", 8)
    assert status == STATUS_BUFFER_TOO_SMALL


def test_a_cq_without_a_channel_can_be_armed_and_nothing_happens(user: QueueUser):
    cq = user.cq(has_channel=0)
    qp = user.qp(cq, RC)
    user.modify(qp.handle, TO_INIT, qp_state=INIT)
    user.modify(qp.handle, STATE, qp_state=ERR)
    request = pend(user, codes.IOCTL_GET_CQ_COMP_EVENT)
    cq.arm()
    assert qp.receive is not None
    qp.receive.post()
    user.settle()
    assert len(cq.poll_all()) == 1
    assert not request.finished


def test_destroying_ends_the_requests_of_the_object_alone(user: QueueUser):
    first, second = user.cq(), user.cq()
    ends = [
        pend(user, code, first.handle)
        for code in (codes.IOCTL_GET_CQ_COMP_EVENT, codes.IOCTL_GET_CQ_ASYNC_EVENT)
    ]
    stays = pend(user, codes.IOCTL_GET_CQ_COMP_EVENT, second.handle)
    user.destroy(codes.IOCTL_DESTROY_CQ, first.handle)
    assert [request.iosb_status for request in ends] == [STATUS_CANCELLED] * 2
    assert not stays.finished


def test_a_refused_destroy_cancels_nothing(user: QueueUser):
    cq = user.cq()
    user.qp(cq)
    request = pend(user, codes.IOCTL_GET_CQ_COMP_EVENT, cq.handle)
    assert user.ask(codes.IOCTL_DESTROY_CQ, Object(cq.handle)).errno == errno.EBUSY
    assert not request.finished


def _cancel_own(user: QueueUser) -> None:
    assert user.session.service(cancel_io_file, user.session.handle) == STATUS_SUCCESS


def _cancel_from_another_thread(user: QueueUser) -> None:
    session = user.session
    other = session.new_thread()
    call = session.begin(cancel_io_file_ex, session.handle, thread=other)
    user.box.processor.run_until(lambda: call.done)
    assert call.value == STATUS_SUCCESS


def _close(user: QueueUser) -> None:
    assert user.session.service(close_handle, user.session.handle) == STATUS_SUCCESS


def _end_thread(user: QueueUser) -> None:
    user.session.service(run_down_thread)


def _end_process(user: QueueUser) -> None:
    user.session.end()


ROADS: dict[str, Callable[[QueueUser], None]] = {
    "CancelIo": _cancel_own,
    "CancelIoEx of another thread": _cancel_from_another_thread,
    "close of the file": _close,
    "end of the thread": _end_thread,
    "death of the process": _end_process,
}


@pytest.mark.parametrize("road", ROADS)
def test_every_road_ends_every_request(user: QueueUser, road: str):
    cq = user.cq()
    requests = [pend(user, code) for code in EVERY_CODE]
    requests.append(pend(user, codes.IOCTL_GET_CQ_COMP_EVENT, cq.handle))
    ROADS[road](user)
    user.box.processor.run_thread(lambda: None)
    assert all(request.finished for request in requests)
    assert {request.iosb_status for request in requests} == {STATUS_CANCELLED}
    assert not user.session.thread.irps


def test_an_event_survives_the_cancelling_of_its_request(user: QueueUser):
    cq, qp = flushing(user)
    pend(user, codes.IOCTL_GET_CQ_COMP_EVENT)
    _cancel_own(user)
    cq.arm()
    assert qp.receive is not None
    qp.receive.post()
    user.settle()
    assert user.good(codes.IOCTL_GET_CQ_COMP_EVENT, Object(0)).object == cq.handle


def test_the_death_of_the_hca_ends_every_request(user: QueueUser):
    cq = user.cq()
    fatal, *others = (pend(user, code) for code in EVERY_CODE)
    others.append(pend(user, codes.IOCTL_GET_CQ_COMP_EVENT, cq.handle))
    user.box.link.kill("it was pulled out")
    assert answer(user, fatal).reply == Event(8, 0, 0, 1)
    for request in others:
        assert answer(user, request)[:2] == (errno.EIO, Reason.DEVICE_FATAL)
    # Later ones do not wait for what cannot come, and verbs fail.
    for code in EVERY_CODE:
        assert user.ask(code, Object(0))[:2] == (errno.EIO, Reason.DEVICE_FATAL)
    answered = user.ask(codes.IOCTL_DESTROY_CQ, Object(cq.handle))
    assert answered[:2] == (errno.EIO, Reason.DEVICE_FATAL)
    user.session.end()
    assert any("objects freed" in line for line in user.box.lines)


def test_whoever_asks_after_the_death_is_told_once(user: QueueUser):
    user.box.link.kill("it was pulled out")
    assert user.good(codes.IOCTL_GET_CA_FATAL_EVENT, Object(0)) == Event(8, 0, 0, 1)
    answered = user.ask(codes.IOCTL_GET_CA_FATAL_EVENT, Object(0))
    assert answered[:2] == (errno.EIO, Reason.DEVICE_FATAL)


def test_a_port_event_comes_from_another_process(user: QueueUser):
    other = QueueUser(user.box)
    request = pend(user, codes.IOCTL_GET_CA_PORT_EVENT)
    user.box.hca.tables.events.port(1, 1)
    user.settle()
    assert answer(user, request).reply == Event(10, 0, 1, 1)
    assert other.good(codes.IOCTL_GET_CA_PORT_EVENT, Object(0)) == Event(10, 0, 1, 1)


def test_two_processes_never_see_each_others_events(box: HcaBox):
    users = [QueueUser(box), QueueUser(box)]
    requests = [pend(user, codes.IOCTL_GET_CQ_COMP_EVENT) for user in users]
    cq, qp = flushing(users[0])
    cq.arm()
    assert qp.receive is not None
    qp.receive.post()
    users[0].settle()
    assert answer(users[0], requests[0]).reply.object == cq.handle
    assert not requests[1].finished
