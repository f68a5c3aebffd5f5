"""One side's verbs objects: queue pairs, their queues, and the memory messages leave and reach.

Every queue pair has two lanes in one region: messages leave from the first and arrive in the
second, always at the same place, as in perftest.

Rules: main thread. `close` may be called whatever has failed.
Spec: linux-rdma/perftest, perftest_resources.c (fixed values); ibv_modify_qp(3).
"""

import contextlib
import secrets
from dataclasses import dataclass
from typing import Final, Self

from shared.verbs_enums import (
    ibv_access_flags,
    ibv_mtu,
    ibv_qp_type,
    ibv_send_flags,
    ibv_wr_opcode,
)
from user_proc.perftest.address import Address
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

QKEY: Final = 0x11111111
GRH_BYTES: Final = 40
SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)
INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)

_RNR_TIMER: Final = 12
_RNR_RETRIES: Final = 7
_LARGEST_PSN: Final = 1 << 24
_PAGE: Final = 4096
_SPARE: Final = 64  # a GRH, and a line of its own for whoever waits on a last byte
_ACCESS: Final = int(
    ibv_access_flags.IBV_ACCESS_LOCAL_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_READ
    | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC
)


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """What is made."""

    device: str
    port: int
    connection: str
    qps: int
    largest: int
    send_depth: int
    receive_depth: int  # of each queue pair, or of the shared queue
    use_srq: bool
    inline: int
    events: bool
    mtu: int | None
    gid_index: int | None
    timeout: int
    retries: int
    service_level: int
    outstanding: int | None
    vector: int = 0
    dlid: int | None = None
    pkey_index: int = 0
    hop_limit: int = 64
    traffic_class: int = 0
    flow_label: int = 0


class Endpoint:
    """One side; a context manager that closes everything."""

    def __init__(self, kernel: str, plan: EndpointPlan) -> None:
        self.plan: Final = plan
        self.context: Final = Context(name=plan.device, kernel=kernel)
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        plan, context = self.plan, self.context
        self.port_attr = context.query_port(plan.port)
        device = context.query_device()
        self.outstanding = plan.outstanding or device.max_qp_rd_atom
        self.mtu = plan.mtu or 128 << self.port_attr.active_mtu
        if self.mtu > 128 << self.port_attr.active_mtu:
            raise ToolFailed(f"-m: the port's MTU is {128 << self.port_attr.active_mtu}")
        if plan.connection == "UD" and plan.largest > self.mtu:
            raise ToolFailed(f"a datagram has at most {self.mtu} bytes, one packet of the port")
        self.gid = None if plan.gid_index is None else context.query_gid(plan.port, plan.gid_index)
        self.pd = PD(context)
        self.lane = -(-(plan.largest + _SPARE) // _PAGE) * _PAGE
        self.mr = MR(self.pd, 2 * self.lane * plan.qps, _ACCESS)
        self.view = self.mr.view()
        # One each, since the event of one queue may come while the other is waited for.
        self.send_channel = CompChannel(context) if plan.events else None
        self.receive_channel = CompChannel(context) if plan.events else None
        sends = plan.qps * plan.send_depth
        receives = plan.receive_depth * (1 if plan.use_srq else plan.qps)
        self.send_cq = CQ(context, sends, None, self.send_channel, plan.vector)
        self.receive_cq = CQ(context, receives, None, self.receive_channel, plan.vector)
        self.srq = None
        if plan.use_srq:
            self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(plan.receive_depth, 1)))
        self.qps = [self._queue_pair() for _ in range(plan.qps)]
        self.index_of = {qp.qp_num: index for index, qp in enumerate(self.qps)}
        self.psns = [secrets.randbelow(_LARGEST_PSN) for _ in self.qps]
        self._receives = [self._receive(index) for index in range(plan.qps)]
        self.ah: AH | None = None

    def _queue_pair(self) -> QP:
        plan = self.plan
        kind = int(ibv_qp_type[f"IBV_QPT_{plan.connection}"])
        receives = 0 if self.srq is not None else plan.receive_depth
        cap = QPCap(plan.send_depth, receives, 1, 1, plan.inline)
        attr = QPInitAttr(
            kind, scq=self.send_cq, rcq=self.receive_cq, srq=self.srq, cap=cap, sq_sig_all=0
        )
        return QP(self.pd, attr)

    @property
    def address(self) -> Address:
        """Give this side's address."""
        numbers = (qp.qp_num for qp in self.qps)
        gid = "" if self.gid is None else self.gid.gid
        qps = tuple(zip(numbers, self.psns, strict=True))
        return Address(self.port_attr.lid, gid, qps, self.mr.rkey, self.mr.buf)

    @property
    def spin_hint(self) -> int:
        """After how many empty looks a loop gives the processor to others."""
        return self.context.session().doorbells.spin_hint

    # Connecting

    def connect(self, peer: Address) -> None:
        """Bring every queue pair to RTS, with the receives it needs before."""
        self.peer = peer
        for index, qp in enumerate(self.qps):
            if self.plan.connection == "UD":
                attr = self._own()
                attr.qkey, attr.sq_psn = QKEY, self.psns[index]
                qp.to_rts(attr)
            else:
                qp.to_rts(self._connected(index, peer))
        if self.plan.connection == "UD":
            self.ah = AH(self.pd, attr=self._path(peer))

    def _own(self) -> QPAttr:
        attr = QPAttr(port_num=self.plan.port)
        attr.pkey_index = self.plan.pkey_index
        return attr

    def _connected(self, index: int, peer: Address) -> QPAttr:
        attr = self._own()
        attr.qp_access_flags = _ACCESS
        attr.path_mtu = ibv_mtu[f"IBV_MTU_{self.mtu}"]
        attr.dest_qp_num, attr.rq_psn = peer.qps[index]
        attr.sq_psn = self.psns[index]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = self.outstanding
        attr.min_rnr_timer, attr.rnr_retry = _RNR_TIMER, _RNR_RETRIES
        attr.timeout, attr.retry_cnt = self.plan.timeout, self.plan.retries
        attr.ah_attr = self._path(peer)
        return attr

    def _path(self, peer: Address) -> AHAttr:
        route = None
        if self.gid is not None:
            if not peer.gid:
                raise ToolFailed("the other side uses no GID: give -x to both")
            plan = self.plan
            route = GlobalRoute(
                GID(peer.gid), plan.flow_label, plan.gid_index or 0, plan.hop_limit,
                plan.traffic_class,
            )  # fmt: skip
        return AHAttr(
            dlid=peer.lid if self.plan.dlid is None else self.plan.dlid,
            sl=self.plan.service_level,
            port_num=self.plan.port,
            is_global=int(route is not None),
            gr=route,
        )

    # Memory

    @property
    def receive_share(self) -> int:
        """How many receives a queue pair can count on."""
        shared_by = self.plan.qps if self.plan.use_srq else 1
        return self.plan.receive_depth // shared_by

    @property
    def loses_messages(self) -> bool:
        """Tell whether a message that finds no receive is lost."""
        return self.plan.connection in ("UC", "UD")

    @property
    def arrival(self) -> int:
        """Bytes before the data in a receive's memory: a datagram has room for a GRH there."""
        return GRH_BYTES if self.plan.connection == "UD" else 0

    def sent(self, index: int, size: int) -> memoryview:
        """Give what a queue pair sends."""
        start = 2 * index * self.lane
        return self.view[start : start + size]

    def arrived(self, index: int, size: int) -> memoryview:
        """Give what arrives at a queue pair."""
        start = (2 * index + 1) * self.lane + self.arrival
        return self.view[start : start + size]

    # Requests

    def request(self, index: int, opcode: str, size: int, *, signaled: bool = True) -> SendWR:
        """Make a request of a queue pair: its lane, and the other side's where one is named."""
        wr_opcode = ibv_wr_opcode[f"IBV_WR_{opcode}"]
        lane = 2 * index * self.lane
        atomic, reads = opcode.startswith("ATOMIC"), opcode == "RDMA_READ"
        own = lane + self.lane if reads or atomic else lane
        element = SGE(self.mr.buf + own, size, self.mr.lkey)
        flags = SIGNALED if signaled else 0
        inline = size <= self.plan.inline and not reads and not atomic
        made = SendWR(0, int(wr_opcode), 1, 0, [element], flags | (INLINE if inline else 0))
        if self.ah is not None:
            made.set_wr_ud(self.ah, self.peer.qps[index][0], QKEY)
        elif reads:
            made.set_wr_rdma(self.peer.rkey, self.peer.base + lane)
        elif opcode.startswith("RDMA"):
            made.set_wr_rdma(self.peer.rkey, self.peer.base + lane + self.lane)
        elif atomic:
            made.set_wr_atomic(self.peer.rkey, self.peer.base + lane + self.lane, 1)
        return made

    def _receive(self, index: int) -> RecvWR:
        start = self.mr.buf + (2 * index + 1) * self.lane
        length = self.plan.largest + (GRH_BYTES if self.plan.connection == "UD" else 0)
        return RecvWR(index, 1, [SGE(start, length, self.mr.lkey)])

    def fill_receives(self) -> None:
        """Post as many receives as there is room for."""
        for index in range(1 if self.srq is not None else len(self.qps)):
            for _ in range(self.plan.receive_depth):
                self.post_receive(index)

    def post_receive(self, index: int) -> None:
        """Post one receive, to the queue pair or to the shared queue."""
        if self.srq is not None:
            self.srq.post_recv(self._receives[0])
        else:
            self.qps[index].post_recv(self._receives[index])

    # The end

    def close(self) -> None:
        """Close everything; a kernel that has died has closed it already."""
        with contextlib.suppress(PyverbsError):
            self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()
