"""One end of XRC between processes: a sender, a target, and a shared queue in a domain of a file.

Its words are KERNEL [private]; it is told what to do as its base is.
"""

import os
import sys
from typing import Any

from shared.verbs_enums import (
    ibv_qp_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
    ibv_send_flags,
    ibv_srq_attr_mask,
    ibv_srq_type,
    ibv_wr_opcode,
)
from shared.wqe_layout import RECEIVE_HEAD
from tests.end_to_end.traffic_end import ALL_ACCESS, End, serve
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.libibverbs_enums import (
    ibv_qp_init_attr_mask,
    ibv_srq_init_attr_mask,
    ibv_xrcd_init_attr_mask,
)
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

_OF_DOMAIN = int(ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_FD) | int(
    ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_OFLAGS
)
_RESET = int(ibv_qp_state.IBV_QPS_RESET)
_OF_SRQ = sum(
    int(ibv_srq_init_attr_mask[f"IBV_SRQ_INIT_ATTR_{name}"])
    for name in ("TYPE", "PD", "XRCD", "CQ")
)


class XrcEnd(End):
    """What of a connection a process has: any of sender, target and shared queue."""

    def __init__(self, kernel: str, private: bool = False) -> None:
        super().__init__(kernel, private)
        self.srq_cq = CQ(self.context, 200)
        self.xrcd: XRCD | None = None
        self.srq: SRQ | None = None
        self.sender: QP | None = None
        self.target: QP | None = None
        self.plain: SRQ | None = None

    def open_domain(self, path: str, oflags: int = os.O_CREAT) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.xrcd = XRCD(self.context, XRCDInitAttr(_OF_DOMAIN, oflags, descriptor))
        finally:
            os.close(descriptor)

    def close_domain(self) -> None:
        assert self.xrcd is not None
        self.xrcd.close()

    def make_srq(self, max_wr: int = 32) -> int:
        """Have a new shared queue; return its number."""
        if self.srq is not None:
            self.srq.close()
            while self.srq_cq.poll(16)[0]:
                pass
        attr = SrqInitAttrEx(max_wr=max_wr, max_sge=2)
        attr.comp_mask, attr.srq_type = _OF_SRQ, int(ibv_srq_type.IBV_SRQT_XRC)
        attr.pd, attr.xrcd, attr.cq = self.pd, self.xrcd, self.srq_cq
        self.srq = SRQ(self.context, attr)
        return self.srq.get_srq_num()

    def drop_srq(self) -> None:
        assert self.srq is not None
        self.srq.close()
        self.srq = None

    def make_plain_srq(self) -> int:
        """Have a shared queue that is of no domain; return its number."""
        if self.plain is None:
            self.plain = SRQ(self.pd, SrqInitAttr(SrqAttr(4, 1)))
        return self.plain.get_srq_num()

    def make_target(self) -> int:
        """Have a new target; return its number."""
        if self.target is not None:
            self.target.close()
        attr = QPInitAttrEx(
            qp_type=int(ibv_qp_type.IBV_QPT_XRC_RECV), xrcd=self.xrcd,
            comp_mask=int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD),
        )  # fmt: skip
        self.target = QP(self.context, attr)
        return self.target.qp_num

    def make_sender(self) -> int:
        """Have a new sender; return its number."""
        if self.sender is not None:
            self.sender.close()
            while self.cq.poll(16)[0]:
                pass
        attr = QPInitAttrEx(
            qp_type=int(ibv_qp_type.IBV_QPT_XRC_SEND), scq=self.cq, pd=self.pd,
            cap=QPCap(64, 0, 4, 0, 64), comp_mask=int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD),
        )  # fmt: skip
        self.sender = QP(self.context, attr)
        return self.sender.qp_num

    def join_sender(self, peer: int, rnr_retry: int = 7, rd_atomic: int = 4) -> None:
        assert self.sender is not None
        self.sender.to_rts(_attributes(peer, rnr_retry, ALL_ACCESS, rd_atomic))

    def join_target(self, peer: int, access: int = ALL_ACCESS, rd_atomic: int = 4) -> None:
        assert self.target is not None
        self.target.to_rts(_attributes(peer, 7, access, rd_atomic))

    def join_target_again(self, peer: int) -> None:
        """Connect the target anew, by way of RESET."""
        assert self.target is not None
        self.target.modify(QPAttr(qp_state=_RESET), int(ibv_qp_attr_mask.IBV_QP_STATE))
        self.join_target(peer)

    def post_srq(self, start: int, length: int, count: int = 1) -> None:
        for _ in range(count):
            self.post_srq_at(self.mr.buf + start, length, self.mr.lkey)

    def post_srq_at(self, address: int, length: int, key: int) -> None:
        assert self.srq is not None
        self.srq.post_recv(RecvWR(7, 1, [SGE(address, length, key)]))

    def post_srq_malformed(self) -> None:
        """Post an entry of more elements than there are, as no library does."""
        assert self.srq is not None
        with self.srq.ring.lock:
            self.srq.ring.put(7, RECEIVE_HEAD.pack(1000))
            self.srq.ring.publish()

    def arm_srq(self, limit: int) -> None:
        assert self.srq is not None
        self.srq.modify(SrqAttr(srq_limit=limit), int(ibv_srq_attr_mask.IBV_SRQ_LIMIT))

    def event(self) -> list[int]:
        """Wait for an asynchronous event; return its type and the number of its object."""
        found = self.context.get_async_event()
        found.ack()
        return [found.event_type]

    def request(
        self, name: str, start: int, length: int, srqn: int, remote: tuple[int, int] = (0, 0),
        *, operands: tuple[int, int] = (0, 0), lkey: int | None = None, imm: int = 0x11223344,
    ) -> SendWR:  # fmt: skip
        key = self.mr.lkey if lkey is None else lkey
        opcode = int(ibv_wr_opcode[f"IBV_WR_{name}"])
        flags = int(ibv_send_flags.IBV_SEND_SIGNALED)
        wr = SendWR(9, opcode, 1, imm, [SGE(self.mr.buf + start, length, key)], flags)
        if name.startswith("ATOMIC"):
            wr.set_wr_atomic(remote[1], remote[0], *operands)
        elif name.startswith("RDMA"):
            wr.set_wr_rdma(remote[1], remote[0])
        wr.set_qp_type_xrc(srqn)
        return wr

    def send_xrc(self, *arguments: Any, **more: Any) -> None:
        """Post a request: as `request`."""
        assert self.sender is not None
        self.sender.post_send(self.request(*arguments, **more))

    def send_unchecked(self, *arguments: Any, **more: Any) -> None:
        """Post a request without the library's checks, as any program can."""
        wr = self.request(*arguments, **more)
        ring = None if self.sender is None else self.sender._rings.send
        assert ring is not None
        with ring.lock:
            ring.put(wr.wr_id, wr.entry())
            ring.publish()

    def srq_completions(self, count: int = 1) -> list[list[int]]:
        """Status, length, receiving and sending queue pair of each message that came."""
        found = self.poll_of(self.srq_cq, count)
        return [[one.status, one.byte_len, one.qp_num, one.src_qp] for one in found]

    def srq_completions_now(self) -> list[list[int]]:
        """The same of all that are there."""
        found: list[list[int]] = []
        while True:
            _, completions = self.srq_cq.poll(16)
            if not completions:
                return found
            found += [[c.status, c.byte_len, c.qp_num, c.src_qp] for c in completions]

    def srq_is_silent(self) -> bool:
        return self.srq_cq.poll(1)[0] == 0

    def states(self) -> list[int]:
        """States of sender and target; -1 for one it has not."""
        return [-1 if qp is None else qp.query(1)[0].qp_state for qp in (self.sender, self.target)]


def _attributes(peer: int, rnr_retry: int, access: int, rd_atomic: int) -> QPAttr:
    attr: Any = QPAttr(port_num=1)
    attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = access, 3, peer
    attr.max_dest_rd_atomic = attr.max_rd_atomic = rd_atomic
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 8, 3, rnr_retry
    attr.ah_attr = AHAttr(dlid=1, port_num=1)
    return attr


def main() -> None:
    """Be the other process of a test."""
    serve(XrcEnd(sys.argv[1], private="private" in sys.argv))
