"""What the programs here have in common: a device, RC queue pairs between ranks, completions."""

from types import TracebackType
from typing import Self

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ
from user_proc.verbs.wr import SGE

DEPTH = 64
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Endpoint:
    """The device as one rank uses it: a domain, one region, one completion queue."""

    def __init__(self, rank: Rank, length: int, queues: int = 1) -> None:
        self.rank = rank
        self.context = Context(name="mthca0", kernel=rank.kernel)
        self.pd = PD(self.context)
        self.mr = MR(self.pd, length, ACCESS)
        self.cq = CQ(self.context, 2 * DEPTH * queues)

    def queue_pair(self, srq: SRQ | None = None) -> QP:
        """Make a queue pair that is not connected yet."""
        cap = QPCap(DEPTH, DEPTH, 1, 1)
        return QP(self.pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, srq=srq, cap=cap))

    def connect(self, qp: QP, group: str, number: int) -> None:
        """Connect it to the queue pair another rank has for this one; both are ready after it."""
        me, other = f"{self.rank.group}[{self.rank.rank}]", f"{group}[{number}]"
        lid = self.context.query_port(1).lid
        self.rank.publish(f"address for {other}", [lid, qp.qp_num])
        attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_1024)
        attr.qp_access_flags = ACCESS
        peer_lid, attr.dest_qp_num = self.rank.lookup(group, number, f"address for {me}")
        attr.ah_attr = AHAttr(dlid=peer_lid)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        qp.to_rts(attr)
        self.rank.publish(f"ready for {other}", True)
        self.rank.lookup(group, number, f"ready for {me}")

    def piece(self, offset: int, length: int) -> list[SGE]:
        """Name a part of the region."""
        return [SGE(self.mr.buf + offset, length, self.mr.lkey)]

    def completions(self, count: int) -> list[int]:
        """Wait for so many completions; give their wr_ids."""
        done: list[int] = []
        while len(done) < count:
            for wc in self.cq.poll(count - len(done))[1]:
                assert wc.status == e.IBV_WC_SUCCESS, f"status {wc.status} of {wc.wr_id}"
                done.append(wc.wr_id)
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.context.close()
