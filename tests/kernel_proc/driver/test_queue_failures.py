"""Commands that fail: what a verb had done is undone, what is half destroyed can be finished."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.driver.command_channel import CommandChannel, CommandResult
from kernel_proc.driver.qp_resource import Qp
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.nt_status import STATUS_SUCCESS
from shared.verb_messages import Object, ResizeCq
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox, answer_of
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, RESET, QueueUser, attributes

STATE, TO_INIT = 0x1, 0x39


@pytest.fixture(scope="module")
def user() -> QueueUser:
    return QueueUser(HcaBox())


class Failing:
    """Has the n-th command of one opcode fail, without reaching the HCA."""

    def __init__(
        self, patch: pytest.MonkeyPatch, opcode: int, status: int = op.CMD_STAT_INTERNAL_ERR
    ) -> None:
        self.seen = 0
        execute = CommandChannel.execute

        def failing(channel: CommandChannel, asked: int, **more: Any) -> CommandResult:
            if asked == opcode and not self.seen:
                self.seen += 1
                if status < 0:
                    raise VerbRefused(errno.EBUSY, Reason.COMMAND_TIMEOUT, 0, asked)
                return CommandResult(status, 0, b"")
            return execute(channel, asked, **more)

        patch.setattr(CommandChannel, "execute", failing)


def _create_cq(user: QueueUser) -> Callable[[], Any]:
    request = user.cq_request()
    return lambda: user.ask(codes.IOCTL_CREATE_CQ, request)


def _create_srq(user: QueueUser) -> Callable[[], Any]:
    request = user.srq_request()
    return lambda: user.ask(codes.IOCTL_CREATE_SRQ, request)


def _create_qp(user: QueueUser) -> Callable[[], Any]:
    cq = user.cq().handle
    request = user.qp_request(RC, send_cq=cq, receive_cq=cq)
    return lambda: user.ask(codes.IOCTL_CREATE_QP, request)


def _resize_cq(user: QueueUser) -> Callable[[], Any]:
    cq = user.cq()
    length = CQE_SIZE * 64
    request = ResizeCq(cq.handle, 63, user.memory(length), length)
    return lambda: user.ask(codes.IOCTL_RESIZE_CQ, request)


CREATIONS = [
    (_create_cq, op.WRITE_MTT),
    (_create_cq, op.SW2HW_MPT),
    (_create_cq, op.SW2HW_CQ),
    (_create_srq, op.WRITE_MTT),
    (_create_srq, op.SW2HW_MPT),
    (_create_srq, op.SW2HW_SRQ),
    (_create_qp, op.WRITE_MTT),
    (_create_qp, op.SW2HW_MPT),
    (_resize_cq, op.WRITE_MTT),
    (_resize_cq, op.SW2HW_MPT),
    (_resize_cq, op.RESIZE_CQ),
]


@pytest.mark.parametrize(("prepare", "opcode"), CREATIONS)
def test_a_creation_that_fails_leaves_nothing(
    user: QueueUser,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[QueueUser], Callable[[], Any]],
    opcode: int,
):
    verb = prepare(user)
    before = user.box.tables()
    used = user.session.context.slots.used
    failing = Failing(monkeypatch, opcode)
    answer = verb()
    expected = (errno.EIO, Reason.COMMAND_FAILED, 0, opcode << 8 | op.CMD_STAT_INTERNAL_ERR)
    assert answer[:4] == expected
    assert failing.seen == 1
    assert user.box.tables() == before
    assert user.session.context.slots.used == used
    assert verb().errno == 0


def _cq(user: QueueUser) -> tuple[int, int]:
    return codes.IOCTL_DESTROY_CQ, user.cq().handle


def _srq(user: QueueUser) -> tuple[int, int]:
    return codes.IOCTL_DESTROY_SRQ, user.srq().handle


def _qp(user: QueueUser) -> tuple[int, int]:
    qp = user.qp(user.cq()).handle
    assert user.modify(qp, TO_INIT, qp_state=INIT).errno == 0
    return codes.IOCTL_DESTROY_QP, qp


DESTRUCTIONS = [
    (_cq, op.HW2SW_CQ),
    (_cq, op.HW2SW_MPT),
    (_srq, op.HW2SW_SRQ),
    (_srq, op.HW2SW_MPT),
    (_qp, op.ERR2RST_QPEE),
    (_qp, op.HW2SW_MPT),
]


@pytest.mark.parametrize(("make", "opcode"), DESTRUCTIONS)
def test_a_destruction_that_fails_can_be_tried_again(
    user: QueueUser,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[QueueUser], tuple[int, int]],
    opcode: int,
):
    # While the HCA may still use it, no memory is given back (a real driver freed it).
    code, handle = make(user)
    regions = user.box.life.inspect()["regions"]
    Failing(monkeypatch, opcode)
    assert user.ask(code, Object(handle))[:2] == (errno.EIO, Reason.COMMAND_FAILED)
    assert user.box.life.inspect()["regions"] == regions
    user.good(code, Object(handle))
    assert user.box.life.inspect()["regions"]["regions"] == regions["regions"] - 1


@pytest.mark.parametrize(
    ("prepare", "opcode"), [(_create_cq, op.SW2HW_CQ), (_create_srq, op.SW2HW_SRQ)]
)
def test_a_creation_without_an_answer_gives_no_memory_back(
    user: QueueUser,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[QueueUser], Callable[[], Any]],
    opcode: int,
):
    # The HCA may carry the command out later: memory and number stay taken, and it is logged.
    verb = prepare(user)
    regions = user.box.life.inspect()["regions"]["regions"]
    Failing(monkeypatch, opcode, -1)
    assert verb()[:2] == (errno.EBUSY, Reason.COMMAND_TIMEOUT)
    assert user.box.life.inspect()["regions"]["regions"] == regions + 1
    assert "was not taken back" in user.box.lines[-1]


def test_a_transition_without_an_answer_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    user = QueueUser(HcaBox())  # whose ICM nothing else maps or unmaps
    user.qp(user.cq())  # stays, and its ICM with it
    qp = user.qp(user.cq())
    Failing(monkeypatch, op.RST2INIT_QPEE, -1)
    answer = user.modify(qp.handle, TO_INIT, qp_state=INIT)
    assert answer[:2] == (errno.EBUSY, Reason.COMMAND_TIMEOUT)
    monkeypatch.undo()
    names = user.box.names_of_commands(lambda: user.destroy(codes.IOCTL_DESTROY_QP, qp.handle))
    assert names == ["ERR2RST_QPEE", "HW2SW_MPT"]  # the HCA may have carried it out


def test_a_failed_transition_changes_neither_side(user: QueueUser, monkeypatch: pytest.MonkeyPatch):
    qp = user.qp(user.cq())
    known: Qp = user.session.context.find(Qp, qp.handle)
    before = known.hca
    Failing(monkeypatch, op.RST2INIT_QPEE)
    assert user.modify(qp.handle, TO_INIT, qp_state=INIT).errno == errno.EIO
    assert known.hca is before
    assert known.state == RESET
    assert user.modify(qp.handle, TO_INIT, qp_state=INIT).errno == 0


def test_verbs_on_one_object_are_one_after_the_other(user: QueueUser):
    session = user.session
    qp = user.qp(user.cq()).handle
    assert user.modify(qp, TO_INIT, qp_state=INIT).errno == 0
    threads = [session.new_thread() for _ in range(3)]
    calls = [
        session.begin_verb(codes.IOCTL_MODIFY_QP, attributes(qp, STATE, qp_state=ERR), threads[0]),
        session.begin_verb(codes.IOCTL_DESTROY_QP, Object(qp), threads[1]),
        session.begin_verb(
            codes.IOCTL_MODIFY_QP, attributes(qp, STATE, qp_state=RESET), threads[2]
        ),
    ]
    user.box.processor.run_until(lambda: all(call.done for call, _ in calls))
    assert {request.iosb_status for _, request in calls} == {STATUS_SUCCESS}
    errors = [answer_of(request.output or b"")[:2] for _, request in calls]
    assert errors == [(0, 0), (0, 0), (errno.EINVAL, Reason.NO_SUCH_OBJECT)]


def test_an_object_a_verb_is_about_to_hold_is_busy(user: QueueUser):
    session = user.session
    cq = user.cq().handle
    threads = [session.new_thread() for _ in range(2)]
    request = user.qp_request(RC, send_cq=cq, receive_cq=cq)
    created, made = session.begin_verb(codes.IOCTL_CREATE_QP, request, threads[0])
    destroyed, refused = session.begin_verb(codes.IOCTL_DESTROY_CQ, Object(cq), threads[1])
    user.box.processor.run_until(lambda: created.done and destroyed.done)
    assert answer_of(made.output or b"").errno == 0
    assert answer_of(refused.output or b"")[:2] == (errno.EBUSY, Reason.IN_USE)
