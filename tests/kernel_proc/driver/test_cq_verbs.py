"""Completion queues: limits, memory, commands, resize, destroy."""

import errno

import pytest

from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import CqCreated, Destroyed, Object, ResizeCq
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, verb
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, CqUser, QueueUser

STATE, TO_INIT = 0x1, 0x39


@pytest.fixture
def user(box: HcaBox) -> QueueUser:
    return QueueUser(box)


@pytest.mark.parametrize(
    ("asked", "granted"), [(1, 1), (2, 3), (3, 3), (127, 127), (128, 255), (131071, 131071)]
)
def test_the_size_is_the_next_power_of_two_less_one(user: QueueUser, asked: int, granted: int):
    assert user.cq(asked).created.cqe == granted


@pytest.mark.parametrize(
    ("changes", "code", "reason", "object_", "detail"),
    [
        ({"cqe": 0}, errno.EINVAL, Reason.BAD_CQE, 0, 131071),
        ({"cqe": 131072}, errno.EINVAL, Reason.BAD_CQE, 131072, 131071),
        ({"comp_vector": 1}, errno.EINVAL, Reason.BAD_COMP_VECTOR, 1, 1),
        ({"flags": 4}, errno.EOPNOTSUPP, Reason.CREATE_FLAGS_NOT_SUPPORTED, 0, 4),
        ({"buffer_length": 1023}, errno.EINVAL, Reason.BUFFER_TOO_SMALL, 1023, 1024),
        ({"buffer": 0x10000}, errno.EINVAL, Reason.NOT_IN_ONE_ARENA, 0x10000, 1024),
    ],
)
def test_what_is_refused(
    user: QueueUser, changes: dict[str, int], code: int, reason: int, object_: int, detail: int
):
    request = user.cq_request(15)._replace(**changes)
    before = user.box.tables()
    assert user.ask(codes.IOCTL_CREATE_CQ, request)[:4] == (code, reason, object_, detail)
    assert user.box.tables() == before


def test_a_buffer_that_leaves_its_entries_across_pages_is_refused(user: QueueUser):
    request = user.cq_request(15)
    shifted = user.cq_request(15, buffer=request.buffer + 8)
    answer = user.ask(codes.IOCTL_CREATE_CQ, shifted)
    assert answer[:4] == (errno.EINVAL, Reason.BUFFER_MISALIGNED, request.buffer + 8, CQE_SIZE)


def test_a_process_without_doorbells_has_no_queues(box: HcaBox):
    session = HcaSession(box, "bare")
    box.sessions.append(session)
    session.open()
    user = QueueUser(box, session)
    request = user.cq_request()
    box.processor.run_thread(box.doorbells.close, session.process)
    answer = verb(session, codes.IOCTL_CREATE_CQ, request)
    assert answer[:2] == (errno.EINVAL, Reason.NO_DOORBELLS)


def test_the_commands_of_a_life(user: QueueUser):
    box = user.box
    made: list[CqCreated] = []

    def create() -> None:
        made.append(user.cq().created)

    create()  # which maps the chunks of ICM
    assert box.names_of_commands(create) == ["WRITE_MTT", "SW2HW_MPT", "SW2HW_CQ"]

    def destroy() -> None:
        user.destroy(codes.IOCTL_DESTROY_CQ, made[1].handle)

    assert box.names_of_commands(destroy) == ["HW2SW_CQ", "HW2SW_MPT"]


def test_a_cq_that_is_destroyed_leaves_nothing(user: QueueUser):
    before = user.box.tables()
    used = user.session.context.slots.used
    answer = user.destroy(codes.IOCTL_DESTROY_CQ, user.cq().handle)
    assert answer == Destroyed(0, 0)
    assert user.box.tables() == before
    assert user.session.context.slots.used == used


def test_destroying_twice_or_another_kind_is_refused(user: QueueUser):
    handle = user.cq().handle
    user.destroy(codes.IOCTL_DESTROY_CQ, handle)
    gone = user.ask(codes.IOCTL_DESTROY_CQ, Object(handle))
    assert gone[:3] == (errno.EINVAL, Reason.NO_SUCH_OBJECT, handle)
    wrong = user.ask(codes.IOCTL_DESTROY_CQ, Object(user.pd))
    assert wrong[:3] == (errno.EINVAL, Reason.WRONG_KIND, user.pd)


def _resize(user: QueueUser, handle: int, cqe: int) -> tuple[ResizeCq, int]:
    length = CQE_SIZE << cqe.bit_length()
    return ResizeCq(handle, cqe, user.memory(length), length), length


def _fill(user: QueueUser, count: int) -> tuple[int, CqUser]:
    """Make a CQ with entries in it: flushed receives."""
    cq = user.cq(15)
    qp = user.qp(cq, RC, max_recv_wr=16)
    assert not user.modify(qp.handle, TO_INIT, qp_state=INIT).errno
    assert not user.modify(qp.handle, STATE, qp_state=ERR).errno
    assert qp.receive is not None
    for _ in range(count):
        qp.receive.post()
    user.settle()
    return qp.handle, cq


def test_resize_keeps_what_is_not_polled_in_order(user: QueueUser):
    _, cq = _fill(user, 9)
    assert [entry.wqe_index for entry in (cq.poll(), cq.poll(), cq.poll()) if entry] == [0, 1, 2]
    request, length = _resize(user, cq.handle, 63)
    names = user.box.names_of_commands(
        lambda: cq.use(user.good(codes.IOCTL_RESIZE_CQ, request), user.view(request.buffer, length))
    )
    assert names == ["WRITE_MTT", "SW2HW_MPT", "RESIZE_CQ", "HW2SW_MPT"]
    assert cq.created.cqe == 63
    assert [entry.wqe_index for entry in cq.poll_all()] == [3, 4, 5, 6, 7, 8]


def test_resize_below_what_waits_is_refused_and_changes_nothing(user: QueueUser):
    _, cq = _fill(user, 9)
    request, _ = _resize(user, cq.handle, 7)
    before = user.box.tables()
    answer = user.ask(codes.IOCTL_RESIZE_CQ, request)
    assert answer[:3] == (errno.EINVAL, Reason.CQ_HOLDS_MORE, 7)
    assert user.box.tables() == before
    assert len(cq.poll_all()) == 9


@pytest.mark.parametrize("cqe", [0, 131072])
def test_resize_has_the_limits_of_create(user: QueueUser, cqe: int):
    cq = user.cq()
    request = ResizeCq(cq.handle, cqe, 0, 0)
    assert user.ask(codes.IOCTL_RESIZE_CQ, request)[:2] == (errno.EINVAL, Reason.BAD_CQE)


def test_a_destroyed_qp_leaves_no_entries_behind(user: QueueUser):
    handle, cq = _fill(user, 3)
    user.destroy(codes.IOCTL_DESTROY_QP, handle)
    assert {entry.qpn for entry in cq.poll_all()} == {0}


def test_overrun_is_told_once_and_the_cq_can_still_be_destroyed(user: QueueUser):
    cq = user.cq(1)
    qp = user.qp(cq, RC)
    user.modify(qp.handle, TO_INIT, qp_state=INIT)
    user.modify(qp.handle, STATE, qp_state=ERR)
    assert qp.receive is not None
    for _ in range(3):
        qp.receive.post()
    user.settle()
    event = user.good(codes.IOCTL_GET_CQ_ASYNC_EVENT, Object(cq.handle))
    assert (event.event_type, event.object, event.count) == (0, cq.handle, 1)
    user.destroy(codes.IOCTL_DESTROY_QP, qp.handle)
    assert user.destroy(codes.IOCTL_DESTROY_CQ, cq.handle) == Destroyed(0, 1)
