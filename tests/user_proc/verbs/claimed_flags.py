"""What each capability bit the device tells of stands for, as an act of a program: one check a bit.

A check takes a Claims, and asserts.
"""

from collections.abc import Callable
from typing import Final

from tests.user_proc.verbs.claims import ACCESS_ERR, OK, OP_ERR, QKEY, RNR_ERR, Claims
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.mr import MW, MWBind, MWBindInfo
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqInitAttrEx
from user_proc.verbs.wr import SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr


def bad_pkey_cntr(c: Claims) -> None:
    assert c.ports is not None
    c.ports[0].set_pkeys(1, [0x8123])
    c.events(e.IBV_EVENT_PKEY_CHANGE)
    other, member = c.datagrams(pkey_index=1), c.datagrams()
    before = c.context.query_port(1).bad_pkey_cntr
    c.datagram(other, member.qp_num, c.local())
    assert c.statuses(1) == [OK]
    assert c.context.query_port(1).bad_pkey_cntr == before + 1
    c.ports[0].set_pkeys(1, [0])
    c.events(e.IBV_EVENT_PKEY_CHANGE)


def bad_qkey_cntr(c: Claims) -> None:
    one, other = c.datagrams(), c.datagrams()
    before = c.context.query_port(1).qkey_viol_cntr
    c.datagram(one, other.qp_num, c.local(), qkey=QKEY + 1)
    assert c.statuses(1) == [OK]
    assert c.context.query_port(1).qkey_viol_cntr == before + 1


def change_phy_port(c: Claims) -> None:
    one, other = c.pair(to=2)
    for qp, mask in ((one, e.IBV_QP_PORT | e.IBV_QP_AV), (other, e.IBV_QP_AV)):
        qp.modify(QPAttr(qp_state=e.IBV_QPS_SQD), e.IBV_QP_STATE)
        moved = c.attributes(0, 2, 2)
        moved.qp_state = e.IBV_QPS_SQD
        qp.modify(moved, e.IBV_QP_STATE | mask)
        qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    assert one.query(e.IBV_QP_PORT)[0].port_num == 2
    up = c.down(1)  # which it has left
    c.events(e.IBV_EVENT_PORT_ERR)
    c.receive(other)
    one.post_send(c.send(one))
    assert c.statuses(2) == [OK, OK]
    up()
    c.events(e.IBV_EVENT_PORT_ACTIVE)


def ud_av_port_enforce(c: Claims) -> None:
    one, other = c.datagrams(), c.datagrams(port=2)
    c.receive(other)
    c.datagram(one, other.qp_num, AHAttr(dlid=c.context.query_port(2).lid, port_num=2))
    assert c.statuses(1) == [OP_ERR]
    another = c.datagrams()
    c.datagram(another, other.qp_num, AHAttr(dlid=c.context.query_port(2).lid, port_num=1))
    assert c.statuses(2) == [OK, OK]


def port_active_event(c: Claims) -> None:
    one, other = c.pair()
    up = c.down(1)
    c.events(e.IBV_EVENT_PORT_ERR)
    assert c.context.query_port(1).state == e.IBV_PORT_DOWN
    up()
    c.events(e.IBV_EVENT_PORT_ACTIVE)
    assert c.context.query_port(1).state == e.IBV_PORT_ACTIVE
    c.receive(other)
    one.post_send(c.send(one))
    assert c.statuses(2) == [OK, OK]


def sys_image_guid(c: Claims) -> None:
    assert c.device.sys_image_guid == c.device.node_guid != 0
    assert c.context.query_port(1).port_cap_flags & e.IBV_PORT_SYS_IMAGE_GUID_SUP


def rc_rnr_nak_gen(c: Claims) -> None:
    one, other = c.queue_pair(e.IBV_QPT_RC), c.queue_pair(e.IBV_QPT_RC)
    attr = c.attributes(other.qp_num)
    attr.rnr_retry = 0
    one.to_rts(attr)
    other.to_rts(c.attributes(one.qp_num))
    one.post_send(c.send(one))
    assert c.statuses(1) == [RNR_ERR]


def mem_window(c: Claims) -> None:
    one, other = c.pair()
    window = MW(c.pd, e.IBV_MW_TYPE_1)
    info = MWBindInfo(c.mr, c.mr.buf + 4096, 64, e.IBV_ACCESS_REMOTE_WRITE)
    one.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED))
    request = c.send(other, e.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(window.rkey, c.mr.buf + 4096)
    assert c.statuses(1) == [OK]
    other.post_send(request)
    assert c.statuses(1) == [OK]
    request.set_wr_rdma(window.rkey, c.mr.buf + 4097)  # a byte too far
    other.post_send(request)
    assert c.statuses(1) == [ACCESS_ERR]


def _bound(c: Claims, qp: QP) -> int:
    """Bind a window of type 2 to a queue pair; give its key."""
    window = MW(c.pd, e.IBV_MW_TYPE_2)
    c.kept.append(window)
    info = MWBindInfo(c.mr, c.mr.buf + 4096, 64, e.IBV_ACCESS_REMOTE_WRITE)
    request = SendWR(5, opcode=int(e.IBV_WR_BIND_MW), num_sge=0)
    request.set_bind_wr(window, info)
    key = (window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)
    request.set_bind(window, info, key)
    qp.post_send(request)
    assert c.statuses(1) == [OK]
    return key


def mem_window_type_2b(c: Claims) -> None:
    one, other = c.pair()
    key = _bound(c, one)
    for sender, status in ((other, OK), (c.pair()[0], ACCESS_ERR)):  # the second not by its owner
        request = c.send(sender, e.IBV_WR_RDMA_WRITE)
        request.set_wr_rdma(key, c.mr.buf + 4096)
        sender.post_send(request)
        assert c.statuses(1) == [status]


def mem_mgt_extensions(c: Claims) -> None:
    one, other = c.pair()
    for invalidate in (_invalidate_locally, _invalidate_at_the_peer):
        key = _bound(c, one)
        invalidate(c, one, other, key)
    request = c.send(other, e.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(key, c.mr.buf + 4096)
    other.post_send(request)
    assert c.statuses(1) == [ACCESS_ERR]


def _invalidate_locally(c: Claims, one: QP, other: QP, key: int) -> None:
    one.post_send(SendWR(5, opcode=int(e.IBV_WR_LOCAL_INV), num_sge=0, imm_data=key))
    assert c.statuses(1) == [OK]


def _invalidate_at_the_peer(c: Claims, one: QP, other: QP, key: int) -> None:
    c.receive(one)
    other.post_send(c.send(other, e.IBV_WR_SEND_WITH_INV, imm_data=key))
    found = {int(wc.wr_id): wc for wc in c.completions(2)}
    assert {int(wc.status) for wc in found.values()} == {OK}
    assert found[7].wc_flags & e.IBV_WC_WITH_INV


def xrc(c: Claims) -> None:
    domain = XRCD(c.context, XRCDInitAttr(3, 0o100, -1))
    shared = SrqInitAttrEx(max_wr=4, max_sge=1)
    shared.srq_type = int(e.IBV_SRQT_XRC)
    shared.comp_mask = int(
        e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD
        | e.IBV_SRQ_INIT_ATTR_CQ
    )  # fmt: skip
    shared.pd, shared.xrcd, shared.cq = c.pd, domain, c.cq
    srq = SRQ(c.context, shared)
    target = QP(
        c.context,
        QPInitAttrEx(e.IBV_QPT_XRC_RECV, xrcd=domain, comp_mask=e.IBV_QP_INIT_ATTR_XRCD),
    )
    sender = QP(
        c.context,
        QPInitAttrEx(
            e.IBV_QPT_XRC_SEND, scq=c.cq, pd=c.pd, cap=QPCap(4, 0, 1, 0),
            comp_mask=e.IBV_QP_INIT_ATTR_PD,
        ),
    )  # fmt: skip
    sender.to_rts(c.attributes(target.qp_num))
    target.to_rts(c.attributes(sender.qp_num))
    c.receive(srq)
    request = c.send(sender)
    request.set_qp_type_xrc(srq.get_srq_num())
    sender.post_send(request)
    assert c.statuses(2) == [OK, OK]
    for thing in (sender, target, srq, domain):
        thing.close()


CLAIMED: Final[dict[str, Callable[[Claims], None]]] = {
    "BAD_PKEY_CNTR": bad_pkey_cntr,
    "BAD_QKEY_CNTR": bad_qkey_cntr,
    "CHANGE_PHY_PORT": change_phy_port,
    "UD_AV_PORT_ENFORCE": ud_av_port_enforce,
    "PORT_ACTIVE_EVENT": port_active_event,
    "SYS_IMAGE_GUID": sys_image_guid,
    "RC_RNR_NAK_GEN": rc_rnr_nak_gen,
    "MEM_WINDOW": mem_window,
    "XRC": xrc,
    "MEM_MGT_EXTENSIONS": mem_mgt_extensions,
    "MEM_WINDOW_TYPE_2B": mem_window_type_2b,
}

#: What only somebody who reaches into the device can bring about.
INSIDE: Final = ("BAD_PKEY_CNTR",)
