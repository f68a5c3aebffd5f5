"""Queue pairs: what can be created, the layout of the memory, values, queries, moves by the HCA."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver.qp_plan import SEND_OPERATIONS
from kernel_proc.driver.qp_resource import Qp
from kernel_proc.hca_abi import event_entries as entries
from shared import verb_codes as codes
from shared.verb_messages import NO_FD, Destroyed, Object, OpenXrcd, QpAttributes
from shared.verb_reasons import VerbReason as Reason
from shared.wqe_layout import receive_stride, send_stride
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import (
    DRIVER,
    ERR,
    INIT,
    RAW_PACKET,
    RC,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    UC,
    UD,
    XRC_RECV,
    XRC_SEND,
    CqUser,
    QueueUser,
)

STATE, CUR_STATE, NOTIFY, ACCESS, PKEY, PORT, QKEY = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40
AV, MTU, TIMEOUT, RETRY, RNR_RETRY = 0x80, 0x100, 0x200, 0x400, 0x800
RD_ATOMIC, RNR_TIMER, DEST_RD_ATOMIC = 0x2000, 0x8000, 0x20000
TO_INIT, TO_INIT_UD = STATE | PKEY | PORT | ACCESS, STATE | PKEY | PORT | QKEY
TO_RTR, TO_RTS = STATE | 0x129180, STATE | 0x12E00


@pytest.fixture
def user(box: HcaBox) -> QueueUser:
    return QueueUser(box)


@pytest.fixture(scope="module")
def lasting() -> Iterator[QueueUser]:
    """One user for all tests of what is refused."""
    with HcaBox() as box:
        yield QueueUser(box)


def xrcd(user: QueueUser) -> int:
    return int(user.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)).handle)


def connect(user: QueueUser, qp: int, **values: Any) -> None:
    """Take an RC QP to RTS."""
    for mask, state in ((TO_INIT, INIT), (TO_RTR, RTR), (TO_RTS, RTS)):
        answer = user.modify(qp, mask, **values | {"qp_state": state})
        assert answer.errno == 0, answer


def ready_ud(user: QueueUser, qp: int) -> None:
    for mask, state in ((TO_INIT_UD, INIT), (STATE, RTR), (STATE | 0x10000, RTS)):
        assert user.modify(qp, mask, qp_state=state).errno == 0


def query(user: QueueUser, qp: int) -> QpAttributes:
    answer = user.good(codes.IOCTL_QUERY_QP, Object(qp))
    assert isinstance(answer, QpAttributes)
    return answer


def device_qp(user: QueueUser, number: int) -> Any:
    return user.box.hca.tables.qps.find(number)


# Creation


@pytest.mark.parametrize(
    ("kind", "changes", "code", "reason"),
    [
        (RAW_PACKET, {}, errno.EOPNOTSUPP, Reason.QP_TYPE_NOT_SUPPORTED),
        (DRIVER, {}, errno.EOPNOTSUPP, Reason.QP_TYPE_NOT_SUPPORTED),
        (77, {}, errno.EOPNOTSUPP, Reason.QP_TYPE_NOT_SUPPORTED),
        (RC, {"pd": 0}, errno.EINVAL, Reason.PD_NEEDED),
        (RC, {"send_cq": 0}, errno.EINVAL, Reason.SEND_CQ_NEEDED),
        (RC, {"receive_cq": 0}, errno.EINVAL, Reason.RECEIVE_CQ_NEEDED),
        (UD, {"receive_cq": 0}, errno.EINVAL, Reason.RECEIVE_CQ_NEEDED),
        (XRC_SEND, {"send_cq": 0}, errno.EINVAL, Reason.SEND_CQ_NEEDED),
        (XRC_RECV, {}, errno.EINVAL, Reason.XRCD_NEEDED),
        (RC, {"max_send_wr": 16385}, errno.EINVAL, Reason.BAD_MAX_WR),
        (RC, {"max_recv_wr": 16385}, errno.EINVAL, Reason.BAD_MAX_WR),
        (RC, {"max_send_sge": 28}, errno.EINVAL, Reason.BAD_MAX_SGE),
        (RC, {"max_recv_sge": 28}, errno.EINVAL, Reason.BAD_MAX_SGE),
        (RC, {"max_inline_data": 401}, errno.EINVAL, Reason.BAD_MAX_INLINE),
        (RC, {"create_flags": 2}, errno.EINVAL, Reason.CREATE_FLAGS_NOT_SUPPORTED),
        (UD, {"create_flags": 0x100}, errno.EOPNOTSUPP, Reason.CREATE_FLAGS_NOT_SUPPORTED),
        (UD, {"buffer_length": 64}, errno.EINVAL, Reason.BUFFER_TOO_SMALL),
        (RC, {"buffer": 0x10000}, errno.EINVAL, Reason.NOT_IN_ONE_ARENA),
    ],
)
def test_what_cannot_be_created(
    lasting: QueueUser, kind: int, changes: dict[str, int], code: int, reason: int
):
    user = lasting
    cq = user.cq()
    request = user.qp_request(kind, **{"send_cq": cq.handle, "receive_cq": cq.handle} | changes)
    before = user.box.tables()
    assert user.ask(codes.IOCTL_CREATE_QP, request)[:2] == (code, reason)
    assert user.box.tables() == before


SEND_OPS = [(kind, bit) for kind in SEND_OPERATIONS for bit in range(14)]
_ALLOWED = {RC: 0x3FF, XRC_SEND: 0x3FF, UC: 0x38F, UD: 0xC, XRC_RECV: 0}


def test_every_operation_of_every_type(lasting: QueueUser):
    user = lasting
    cq, domain = user.cq(), xrcd(user)
    answers = {}
    for kind, bit in SEND_OPS:
        request = user.qp_request(
            kind,
            send_cq=cq.handle,
            receive_cq=cq.handle,
            xrcd=domain if kind == XRC_RECV else 0,
            send_ops_flags=1 << bit,
        )
        answers[kind, bit] = user.ask(codes.IOCTL_CREATE_QP, request)[:4]
    refused = (errno.EOPNOTSUPP, Reason.SEND_OPS_NOT_SUPPORTED, 0)
    assert answers.keys() == set(SEND_OPS)
    for (kind, bit), answer in answers.items():
        allowed = _ALLOWED[kind] >> bit & 1
        assert answer == ((0, 0, 0, 0) if allowed else (*refused, 1 << bit)), (kind, bit)


def test_block_self_multicast_is_a_flag_of_ud(user: QueueUser):
    qp = user.qp(user.cq(), UD, create_flags=2)
    ready_ud(user, qp.handle)
    assert device_qp(user, qp.number).context.flags == 4


@pytest.mark.parametrize(
    ("send", "receive", "sges", "inline"),
    [(1, 1, 1, 0), (3, 5, 2, 40), (16, 0, 27, 400), (0, 16, 1, 0), (0, 0, 0, 0), (7, 9, 4, 100)],
)
def test_caps_are_rounded_up_and_the_layout_follows_the_formulae(
    lasting: QueueUser, send: int, receive: int, sges: int, inline: int
):
    user = lasting

    def power(number: int) -> int:
        return 1 << (number - 1).bit_length() if number else 0

    length = power(receive) * receive_stride(sges)
    offset = -(-length // send_stride(sges, inline)) * send_stride(sges, inline)
    needed = offset + power(send) * send_stride(sges, inline) if send else length
    cq = user.cq()
    request = user.qp_request(
        RC,
        send_cq=cq.handle,
        receive_cq=cq.handle,
        max_send_wr=send,
        max_recv_wr=receive,
        max_send_sge=sges,
        max_recv_sge=sges,
        max_inline_data=inline,
        buffer=user.memory(max(needed, 1)),
        buffer_length=needed,
    )
    if needed:
        short = user.ask(codes.IOCTL_CREATE_QP, request._replace(buffer_length=needed - 1))
        assert short[:4] == (errno.EINVAL, Reason.BUFFER_TOO_SMALL, needed - 1, needed)
    created = user.good(codes.IOCTL_CREATE_QP, request)
    assert (created.max_send_wr, created.max_recv_wr) == (power(send), power(receive))
    assert created.send_offset == offset
    assert (created.send_stride, created.receive_stride) == (
        send_stride(sges, inline),
        receive_stride(sges),
    )
    assert created.max_send_sge >= sges
    assert created.max_recv_sge >= sges
    assert created.max_inline_data >= inline
    assert max(created.max_send_sge, created.max_recv_sge) <= 27
    assert created.max_inline_data <= 400
    connect(user, created.handle)  # the HCA takes the layout


def test_with_an_srq_there_is_no_receive_queue(user: QueueUser):
    cq = user.cq()
    qp = user.qp(cq, srq=user.srq().handle, max_recv_wr=999_999, max_recv_sge=999)
    assert (qp.created.max_recv_wr, qp.created.receive_stride) == (0, 0)
    connect(user, qp.handle)


def test_an_xrc_srq_does_not_go_with_an_ordinary_qp(user: QueueUser):
    cq = user.cq()
    srq = user.srq(srq_type=1, xrcd=xrcd(user), cq=cq.handle)
    request = user.qp_request(send_cq=cq.handle, receive_cq=cq.handle, srq=srq.handle)
    answer = user.ask(codes.IOCTL_CREATE_QP, request)
    assert answer[:4] == (errno.EINVAL, Reason.NOT_FOR_THIS_TYPE, srq.handle, RC)


def test_the_sides_of_xrc_have_only_what_they_need(user: QueueUser):
    cq = user.cq()
    sender = user.qp(cq, XRC_SEND, receive_cq=0)
    target = user.qp(cq, XRC_RECV, xrcd=xrcd(user), send_cq=0, receive_cq=0, buffer_length=0)
    assert (sender.created.max_send_wr, sender.created.max_recv_wr) == (4, 0)
    assert (target.created.max_send_wr, target.created.max_recv_wr) == (0, 0)
    for qp in (sender, target):
        assert user.modify(qp.handle, TO_INIT, qp_state=INIT).errno == 0


def test_parts_of_another_kind_or_of_nobody(user: QueueUser):
    cq = user.cq()
    for field, handle, reason in (
        ("pd", cq.handle, Reason.WRONG_KIND),
        ("send_cq", user.pd, Reason.WRONG_KIND),
        ("receive_cq", 9999, Reason.NO_SUCH_OBJECT),
        ("srq", 9999, Reason.NO_SUCH_OBJECT),
    ):
        values = {"send_cq": cq.handle, "receive_cq": cq.handle} | {field: handle}
        answer = user.ask(codes.IOCTL_CREATE_QP, user.qp_request(RC, **values))
        assert answer[:3] == (errno.EINVAL, reason, handle)


def test_the_commands_of_a_life(user: QueueUser):
    cq = user.cq()
    user.qp(cq)  # maps the chunks
    made: list[int] = []
    box = user.box
    assert box.names_of_commands(lambda: made.append(user.qp(cq).handle)) == [
        "WRITE_MTT",
        "SW2HW_MPT",
    ]
    qp = made[0]
    assert box.names_of_commands(lambda: query(user, qp)) == []
    assert box.names_of_commands(lambda: connect(user, qp)) == [
        "RST2INIT_QPEE",
        "INIT2RTR_QPEE",
        "RTR2RTS_QPEE",
    ]
    assert box.names_of_commands(lambda: query(user, qp)) == ["QUERY_QPEE"]
    assert box.names_of_commands(lambda: user.modify(qp, STATE, qp_state=ERR)) == ["2ERR_QPEE"]
    assert box.names_of_commands(lambda: user.modify(qp, STATE, qp_state=RESET)) == ["ERR2RST_QPEE"]
    assert box.names_of_commands(lambda: user.destroy(codes.IOCTL_DESTROY_QP, qp)) == ["HW2SW_MPT"]
    other = user.qp(cq).handle
    connect(user, other)
    assert box.names_of_commands(lambda: user.destroy(codes.IOCTL_DESTROY_QP, other)) == [
        "ERR2RST_QPEE",
        "HW2SW_MPT",
    ]


def test_a_destroyed_qp_leaves_nothing(user: QueueUser):
    assert user.pd
    cq = user.cq()
    before = user.box.tables()
    used = user.session.context.slots.used
    qp = user.qp(cq)
    connect(user, qp.handle)
    assert user.destroy(codes.IOCTL_DESTROY_QP, qp.handle) == Destroyed(0, 0)
    assert user.box.tables() == before
    assert user.session.context.slots.used == used


# Values


def _in_sqd(user: QueueUser, cq: CqUser) -> int:
    qp = user.qp(cq).handle
    connect(user, qp)
    assert user.modify(qp, STATE, qp_state=SQD).errno == 0
    return qp


def _in_init(user: QueueUser, cq: CqUser) -> int:
    qp = user.qp(cq).handle
    assert user.modify(qp, TO_INIT, qp_state=INIT).errno == 0
    return qp


def _new(user: QueueUser, cq: CqUser) -> int:
    return user.qp(cq).handle


GLOBAL = {"ah_is_global": 1}
Where = Callable[[QueueUser, CqUser], int]
# where; state; mask; the bad values; errno, reason, object, detail
BAD_VALUES: list[tuple[Where, int, int, dict[str, Any], int, Reason, int, int]] = [
    (_new, INIT, TO_INIT, {"qp_state": 7}, errno.EINVAL, Reason.BAD_STATE, 0, 7),
    (_new, INIT, TO_INIT, {"port_num": 0}, errno.EINVAL, Reason.BAD_PORT, 0, 2),
    (_new, INIT, TO_INIT, {"port_num": 3}, errno.EINVAL, Reason.BAD_PORT, 3, 2),
    (_new, INIT, TO_INIT, {"pkey_index": 64}, errno.EINVAL, Reason.BAD_PKEY_INDEX, 64, 64),
    (_in_init, RTR, TO_RTR, {"ah_port_num": 0}, errno.EINVAL, Reason.BAD_PORT, 0, 2),
    (_in_init, RTR, TO_RTR, {"ah_port_num": 2}, errno.EINVAL, Reason.BAD_PATH_PORT, 2, 1),
    (_in_init, RTR, TO_RTR, {"ah_sl": 16}, errno.EINVAL, Reason.BAD_SERVICE_LEVEL, 0, 16),
    (_in_init, RTR, TO_RTR, {"ah_dlid": 65536}, errno.EINVAL, Reason.BAD_LID, 0, 65536),
    (_in_init, RTR, TO_RTR, {"ah_src_path_bits": 128}, errno.EINVAL, Reason.BAD_PATH_BITS, 0, 128),
    (_in_init, RTR, TO_RTR, {"ah_static_rate": 64}, errno.EINVAL, Reason.BAD_STATIC_RATE, 0, 64),
    (
        _in_init, RTR, TO_RTR, GLOBAL | {"ah_sgid_index": 32},
        errno.EINVAL, Reason.BAD_SGID_INDEX, 32, 32,
    ),
    (
        _in_init, RTR, TO_RTR, GLOBAL | {"ah_flow_label": 1 << 20},
        errno.EINVAL, Reason.BAD_FLOW_LABEL, 0, 1 << 20,
    ),
    (
        _in_init, RTR, TO_RTR, GLOBAL | {"ah_sgid_index": 9},
        errno.EINVAL, Reason.EMPTY_SGID_INDEX, 9, 0,
    ),
    (
        _in_init, RTR, TO_RTR, GLOBAL | {"ah_hop_limit": 256},
        errno.EINVAL, Reason.BAD_HOP_LIMIT_OR_CLASS, 0, 256,
    ),
    (
        _in_init, RTR, TO_RTR, GLOBAL | {"ah_traffic_class": 256},
        errno.EINVAL, Reason.BAD_HOP_LIMIT_OR_CLASS, 0, 256,
    ),
    (_in_init, RTR, TO_RTR, GLOBAL | {"ah_dgid": b"short"}, errno.EINVAL, Reason.BAD_GID, 0, 5),
    (_in_init, RTR, TO_RTR, {"path_mtu": 0}, errno.EINVAL, Reason.BAD_PATH_MTU, 0, 5),
    (_in_init, RTR, TO_RTR, {"path_mtu": 6}, errno.EINVAL, Reason.BAD_PATH_MTU, 6, 5),
    (_in_init, RTR, TO_RTR, {"min_rnr_timer": 32}, errno.EINVAL, Reason.BAD_RNR_TIMER, 32, 31),
    (
        _in_init, RTR, TO_RTR, {"max_dest_rd_atomic": 5},
        errno.EINVAL, Reason.BAD_DEST_RD_ATOMIC, 5, 4,
    ),
    (_in_sqd, SQD, TIMEOUT, {"timeout": 32}, errno.EINVAL, Reason.BAD_TIMEOUT, 32, 31),
    (_in_sqd, SQD, RETRY, {"retry_cnt": 8}, errno.EINVAL, Reason.BAD_RETRY_COUNT, 8, 7),
    (_in_sqd, SQD, RNR_RETRY, {"rnr_retry": 8}, errno.EINVAL, Reason.BAD_RNR_RETRY, 8, 7),
    (_in_sqd, SQD, RD_ATOMIC, {"max_rd_atomic": 129}, errno.EINVAL, Reason.BAD_RD_ATOMIC, 129, 128),
    (_in_sqd, SQD, AV | PORT, {"port_num": 2}, errno.EINVAL, Reason.BAD_PATH_PORT, 1, 2),
    (
        _in_sqd, RTS, STATE | CUR_STATE, {"cur_qp_state": 7},
        errno.EINVAL, Reason.BAD_STATE, 1, 7,
    ),
]  # fmt: skip


def test_how_many_bad_values():
    assert len(BAD_VALUES) == 26


@pytest.mark.parametrize("row", BAD_VALUES)
def test_a_bad_value_is_refused_and_changes_nothing(
    lasting: QueueUser, row: tuple[Where, int, int, dict[str, Any], int, Reason, int, int]
):
    user = lasting
    where, state, mask, values, *expected = row
    qp = where(user, user.cq())
    before = query(user, qp)
    answer = user.modify(qp, mask, **{"qp_state": state} | values)
    assert list(answer[:4]) == expected
    assert query(user, qp) == before


def test_a_controlled_qkey_is_a_privilege(user: QueueUser):
    qp = user.qp(user.cq(), UD).handle
    answer = user.modify(qp, TO_INIT_UD, qp_state=INIT, qkey=1 << 31)
    assert answer[:4] == (errno.EPERM, Reason.CONTROLLED_QKEY, 0, 1 << 31)
    assert user.modify(qp, TO_INIT_UD, qp_state=INIT, qkey=(1 << 31) - 1).errno == 0


def test_psns_and_numbers_are_masked(user: QueueUser):
    qp = user.qp(user.cq()).handle
    connect(user, qp, rq_psn=0xFF000007, sq_psn=0xAB000008, dest_qp_num=0x12345678)
    seen = query(user, qp)
    assert (seen.rq_psn, seen.sq_psn, seen.dest_qp_num) == (7, 8, 0x345678)


def test_reads_are_rounded_up_as_a_log2_field_does(user: QueueUser):
    qp = user.qp(user.cq()).handle
    connect(user, qp, max_rd_atomic=5, max_dest_rd_atomic=3)
    seen = query(user, qp)
    assert (seen.max_rd_atomic, seen.max_dest_rd_atomic) == (8, 4)


def test_without_responder_resources_the_hca_grants_no_reads(user: QueueUser):
    # The user's rights are remembered: they count as soon as there are resources.
    qp = user.qp(user.cq())
    connect(user, qp.handle, max_dest_rd_atomic=0, qp_access_flags=0xE)
    assert device_qp(user, qp.number).context.access == 2
    assert query(user, qp.handle).qp_access_flags == 0xE
    assert user.modify(qp.handle, STATE, qp_state=SQD).errno == 0
    assert user.modify(qp.handle, DEST_RD_ATOMIC, max_dest_rd_atomic=2).errno == 0
    assert device_qp(user, qp.number).context.access == 0xE


def test_query_returns_everything(user: QueueUser):
    cq = user.cq()
    qp = user.qp(cq, sq_sig_all=1).handle
    path = {
        "ah_dlid": 9, "ah_sl": 3, "ah_src_path_bits": 1, "ah_static_rate": 2, "ah_is_global": 1,
        "ah_dgid": bytes(range(16)), "ah_flow_label": 77, "ah_sgid_index": 0, "ah_hop_limit": 64,
        "ah_traffic_class": 5,
    }  # fmt: skip
    connect(user, qp, **path)
    seen = query(user, qp)
    assert {name: getattr(seen, name) for name in path} == path
    assert (seen.qp_state, seen.qp_type, seen.sq_sig_all) == (RTS, RC, 1)
    assert (seen.path_mtu, seen.timeout, seen.retry_cnt, seen.rnr_retry) == (3, 14, 7, 7)
    assert (seen.min_rnr_timer, seen.port_num, seen.ah_port_num) == (12, 1, 1)
    user.modify(qp, STATE, qp_state=RESET)
    fresh = query(user, qp)
    assert (fresh.qp_state, fresh.ah_dlid, fresh.dest_qp_num, fresh.timeout) == (RESET, 0, 0, 0)


def test_gids_are_asked_for_once_until_the_port_changes(user: QueueUser):
    cq = user.cq()

    def to_rtr() -> list[str]:
        qp = _in_init(user, cq)
        return user.box.names_of_commands(
            lambda: user.modify(qp, TO_RTR, qp_state=RTR, ah_is_global=1)
        )

    assert to_rtr() == ["MAD_IFC", "INIT2RTR_QPEE"]
    assert to_rtr() == ["INIT2RTR_QPEE"]
    user.box.hca.tables.events.port(2, entries.PORT_GID_CHANGE)
    user.settle()
    assert to_rtr() == ["INIT2RTR_QPEE"]
    user.box.hca.tables.events.port(1, entries.PORT_GID_CHANGE)
    user.settle()
    assert to_rtr() == ["MAD_IFC", "INIT2RTR_QPEE"]


def test_a_path_alone_selects_its_own_port(user: QueueUser):
    qp = _in_sqd(user, user.cq())
    assert user.modify(qp, AV, ah_port_num=2, ah_dlid=4).errno == 0
    seen = query(user, qp)
    assert (seen.port_num, seen.ah_port_num, seen.ah_dlid) == (2, 2, 4)


@pytest.mark.parametrize("wanted", [0, 1])
def test_sq_drained_is_told_if_it_was_asked_for(user: QueueUser, wanted: int):
    qp = user.qp(user.cq()).handle
    connect(user, qp)
    mask = STATE | NOTIFY
    assert user.modify(qp, mask, qp_state=SQD, en_sqd_async_notify=wanted).errno == 0
    user.settle()
    destroyed = user.session.context.find(Qp, qp).latch
    assert len(destroyed.lines[4].unread) == wanted
    if wanted:
        event = user.good(codes.IOCTL_GET_QP_ASYNC_EVENT, Object(0))
        assert (event.event_type, event.object) == (5, qp)


# Moves of the HCA


def test_a_state_the_hca_made_is_learnt_when_it_refuses(user: QueueUser):
    qp = user.qp(user.cq())
    connect(user, qp.handle)
    device_qp(user, qp.number).state = ERR
    names = user.box.names_of_commands(lambda: user.modify(qp.handle, STATE, qp_state=SQD))
    assert names == ["RTS2SQD_QPEE", "QUERY_QPEE"]
    answer = user.modify(qp.handle, STATE, qp_state=SQD)
    assert answer[:3] == (errno.EINVAL, Reason.NO_SUCH_TRANSITION, RC << 16 | ERR << 8 | SQD)


def test_from_sqe_back_to_rts_without_being_told(user: QueueUser):
    qp = user.qp(user.cq(), UD)
    ready_ud(user, qp.handle)
    device_qp(user, qp.number).state = SQE
    names = user.box.names_of_commands(lambda: user.modify(qp.handle, STATE, qp_state=RTS))
    assert names == ["RTS2RTS_QPEE", "QUERY_QPEE", "SQERR2RTS_QPEE"]
    assert query(user, qp.handle).qp_state == RTS


def test_a_present_state_that_is_given_is_believed(user: QueueUser):
    qp = user.qp(user.cq(), UD)
    ready_ud(user, qp.handle)
    mask = STATE | CUR_STATE
    answer = user.modify(qp.handle, mask, qp_state=RTS, cur_qp_state=SQE)
    assert answer[:2] == (errno.EINVAL, Reason.COMMAND_FAILED)
    device_qp(user, qp.number).state = SQE
    assert user.modify(qp.handle, mask, qp_state=RTS, cur_qp_state=SQE).errno == 0


def test_an_event_makes_the_state_doubtful_and_it_is_asked_for(user: QueueUser):
    qp = user.qp(user.cq())
    connect(user, qp.handle)
    table = user.box.hca.tables.qps
    table.set_state(table.require(qp.number), ERR)
    user.box.hca.tables.events.queue_pair(entries.EVENT_ACCESS_ERROR, qp.number)
    user.settle()
    names = user.box.names_of_commands(lambda: user.modify(qp.handle, STATE, qp_state=RTS))
    assert names == ["QUERY_QPEE"]


def test_an_event_of_a_former_state_does_not_disturb_the_present_one(user: QueueUser):
    qp = user.qp(user.cq(), srq=user.srq().handle)
    connect(user, qp.handle)
    for state in (ERR, RESET):  # the event that the last entry was reached is on its way
        assert user.modify(qp.handle, STATE, qp_state=state).errno == 0
    user.settle()
    connect(user, qp.handle)
    assert query(user, qp.handle).qp_state == RTS
    event = user.good(codes.IOCTL_GET_QP_ASYNC_EVENT, Object(qp.handle))
    assert event.event_type == 16
    assert user.destroy(codes.IOCTL_DESTROY_QP, qp.handle) == Destroyed(0, 1)


def test_no_qp_is_given_the_number_of_multicast(user: QueueUser):
    numbers = user.box.life.numbers.qp
    numbers._next = 0xFFFF
    numbers._generations[0xFFFF] = 0xFF  # given away 255 times already
    numbers._generations[0x500] = 1
    numbers._free.append(0x500)
    assert user.qp(user.cq()).number == 0x10500
