"""What each capability bit of the device stands for, as an act of a program: one check a bit.

A check takes a Claims, and asserts. Those of bits the device lacks assert the refusal.
"""

import errno
import time
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.hca.port import Port
from tests.user_proc.verbs.extended_program import refused
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW, MWBind, MWBindInfo
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

REMOTE: Final = int(
    e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
RIGHTS: Final = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) | REMOTE
QKEY: Final = 0x1234
GROUP: Final = GID("ff12:0000:0000:0000:0000:0000:0000:0077")
GROUP_LID: Final = 0xC001
WAIT_SECONDS: Final = 3
OK, ACCESS_ERR, RNR_ERR, OP_ERR = (
    int(status)
    for status in (
        e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_RNR_RETRY_EXC_ERR,
        e.IBV_WC_LOC_QP_OP_ERR,
    )
)  # fmt: skip


class Claims:
    """A context with what the checks need; `ports` of the device if it is in this process.

    `down` takes a port down, and up again when the function it gives is called.
    """

    def __init__(
        self,
        context: Context,
        down: Callable[[int], Callable[[], object]],
        ports: list[Port] | None = None,
    ) -> None:
        self.context, self.down, self.ports = context, down, ports
        self.device = context.query_device()
        self.pd, self.cq = PD(context), CQ(context, self.device.max_cqe)
        self.mr = MR(self.pd, 8192, RIGHTS)
        self.kept: list[object] = []  # what goes out of reach is closed

    def queue_pair(self, kind: int, **options: Any) -> QP:
        """Make a queue pair in RESET."""
        attr = QPInitAttr(int(kind), scq=self.cq, rcq=self.cq, cap=QPCap(16, 16, 2, 2), **options)
        qp = QP(self.pd, attr)
        self.kept.append(qp)
        return qp

    def attributes(self, peer: int = 0, port: int = 1, to: int = 1) -> QPAttr:
        """Give what a queue pair is connected with: from a port to a port."""
        attr = QPAttr(port_num=port)
        attr.dest_qp_num, attr.qp_access_flags, attr.path_mtu = peer, REMOTE, 3
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 10, 3, 7, 1
        attr.ah_attr = AHAttr(dlid=self.context.query_port(to).lid, port_num=port)
        return attr

    def pair(self, kind: int = e.IBV_QPT_RC, to: int = 1) -> tuple[QP, QP]:
        """Connect two queue pairs, the second at port `to`."""
        one, other = self.queue_pair(kind), self.queue_pair(kind)
        one.to_rts(self.attributes(other.qp_num, 1, to))
        other.to_rts(self.attributes(one.qp_num, to, 1))
        return one, other

    def datagrams(self, port: int = 1, pkey_index: int = 0, **options: Any) -> QP:
        """Make a UD queue pair in RTS."""
        qp = self.queue_pair(e.IBV_QPT_UD, **options)
        attr = QPAttr(port_num=port)
        attr.qkey, attr.pkey_index = QKEY, pkey_index
        qp.to_rts(attr)
        return qp

    def element(self, length: int = 64, at: int = 0) -> SGE:
        """Give a part of the region."""
        return SGE(self.mr.buf + at, length, self.mr.lkey)

    def receive(self, queue: QP | SRQ, wr_id: int = 7) -> None:
        """Post an entry of 256 bytes."""
        queue.post_recv(RecvWR(wr_id, 1, [self.element(256, 4096)]))

    def send(self, qp: QP, opcode: int = e.IBV_WR_SEND, *, wr_id: int = 5, **more: Any) -> SendWR:
        """Make a signaled request of 64 bytes."""
        request = SendWR(wr_id, num_sge=1, sg=[self.element()], opcode=int(opcode), **more)
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
            request.set_wr_rdma(self.mr.rkey, self.mr.buf + 4096)
        return request

    def datagram(self, qp: QP, to: int, attr: AHAttr, qkey: int = QKEY, **more: Any) -> None:
        """Send a datagram."""
        request = self.send(qp, **more)
        request.set_wr_ud(AH(self.pd, attr=attr), to, qkey)
        qp.post_send(request)

    def completions(self, count: int, cq: CQ | None = None) -> list[WC]:
        """Wait for so many completions."""
        found: list[WC] = []
        end = time.monotonic() + WAIT_SECONDS
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} completions of {count} came"
            found += (cq or self.cq).poll(count - len(found))[1]
        return found

    def statuses(self, count: int) -> list[int]:
        """Wait for so many completions, and give how they ended, sorted."""
        return sorted(int(wc.status) for wc in self.completions(count))

    def events(self, *kinds: int) -> None:
        """Wait for these events of the context, in this order."""
        self.context.query_port(1)  # a device that was reached into tells it with its next command
        found = []
        for _ in kinds:
            event = self.context.get_async_event()
            found.append(event.event_type)
            event.ack()
        assert found == list(kinds)

    def local(self, port: int = 1, **more: Any) -> AHAttr:
        """Give the address of a port, from itself."""
        return AHAttr(dlid=self.context.query_port(port).lid, port_num=port, **more)


# What the device has


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


# What it has not


def _modify(mask: int, state: int = e.IBV_QPS_RTS, **values: Any) -> Callable[[Claims], int]:
    def check(c: Claims) -> int:
        one, _ = c.pair()
        attr = QPAttr(qp_state=int(state))
        for name, value in values.items():
            setattr(attr, name, value)
        return refused(lambda: one.modify(attr, e.IBV_QP_STATE | mask))

    return check


def _raw(c: Claims) -> int:
    return refused(lambda: c.queue_pair(e.IBV_QPT_RAW_PACKET))


def _srq_resize(c: Claims) -> int:
    srq = SRQ(c.pd, SrqInitAttr(SrqAttr(8, 1)))
    found = refused(lambda: srq.modify(SrqAttr(16), e.IBV_SRQ_MAX_WR))
    assert srq.query().max_wr == 8
    return found


def _checksum(kind: int) -> Callable[[Claims], int]:
    def check(c: Claims) -> int:
        qp = c.datagrams() if kind == e.IBV_QPT_UD else c.pair()[0]
        request = c.send(qp, send_flags=int(e.IBV_SEND_IP_CSUM))
        if kind == e.IBV_QPT_UD:
            request.set_wr_ud(AH(c.pd, attr=c.local()), 5, QKEY)
        return refused(lambda: qp.post_send(request))

    return check


def _missing(owner: str) -> Callable[[Claims], int]:
    """Give the check of something the library has no name for."""

    def check(c: Claims) -> int:
        module, _, name = owner.rpartition(".")
        found = __import__(f"user_proc.verbs.{module}", fromlist=["x"])
        return 0 if hasattr(found, name) else errno.EOPNOTSUPP

    return check


def _type_2a(c: Claims) -> int:
    """A window of type 2A would be reached through any queue pair of its domain."""
    mem_window_type_2b(c)
    return errno.EOPNOTSUPP


def _shut_down(c: Claims) -> int:
    return errno.EOPNOTSUPP if not hasattr(c.context, "modify_port") else 0


def _init_type(c: Claims) -> int:
    return errno.EOPNOTSUPP if c.context.query_port(1).init_type_reply == 0 else 0


def _n_notify(c: Claims) -> int:
    try:
        c.cq.req_notify(False, 5)  # type: ignore[call-arg]
    except TypeError:
        return errno.EOPNOTSUPP
    return 0


#: errno with which each is refused; what has no call of its own at all counts as EOPNOTSUPP.
LACKING: Final[dict[str, tuple[Callable[[Claims], int], int]]] = {
    "RESIZE_MAX_WR": (_modify(e.IBV_QP_CAP), errno.EINVAL),
    "RAW_MULTI": (_raw, errno.EOPNOTSUPP),
    "AUTO_PATH_MIG": (_modify(e.IBV_QP_PATH_MIG_STATE), errno.EOPNOTSUPP),
    "CURR_QP_STATE_MOD": (
        _modify(e.IBV_QP_CUR_STATE, cur_qp_state=int(e.IBV_QPS_SQE)), errno.EINVAL,
    ),
    "SHUTDOWN_PORT": (_shut_down, errno.EOPNOTSUPP),
    "INIT_TYPE": (_init_type, errno.EOPNOTSUPP),
    "SRQ_RESIZE": (_srq_resize, errno.EOPNOTSUPP),
    "N_NOTIFY_CQ": (_n_notify, errno.EOPNOTSUPP),
    "UD_IP_CSUM": (_checksum(e.IBV_QPT_UD), errno.EOPNOTSUPP),
    "RC_IP_CSUM": (_checksum(e.IBV_QPT_RC), errno.EOPNOTSUPP),
    "RAW_IP_CSUM": (_raw, errno.EOPNOTSUPP),
    "MEM_WINDOW_TYPE_2A": (_type_2a, errno.EOPNOTSUPP),
    "MANAGED_FLOW_STEERING": (_missing("qp.Flow"), errno.EOPNOTSUPP),
}  # fmt: skip


def multicast_address(c: Claims, gid: GID = GROUP) -> AHAttr:
    """Give the address of a multicast group."""
    return AHAttr(dlid=GROUP_LID, is_global=1, port_num=1, gr=GlobalRoute(dgid=gid))
