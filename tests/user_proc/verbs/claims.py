"""A context with what the checks of claims need: queue pairs, requests, completions, events."""

import time
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.hca.port import Port
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ
from user_proc.verbs.wr import SGE, RecvWR, SendWR

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


#: What tries a claim, and asserts.
Check = Callable[[Claims], None]


def multicast_address(c: Claims, gid: GID = GROUP) -> AHAttr:
    """Give the address of a multicast group."""
    return AHAttr(dlid=GROUP_LID, is_global=1, port_num=1, gr=GlobalRoute(dgid=gid))
