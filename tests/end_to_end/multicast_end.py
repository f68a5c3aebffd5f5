"""One end of UD between processes that joins multicast groups.

Its words are KERNEL [private]; it is told what to do as its base is.
"""

import sys

from shared.verbs_enums import ibv_qp_create_flags, ibv_qp_type
from tests.end_to_end.traffic_end import End, serve
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.libibverbs_enums import ibv_qp_init_attr_mask
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPCap, QPInitAttrEx
from user_proc.verbs.wr import SGE, SendWR

GROUP, LID, QPN = "ff12:401b:ffff:0000:0000:0000:0000:0066", 0xC003, 0xFF_FFFF
QKEY = 0x1234
_MASK = int(
    ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS
)
_NOT_TO_ITSELF = int(ibv_qp_create_flags.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)


class MulticastEnd(End):
    """A UD queue pair, in RTS, of a group or not."""

    def __init__(self, kernel: str, private: bool = False) -> None:
        super().__init__(kernel, private)
        self.attached = False
        self.group = GID(GROUP)
        gr = GlobalRoute(dgid=self.group)
        self.to_group = AH(self.pd, attr=AHAttr(dlid=LID, port_num=1, is_global=1, gr=gr))

    def become(self, attached: bool, blocked: bool, qkey: int = QKEY) -> int:
        """Have a new queue pair of this kind; return its number."""
        self.leave()
        self.qp.close()
        while self.cq.poll(16)[0]:
            pass
        attr = QPInitAttrEx(
            int(ibv_qp_type.IBV_QPT_UD), scq=self.cq, rcq=self.cq, cap=QPCap(8, 8, 2, 2),
            pd=self.pd, comp_mask=_MASK, create_flags=_NOT_TO_ITSELF if blocked else 0,
        )  # fmt: skip
        self.qp = QP(self.context, attr)
        self.open_datagrams(qkey)
        if attached:
            self.join()
        return self.qp.qp_num

    def join(self) -> None:
        self.qp.attach_mcast(self.group, LID)
        self.attached = True

    def leave(self) -> int:
        """Leave the group; return the errno, of one that is not in it too."""
        try:
            self.qp.detach_mcast(self.group, LID)
        except PyverbsRDMAError as error:
            return int(error.error_code)
        finally:
            self.attached = False
        return 0

    def send_to_group(self, start: int, length: int) -> None:
        wr = SendWR(9, num_sge=1, sg=[SGE(self.mr.buf + start, length, self.mr.lkey)])
        wr.set_wr_ud(self.to_group, QPN, QKEY)
        self.qp.post_send(wr)

    def came(self, count: int) -> list[list[int]]:
        """Status, length, flags and sender of so many messages."""
        found = self.poll(count)
        return [[one.status, one.byte_len, one.wc_flags, one.src_qp] for one in found]


def main() -> None:
    """Be the other process of a test."""
    serve(MulticastEnd(sys.argv[1], private="private" in sys.argv))
