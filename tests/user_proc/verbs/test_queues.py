"""Completion queues, queue pairs, shared receive queues, XRC domains: verbs and rings."""

import errno
import os
import struct
from typing import Any

import pytest

from shared import doorbell_layout
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import NO_FD
from shared.verb_reasons import VerbReason
from shared.wqe_layout import SEND_HEAD, SGE, SendHead
from tests.user_proc.provider.device_side import CompletionWriter
from tests.user_proc.verbs.stand_in import Refusal, Wire
from user_proc.provider import doorbell_writer
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.wr import SGE as Element
from user_proc.verbs.wr import RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

CAP = (4, 4, 2, 2, 32)


class Device:
    """Writes completions into a queue's memory, as the HCA would."""

    def __init__(self, cq: CQ) -> None:
        memory: Any = cq._parts.memories[-1].view()
        self.writer = CompletionWriter(memory)

    def complete(self, qp: QP, position: int, **fields: int) -> None:
        self.writer.post(qp.qp_num, position, **fields)


def make_qp(pd: PD, cq: CQ, kind: int = e.IBV_QPT_RC, state: int | None = None) -> QP:
    qp = QP(pd, QPInitAttr(kind, scq=cq, rcq=cq, cap=QPCap(*CAP)))
    if state is not None:
        qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
    return qp


def send(wr_id: int = 0, opcode: int = e.IBV_WR_SEND, **options: Any) -> SendWR:
    return SendWR(wr_id, opcode, num_sge=1, sg=[Element(4096, 8, 5)], **options)


# Completion queues


def test_a_queue_holds_what_was_granted(context: Context, wire: Wire):
    cq = CQ(context, 100, comp_vector=0)
    request = wire.last("create_cq")
    assert (request.cqe, request.has_channel, request.buffer_length) == (100, 0, 128 * CQE_SIZE)
    assert (cq.cqe, cq.comp_channel) == (127, None)
    assert str(cq).startswith("CQ\nHandle                : ")
    cq.close()
    cq.close()
    for act in (cq.poll, cq.req_notify, lambda: cq.resize(5), lambda: cq.cq):
        with pytest.raises(PyverbsUserError, match="closed"):
            act()


@pytest.mark.parametrize("cqe", [0, -1, 1 << 30])
def test_a_number_no_queue_can_have_is_the_drivers_to_refuse(
    context: Context, wire: Wire, cqe: int
):
    wire.answers["create_cq"] = lambda request: Refusal(22, VerbReason.BAD_CQE, request.cqe, 9)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to create a CQ. Errno: 22"):
        CQ(context, cqe)
    assert wire.last("create_cq").buffer_length == 0


def test_completions_are_polled(pd: PD, cq: CQ, wire: Wire):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)
    assert cq.poll() == (0, [])
    qp.post_send(send(7))
    qp.post_recv(RecvWR((1 << 64) - 1))
    device.complete(qp, 0, is_send=1, opcode=e.IBV_WC_SEND)
    device.complete(
        qp, 0, opcode=e.IBV_WC_RECV, status=5, vendor_err=6, byte_len=7, imm_data=8, src_qp=9,
        wc_flags=3, slid=11, pkey_index=12, sl=13, dlid_path_bits=14,
    )  # fmt: skip
    number, found = cq.poll(5)
    assert number == 2
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in found] == [
        (7, 0, e.IBV_WC_SEND),
        ((1 << 64) - 1, 5, e.IBV_WC_RECV),
    ]
    wc = found[1]
    assert (wc.vendor_err, wc.byte_len, wc.imm_data, wc.src_qp) == (6, 7, 8, 9)
    assert (wc.wc_flags, wc.slid, wc.pkey_index, wc.sl, wc.dlid_path_bits) == (3, 11, 12, 13, 14)
    assert wc.qp_num == qp.qp_num
    assert "status                : WR flush error" in str(wc)


def test_an_empty_poll_yields_after_as_many_looks_as_the_device_says(
    cq: CQ, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    yields: list[int] = []
    monkeypatch.setattr(doorbell_writer.os, "sched_yield", lambda: yields.append(1))
    wire.status_words[doorbell_layout.STATUS_SPIN_HINT_WORD] = 3
    for _ in range(5):
        cq.poll()
    assert len(yields) == 2
    wire.status_words[doorbell_layout.STATUS_SPIN_HINT_WORD] = 0
    cq.poll()
    assert len(yields) == 3


def test_a_dead_device_is_told_by_an_empty_poll(pd: PD, cq: CQ, wire: Wire):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)
    qp.post_send(send(1))
    device.complete(qp, 0, is_send=1)
    wire.status_words[doorbell_layout.STATUS_FATAL_WORD] = 1
    assert cq.poll()[0] == 1
    with pytest.raises(PyverbsRDMAError, match=r"Failed to poll CQ. Errno: 5, Input/output error"):
        cq.poll()
    with pytest.raises(PyverbsRDMAError, match=r"Failed to post send. Errno: 5"):
        qp.post_send(send(1))


def test_arming_rings(cq: CQ, wire: Wire):
    rung = wire.words[doorbell_layout.RUNG_WORD]
    cq.req_notify()
    cq.req_notify(solicited_only=True)
    assert wire.words[doorbell_layout.RUNG_WORD] == rung + 2


def test_resize_moves_to_other_memory(pd: PD, cq: CQ, wire: Wire):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)
    for number in range(2):
        qp.post_send(send(number))
        device.complete(qp, number, is_send=1)
    old = wire.last("create_cq").buffer

    def moved(request: Any) -> Any:
        assert len(cq._parts.memories) == 2
        device.writer.move(cq._parts.memories[-1].view(), 0)  # type: ignore[arg-type]  # a view
        return Wire._resize_cq(wire, request)

    wire.answers["resize_cq"] = moved
    cq.resize(40)
    assert cq.cqe == 63
    assert wire.last("resize_cq").buffer != old
    qp.post_send(send(2))
    device.complete(qp, 2, is_send=1)
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [0, 1, 2]


def test_a_refused_resize_changes_nothing(cq: CQ, wire: Wire):
    wire.answers["resize_cq"] = lambda request: Refusal(22, VerbReason.CQ_HOLDS_MORE, 1)
    for cqe in (1, 0):
        with pytest.raises(PyverbsRDMAError, match=r"Failed to resize CQ. Errno: 22"):
            cq.resize(cqe)
        assert (cq.cqe, len(cq._parts.memories)) == (15, 1)
    del wire.answers["resize_cq"]
    cq.resize(1)
    assert cq.cqe == 1


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("reason", [VerbReason.RESIZE_UNCERTAIN, VerbReason.DEVICE_FATAL])
def test_a_resize_nobody_knows_of_loses_no_completion(
    pd: PD, cq: CQ, wire: Wire, moved: bool, reason: int
):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)
    qp.post_send(send(0))
    device.complete(qp, 0, is_send=1)

    def unknown(request: Any) -> Refusal:
        if moved:
            device.writer.move(cq._parts.memories[-1].view(), 0)  # type: ignore[arg-type]  # a view
        return Refusal(errno.EBUSY, reason, cq.handle, 0x2C)

    qp.post_send(send(1))
    wire.answers["resize_cq"] = unknown
    with pytest.raises(PyverbsRDMAError, match="Failed to resize CQ"):
        cq.resize(40)
    assert len(cq._parts.memories) == 2
    device.complete(qp, 1, is_send=1)
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [0, 1]


def test_an_interrupted_resize_is_settled_by_what_comes(
    pd: PD, cq: CQ, monkeypatch: pytest.MonkeyPatch
):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)

    def interrupted(*arguments: object) -> None:
        device.writer.move(cq._parts.memories[-1].view(), 0)  # type: ignore[arg-type]  # a view
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cq._session, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cq.resize(40)
    with pytest.raises(PyverbsRDMAError, match="interrupted resize"):
        cq.resize(50)
    qp.post_send(send(3))
    device.complete(qp, 0, is_send=1)
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [3]
    cq.resize(50)
    assert cq.cqe == 63


# Queue pairs


def test_creation_tells_the_driver_where_the_rings_are_and_grants(pd: PD, cq: CQ, wire: Wire):
    init = QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(3, 5, 2, 2, 10), sq_sig_all=7)
    qp = QP(pd, init)
    request = wire.last("create_qp")
    assert (request.pd, request.send_cq, request.receive_cq) == (pd.handle, cq.cq, cq.cq)
    assert (request.max_send_wr, request.max_recv_wr, request.sq_sig_all) == (3, 5, 1)
    assert request.buffer_length == 8 * 64 + 4 * 256
    assert request.buffer % 4096 == 0
    assert (init.max_send_wr, init.cap.max_recv_wr) == (4, 8)
    assert (qp.qp_type, qp.qp_state, qp.qp_num >> 16) == (2, 0, 4)
    assert str(qp).split("\n")[2] == "  state                 : Reset               "


def test_extended_creation(context: Context, pd: PD, cq: CQ, wire: Wire):
    attr = QPInitAttrEx(
        e.IBV_QPT_UD, scq=cq, rcq=cq, pd=pd, create_flags=2, send_ops_flags=4,
        comp_mask=e.IBV_QP_INIT_ATTR_PD,
    )  # fmt: skip
    QP(context, attr)
    assert (wire.last("create_qp").create_flags, wire.last("create_qp").send_ops_flags) == (0, 0)
    attr.comp_mask |= e.IBV_QP_INIT_ATTR_CREATE_FLAGS | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    QP(context, attr)
    assert (wire.last("create_qp").create_flags, wire.last("create_qp").send_ops_flags) == (2, 4)
    attr.comp_mask = e.IBV_QP_INIT_ATTR_RX_HASH
    with pytest.raises(PyverbsRDMAError, match=r"Failed to create extended QP. Errno: 95"):
        QP(context, attr)
    with pytest.raises(TypeError, match=r"expected pyverbs.qp.QPInitAttrEx, got QPInitAttr"):
        QP(context, QPInitAttr())
    with pytest.raises(TypeError, match=r"expected pyverbs.pd.PD, got int"):
        QP(3, QPInitAttr())


@pytest.mark.parametrize(
    ("kind", "masks"),
    [
        (e.IBV_QPT_RC, [0x39, 0x129181, 0x12E01]),
        (e.IBV_QPT_UC, [0x39, 0x101181, 0x10001]),
        (e.IBV_QPT_UD, [0x71, 0x1, 0x10001]),
        (e.IBV_QPT_RAW_PACKET, [0x21, 0x1, 0x1]),
        (e.IBV_QPT_XRC_SEND, [0x39, 0x101181, 0x12E01]),
        (e.IBV_QPT_XRC_RECV, [0x39, 0x129181, 0x10201]),
    ],
)
def test_three_steps_with_the_least_masks(pd: PD, cq: CQ, wire: Wire, kind: int, masks: list[int]):
    qp = make_qp(pd, cq, kind)
    qp.to_rts(QPAttr(port_num=2))
    asked = [request for name, request in wire.asked if name == "modify_qp"]
    assert [request.mask for request in asked] == masks
    assert [request.qp_state for request in asked] == [1, 2, 3]
    assert {request.port_num for request in asked} == {2}
    assert qp.qp_state == 3


def test_steps_that_are_done_are_not_done_again(pd: PD, cq: CQ, wire: Wire):
    qp, attr = make_qp(pd, cq), QPAttr()
    for step in (qp.to_init, qp.to_rtr, qp.to_rts):
        step(attr)
    assert wire.names().count("modify_qp") == 3


def test_creation_with_attributes_brings_it_up(pd: PD, cq: CQ, wire: Wire):
    init = QPInitAttr(e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(*CAP))
    assert QP(pd, init, QPAttr()).qp_state == 3
    init.qp_type = e.IBV_QPT_RC
    assert QP(pd, init, QPAttr()).qp_state == 1
    wire.answers["modify_qp"] = lambda request: Refusal(22, VerbReason.BAD_PORT, 9, 2)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to modify QP state to init. Errno: 22"):
        QP(pd, init, QPAttr())
    assert wire.names()[-1] == "destroy_qp"


def test_a_refused_modify_says_why_and_keeps_the_state(pd: PD, cq: CQ, wire: Wire):
    qp = make_qp(pd, cq, state=e.IBV_QPS_INIT)
    missing = 2 << 16 | 1 << 8 | 2
    wire.answers["modify_qp"] = lambda request: Refusal(
        22, VerbReason.ATTRIBUTES_MISSING, missing, e.IBV_QP_MIN_RNR_TIMER
    )
    with pytest.raises(PyverbsRDMAError) as caught:
        qp.to_rtr(QPAttr())
    assert str(caught.value) == (
        "Failed to modify QP state to RTR. Errno: 22, Invalid argument: "
        "INIT to RTR needs IBV_QP_MIN_RNR_TIMER for RC"
    )
    assert qp.qp_state == e.IBV_QPS_INIT


def test_a_mask_without_the_state_leaves_the_state(pd: PD, cq: CQ, wire: Wire):
    qp = make_qp(pd, cq, state=e.IBV_QPS_INIT)
    attr = QPAttr(qp_state=e.IBV_QPS_ERR)
    attr.qkey, attr.ah_attr = 0x11, AHAttr(dlid=7, port_num=2)
    qp.modify(attr, e.IBV_QP_QKEY)
    request = wire.last("modify_qp")
    assert (qp.qp_state, request.mask, request.qkey) == (1, 64, 0x11)
    assert (request.ah_dlid, request.ah_port_num) == (7, 2)


def test_a_query_gives_attributes_and_capabilities_and_renews_the_state(pd: PD, cq: CQ):
    qp = make_qp(pd, cq, state=e.IBV_QPS_RTS)
    attr, init = qp.query(e.IBV_QP_STATE)
    assert (attr.qp_state, attr.cur_qp_state, qp.qp_state) == (6, 6, 6)
    assert (attr.path_mtu, attr.qkey, attr.rq_psn, attr.pkey_index) == (3, 4, 5, 9)
    assert attr.ah_attr.dgid is not None
    assert attr.ah_attr.dgid.raw == bytes(range(16))
    assert (init.qp_type, init.send_cq, init.cap.max_send_wr) == (2, None, attr.cap.max_send_wr)


@pytest.mark.parametrize("state", range(7))
def test_which_states_take_work(pd: PD, cq: CQ, state: int):
    qp = make_qp(pd, cq, state=state)
    if state in (3, 4, 5, 6):
        qp.post_send(send())
    else:
        with pytest.raises(PyverbsRDMAError, match=r"Failed to post send. Errno: 22") as caught:
            qp.post_send(send())
        assert caught.value.error_code == errno.EINVAL
    if state:
        qp.post_recv(RecvWR())
    else:
        with pytest.raises(PyverbsRDMAError, match=r"Failed to post recv. Errno: 22"):
            qp.post_recv(RecvWR())


@pytest.mark.parametrize(
    ("kind", "wr", "code", "why"),
    [
        (e.IBV_QPT_UD, lambda: send(opcode=e.IBV_WR_RDMA_READ), 22, "RDMA_READ is not for UD"),
        (e.IBV_QPT_UC, lambda: send(opcode=e.IBV_WR_ATOMIC_CMP_AND_SWP), 22, "not for UC"),
        (e.IBV_QPT_RC, lambda: send(opcode=99), 22, "opcode 99 is not for RC"),
        (e.IBV_QPT_RC, lambda: send(opcode=e.IBV_WR_FLUSH), 95, "does not do IBV_WR_FLUSH"),
        (e.IBV_QPT_UD, lambda: send(opcode=e.IBV_WR_TSO), 95, "does not do IBV_WR_TSO"),
        (e.IBV_QPT_UD, send, 22, "needs an address handle"),
        (e.IBV_QPT_RC, lambda: send(opcode=e.IBV_WR_LOCAL_INV), 22, "takes no scatter/gather"),
        (
            e.IBV_QPT_RC,
            lambda: SendWR(num_sge=3, sg=[Element(0, 1, 2)] * 3),
            22,
            "num_sge 3 is more than max_send_sge 2",
        ),
        (
            e.IBV_QPT_RC,
            lambda: SendWR(num_sge=2, sg=[Element(0, 1 << 31, 2), Element(0, 1, 2)]),
            22,
            "more than a message",
        ),
        (
            e.IBV_QPT_RC,
            lambda: SendWR(num_sge=1, sg=[Element(0, 33, 2)], send_flags=8),
            22,
            "33 bytes are more than max_inline_data 32",
        ),
        (
            e.IBV_QPT_RC,
            lambda: send(opcode=e.IBV_WR_RDMA_READ, send_flags=8),
            22,
            "cannot have IBV_SEND_INLINE",
        ),
        (
            e.IBV_QPT_RC,
            lambda: SendWR(0, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, [Element(0, 4, 1)]),
            22,
            "an atomic has 8 bytes, not 4",
        ),
    ],
)
def test_requests_no_queue_takes(
    pd: PD, cq: CQ, wire: Wire, kind: int, wr: Any, code: int, why: str
):
    qp = make_qp(pd, cq, kind, e.IBV_QPS_RTS)
    rung = wire.words[doorbell_layout.RUNG_WORD]
    with pytest.raises(PyverbsRDMAError, match=why) as caught:
        qp.post_send(wr())
    assert caught.value.error_code == code
    assert wire.words[doorbell_layout.RUNG_WORD] == rung


def test_an_atomic_on_an_odd_address(pd: PD, cq: CQ):
    qp, wr = make_qp(pd, cq, state=e.IBV_QPS_RTS), send(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD)
    wr.set_wr_atomic(1, 4100, 1)
    with pytest.raises(PyverbsRDMAError, match="0x1004 is not a multiple of 8"):
        qp.post_send(wr)


def test_a_chain_stops_at_the_first_that_fails(pd: PD, cq: CQ, wire: Wire):
    qp = make_qp(pd, cq, state=e.IBV_QPS_RTS)
    bad = send(99)
    wrong = send(3, opcode=77)
    first = send(1, next_wr=send(2, next_wr=wrong))
    rung = wire.words[doorbell_layout.RUNG_WORD]
    with pytest.raises(PyverbsRDMAError, match="opcode 77"):
        qp.post_send(first, bad)
    assert (bad.wr_id, bad.opcode) == (3, 77)
    assert wire.index(qp._made.send_slot) == 2
    assert wire.words[doorbell_layout.RUNG_WORD] == rung + 1
    with pytest.raises(TypeError, match=r"Argument 'wr' has incorrect type \(expected pyverbs.wr"):
        qp.post_send(RecvWR())  # type: ignore[arg-type]  # on purpose


def test_a_queue_of_n_takes_n_and_polling_makes_room(pd: PD, cq: CQ):
    qp, device = make_qp(pd, cq, state=e.IBV_QPS_RTS), Device(cq)
    bad = RecvWR()
    for number in range(4):
        qp.post_send(send(number))
        qp.post_recv(RecvWR(number))
    with pytest.raises(PyverbsRDMAError, match=r"Failed to post send. Errno: 12, Cannot allocate"):
        qp.post_send(send())
    with pytest.raises(PyverbsRDMAError, match=r"Failed to post recv. Errno: 12"):
        qp.post_recv(RecvWR(44), bad)
    assert bad.wr_id == 44
    device.complete(qp, 2, is_send=1)
    device.complete(qp, 0)
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [2, 0]
    for number in range(3):
        qp.post_send(send(10 + number))
    qp.post_recv(RecvWR())
    with pytest.raises(PyverbsRDMAError, match=r"Errno: 12"):
        qp.post_send(send())


def entry_of(qp: QP, position: int) -> tuple[SendHead, bytes]:
    """What lies in the send ring."""
    made = qp._made
    view = qp._rings._memory.view(made.send_offset + position * made.send_stride)
    return SendHead(*SEND_HEAD.unpack_from(view)), bytes(view[SEND_HEAD.size : made.send_stride])


def test_entries_in_the_send_ring(pd: PD, cq: CQ):
    qp = make_qp(pd, cq, state=e.IBV_QPS_RTS)
    wr = send(1, e.IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=0x01020304)
    wr.set_wr_rdma(0x77, 0x123456789A)
    assert (wr.rdma_rkey, wr.rdma_remote_addr) == (0x77, 0x123456789A)
    qp.post_send(wr)
    head, body = entry_of(qp, 0)
    assert (head.opcode, head.flags, head.elements) == (1, 2, 1)
    assert (head.imm_data, head.remote_address, head.rkey) == (0x01020304, 0x123456789A, 0x77)
    assert body[:16] == SGE.pack(4096, 8, 5)
    wr.set_wr_atomic(1, 64, 2, 3)
    wr.opcode = e.IBV_WR_ATOMIC_CMP_AND_SWP
    qp.post_send(wr)
    head, _ = entry_of(qp, 1)
    assert (head.opcode, head.compare_add, head.swap, head.remote_address) == (5, 2, 3, 64)
    wr.opcode, wr.num_sge = e.IBV_WR_SEND, 0
    wr.set_qp_type_xrc(9)
    qp.post_send(wr)
    head, _ = entry_of(qp, 2)
    assert (head.opcode, head.elements, head.srqn) == (2, 0, 9)


def test_inline_data_is_copied_by_each_post(pd: PD, cq: CQ):
    qp, region = make_qp(pd, cq, state=e.IBV_QPS_RTS), MR(pd, 64)
    pieces = [Element(region.buf, 3, 0), Element(region.buf + 10, 2, 0)]
    wr = SendWR(num_sge=2, sg=pieces, send_flags=e.IBV_SEND_INLINE)
    for text in (b"abcde", b"vwxyz"):
        region.write(text[:3], 3)
        region.write(text[3:], 2, 10)
        qp.post_send(wr)
    for position, text in enumerate((b"abcde", b"vwxyz")):
        head, body = entry_of(qp, position)
        assert (head.elements, head.inline_length, body[:5]) == (0, 5, text)


def test_a_datagram_carries_its_address(context: Context, pd: PD, cq: CQ):
    qp = make_qp(pd, cq, e.IBV_QPT_UD, e.IBV_QPS_RTS)
    wr = send()
    wr.set_wr_ud(AH(pd, attr=AHAttr(dlid=0x1234, sl=3, port_num=2)), 0x99, 0x1111)
    qp.post_send(wr)
    head, _ = entry_of(qp, 0)
    assert (head.remote_qpn, head.remote_qkey) == (0x99, 0x1111)
    assert head.address_vector[:6] == bytes([2, 3, 0, 0]) + struct.pack("<H", 0x1234)
    wr.set_wr_rdma(1, 2)  # of the setters of one place the last one counts
    with pytest.raises(PyverbsRDMAError, match="needs an address handle"):
        qp.post_send(wr)


def test_work_requests_keep_values():
    pieces = [Element(1, 2, 3), Element(4, 5, 6)]
    wr = RecvWR(1, 2, pieces)
    pieces[0].addr = 9
    assert [one.addr for one in wr.sg_list] == [1, 4]
    assert wr.entry() == struct.pack("<I12x", 2) + SGE.pack(1, 2, 3) + SGE.pack(4, 5, 6)
    wr.num_sge = 1
    assert wr.entry()[:4] == b"\1\0\0\0"
    for act in (lambda: RecvWR(1, 3, pieces), lambda: setattr(wr, "num_sge", 3)):
        with pytest.raises(IndexError):
            act()
    with pytest.raises(PyverbsUserError, match="A WR needs at least one SGE"):
        SendWR()
    assert SendWR(opcode=e.IBV_WR_LOCAL_INV, imm_data=5).num_sge == 0
    chain = send(1)
    chain.next_wr = send(2)
    assert chain.next_wr.wr_id == 2
    chain.sg_list = [Element(7, 8, 9)]
    assert chain.entry()[128:] == SGE.pack(7, 8, 9)
    assert "Send flags            : IBV_SEND_SIGNALED " in str(chain)


def test_reset_empties_the_queues_and_sweeps_the_completions(pd: PD, cq: CQ, wire: Wire):
    qp, other, device = make_qp(pd, cq, state=3), make_qp(pd, cq, state=3), Device(cq)
    for queue in (qp, other):
        queue.post_send(send(queue.qp_num))
        device.complete(queue, 0, is_send=1)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    assert [wc.qp_num for wc in cq.poll(9)[1]] == [other.qp_num]
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    for number in range(4):
        qp.post_send(send(number))
    device.complete(qp, 1, is_send=1)
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [0]


def test_destroying_sweeps_and_a_closed_pair_takes_nothing(pd: PD, cq: CQ):
    qp, device = make_qp(pd, cq, state=3), Device(cq)
    qp.post_send(send(5))
    device.complete(qp, 0, is_send=1)
    qp.close()
    assert cq.poll(9) == (0, [])
    for act in (
        lambda: qp.post_send(send()),
        lambda: qp.post_recv(RecvWR()),
        lambda: qp.qp_num,
        lambda: qp.query(1),
        lambda: qp.to_init(QPAttr()),
    ):
        with pytest.raises(PyverbsUserError, match="closed"):
            act()


def test_a_pair_that_is_closed_while_one_posts(pd: PD, cq: CQ):
    qp = make_qp(pd, cq, state=3)
    with qp._rings.send.lock:  # type: ignore[union-attr]  # it has one
        qp._rings.send.release()  # type: ignore[union-attr]
    with pytest.raises(PyverbsRDMAError, match="has just been closed"):
        qp.post_send(send())


def test_multicast(pd: PD, cq: CQ, wire: Wire):
    qp = make_qp(pd, cq, e.IBV_QPT_UD)
    group = GID("ff12:0000:0000:0000:0000:0000:0000:0001")
    qp.attach_mcast(group, 0xC001)
    qp.detach_mcast(group, 0xC001)
    assert wire.names()[-2:] == ["attach_mcast", "detach_mcast"]
    assert wire.last("attach_mcast").gid == group.raw
    wire.answers["attach_mcast"] = lambda request: Refusal(22, VerbReason.NOT_UD, 0, 2)
    with pytest.raises(PyverbsRDMAError, match="for UD queue pairs, this one is RC"):
        qp.attach_mcast(group, 1)


# Shared receive queues and XRC


def test_a_shared_queue_feeds_queue_pairs(pd: PD, cq: CQ, wire: Wire):
    init = SrqInitAttr(SrqAttr(3, 2, 9))
    srq = SRQ(pd, init)
    assert (init.max_wr, init.max_sge, srq.get_srq_num()) == (4, 2, srq.srq)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq, cap=QPCap(*CAP)))
    assert (wire.last("create_qp").srq, qp._rings.receive) == (srq.srq, None)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    with pytest.raises(PyverbsRDMAError, match="receives by its SRQ"):
        qp.post_recv(RecvWR())
    device = Device(cq)
    for number in range(4):
        srq.post_recv(RecvWR(number))
    with pytest.raises(PyverbsRDMAError, match=r"^Failed to post receive to SRQ\.\. Errno: 12"):
        srq.post_recv(RecvWR())
    with pytest.raises(PyverbsRDMAError, match="num_sge 3 is more than 2"):
        srq.post_recv(RecvWR(0, 3, [Element(0, 1, 2)] * 3))
    device.complete(qp, 2, srqn=srq.get_srq_num())
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [2]
    srq.post_recv(RecvWR(9))
    srq.close()
    assert wire.names()[-2:] == ["destroy_qp", "destroy_srq"]
    with pytest.raises(PyverbsUserError, match="closed"):
        srq.post_recv(RecvWR())


def test_query_and_limit(pd: PD, wire: Wire):
    srq = SRQ(pd, SrqInitAttr(SrqAttr(4)))
    attr = srq.query()
    assert (attr.max_wr, attr.max_sge, attr.srq_limit) == (16, 2, 5)
    srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
    assert (wire.last("modify_srq").mask, wire.last("modify_srq").srq_limit) == (2, 3)
    for verb, act, text in (
        ("query_srq", srq.query, "Failed to query SRQ"),
        ("modify_srq", lambda: srq.modify(SrqAttr(), 1), "Failed to modify SRQ"),
    ):
        wire.answers[verb] = lambda request: Refusal(22, VerbReason.NO_SUCH_OBJECT, 1)
        with pytest.raises(PyverbsRDMAError, match=text):
            act()


def test_xrc(context: Context, pd: PD, cq: CQ, wire: Wire):
    both = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
    xrcd = XRCD(context, XRCDInitAttr(both, os.O_CREAT, -1))
    assert (wire.last("open_xrcd").fd, wire.last("open_xrcd").oflags) == (NO_FD, os.O_CREAT)
    attr = SrqInitAttrEx(4)
    attr.srq_type, attr.pd, attr.xrcd, attr.cq = e.IBV_SRQT_XRC, pd, xrcd, cq
    SRQ(context, attr)
    assert wire.last("create_srq").xrcd == wire.last("create_srq").cq == 0
    attr.comp_mask = 15
    srq = SRQ(context, attr)
    request = wire.last("create_srq")
    assert (request.srq_type, request.pd, request.cq) == (1, pd.handle, cq.cq)
    target = QP(
        context,
        QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd),
    )
    assert wire.last("create_qp").buffer_length == 0
    target.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    for act in (lambda: target.post_send(send()), lambda: target.post_recv(RecvWR())):
        with pytest.raises(PyverbsRDMAError, match="the queue pair has no"):
            act()
    xrcd.close()
    assert wire.names()[-3:] == ["destroy_qp", "destroy_srq", "close_xrcd"]
    assert srq.close() is None


@pytest.mark.parametrize(("mask", "code"), [(1, 22), (2, 22), (7, 95)])
def test_a_domain_needs_both_its_attributes(context: Context, mask: int, code: int):
    with pytest.raises(PyverbsRDMAError, match="Failed to allocate XRCD") as caught:
        XRCD(context, XRCDInitAttr(mask, 0, -1))
    assert caught.value.error_code == code


def test_srq_creators(context: Context, wire: Wire, pd: PD):
    with pytest.raises(PyverbsRDMAError, match=r"^Srq needs either Context or PD for creation$"):
        SRQ(3, SrqInitAttr())
    with pytest.raises(TypeError, match="SrqInitAttrEx, got SrqInitAttr"):
        SRQ(context, SrqInitAttr())
    wire.answers["create_srq"] = lambda request: Refusal(22, VerbReason.BAD_MAX_WR, 0, 16384)
    with pytest.raises(PyverbsRDMAError, match=r"^Failed to create SRQ \(errno is 22\)"):
        SRQ(pd, SrqInitAttr())
    attr = SrqInitAttrEx()
    attr.comp_mask = 16
    with pytest.raises(PyverbsRDMAError, match="no tag matching"):
        SRQ(context, attr)
