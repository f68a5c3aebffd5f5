"""A process that measures small messages, or keeps the HCA busy: it does what it is told.

Run as `python -P -m tests.end_to_end.fairness_end KERNEL`. It prints its queue pair's number, then
reads lines of commands and answers each with one line of JSON. A load goes on until there is
another line, which it takes as read.
"""

import gc
import json
import os
import select
import sys
from array import array

from shared.clock import now_ns
from shared.verbs_enums import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from tests.end_to_end.traffic_end import ALL_ACCESS, End
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.mr import MR
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

SIZE = 64
WARM_UP = 300
RC = int(ibv_qp_type.IBV_QPT_RC)
SIGNALED = int(ibv_send_flags.IBV_SEND_SIGNALED)
WRITE = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE)


class FairnessEnd(End):
    """The end of a ping-pong, or a load."""

    def ping(self, count: int) -> int:
        """Send and wait for the answer so often; the 99th percentile of half a round trip in ns."""
        samples = array("Q", bytes(8 * (count + WARM_UP)))
        for number in range(count + WARM_UP):
            self.receive(SIZE, SIZE)
            begin = now_ns()
            self.send("SEND", 0, SIZE)
            assert self.statuses(2) == [0, 0]
            samples[number] = (now_ns() - begin) // 2
        measured = sorted(samples[WARM_UP:])
        return measured[len(measured) * 99 // 100]

    def pong(self, count: int) -> None:
        """Answer so many messages."""
        for _ in range(count + WARM_UP):
            self.receive(SIZE, SIZE)
            assert self.statuses() == [0]
            self.send("SEND", 0, SIZE)
            assert self.statuses() == [0]

    def move_long(self, size: int) -> int:
        """Keep two writes of so many bytes under way; the bytes written until the next line."""
        near, far = MR(self.pd, size, ALL_ACCESS), MR(self.pd, size, ALL_ACCESS)
        self.connect(self.qp.qp_num)
        wr = SendWR(1, WRITE, 1, sg=[SGE(near.buf, size, near.lkey)], send_flags=SIGNALED)
        wr.set_wr_rdma(far.rkey, far.buf)
        return size * self._keep_going(self.cq, {self.qp.qp_num: self.qp}, wr, 2)

    def keep_busy(self, count: int, depth: int) -> int:
        """Keep so many small writes under way on so many queue pairs; return how many ended."""
        cq = CQ(self.context, count * depth)
        busy = {}
        for _ in range(count):
            made = QP(self.pd, QPInitAttr(RC, scq=cq, rcq=cq, cap=QPCap(depth, 1, 1, 1, 0)))
            attr = QPAttr(port_num=1)
            attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = ALL_ACCESS, 3, made.qp_num
            attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
            attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 14, 3, 7
            attr.ah_attr = AHAttr(dlid=1, port_num=1)
            made.to_rts(attr)
            busy[made.qp_num] = made
        wr = SendWR(1, WRITE, 1, sg=[SGE(self.mr.buf, SIZE, self.mr.lkey)], send_flags=SIGNALED)
        wr.set_wr_rdma(self.mr.rkey, self.mr.buf + SIZE)
        return self._keep_going(cq, busy, wr, depth)

    def _keep_going(self, cq: CQ, busy: dict[int, QP], wr: SendWR, depth: int) -> int:
        for qp in busy.values():
            for _ in range(depth):
                qp.post_send(wr)
        print(json.dumps("busy"), flush=True)
        ended = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            for done in cq.poll(64)[1]:
                assert done.status == 0
                ended += 1
                busy[done.qp_num].post_send(wr)
        sys.stdin.readline()
        return ended


def main() -> None:
    end = FairnessEnd(sys.argv[1])
    print(json.dumps(end.qp.qp_num), flush=True)
    gc.disable()
    while line := sys.stdin.readline():
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(end, name)(*arguments)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
