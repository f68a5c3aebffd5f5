"""The attributes a queue pair has, and those it is changed to.

`cap`, `ah_attr` and `alt_ah_attr` are read as copies: a change counts when it is assigned back.

Spec: rdma-core, pyverbs/qp.pyx; ibv_modify_qp(3).
"""

from typing import Final

from shared.verbs_enums import ibv_mtu
from shared.verbs_enums import ibv_qp_state as state
from user_proc.verbs.address_attributes import AHAttr
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u8, to_u16, to_u32
from user_proc.verbs.object_fields import CopiedField
from user_proc.verbs.printing import Line, lines
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.utils import (
    access_flags_to_str,
    mig_state_to_str,
    mtu_to_str,
    qp_state_to_str,
)


class QPAttr(PyverbsObject):
    """ibv_qp_attr."""

    qp_state = CField(to_int)
    cur_qp_state = CField(to_int)
    path_mtu = CField(to_int)
    path_mig_state = CField(to_int)
    qkey = CField(to_u32)
    rq_psn = CField(to_u32)
    sq_psn = CField(to_u32)
    dest_qp_num = CField(to_u32)
    qp_access_flags = CField(to_u32)
    pkey_index = CField(to_u16)
    alt_pkey_index = CField(to_u16)
    en_sqd_async_notify = CField(to_u8)
    sq_draining = CField(to_u8)
    max_rd_atomic = CField(to_u8)
    max_dest_rd_atomic = CField(to_u8)
    min_rnr_timer = CField(to_u8)
    port_num = CField(to_u8)
    timeout = CField(to_u8)
    retry_cnt = CField(to_u8)
    rnr_retry = CField(to_u8)
    alt_port_num = CField(to_u8)
    alt_timeout = CField(to_u8)
    rate_limit = CField(to_u32)
    cap = CopiedField(QPCap)
    ah_attr = CopiedField(AHAttr)
    alt_ah_attr = CopiedField(AHAttr)

    def __init__(
        self,
        qp_state: IntLike = int(state.IBV_QPS_INIT),
        cur_qp_state: IntLike = int(state.IBV_QPS_RESET),
        port_num: IntLike = 1,
        path_mtu: IntLike = int(ibv_mtu.IBV_MTU_1024),
    ) -> None:
        super().__init__()
        for name in _ATTRIBUTES:
            setattr(self, name, 0)
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.port_num = port_num
        self.path_mtu = path_mtu
        self._cap = QPCap(0, 0, 0, 0, 0)
        self._ah_attr = AHAttr(port_num=0)
        self._alt_ah_attr = AHAttr(port_num=0)

    def __str__(self) -> str:
        before: list[Line] = [
            ("QP state", qp_state_to_str(self.qp_state)),
            ("QP current state", qp_state_to_str(self.cur_qp_state)),
            ("Path MTU", mtu_to_str(self.path_mtu)),
            ("Path mig. state", mig_state_to_str(self.path_mig_state)),
            ("QKey", self.qkey),
            ("RQ PSN", self.rq_psn),
            ("SQ PSN", self.sq_psn),
            ("Dest QP number", self.dest_qp_num),
            ("QP access flags", access_flags_to_str(self.qp_access_flags)),
        ]
        after: list[Line] = [
            ("PKey index", self.pkey_index),
            ("Alt. PKey index", self.alt_pkey_index),
            ("En. SQD async notify", self.en_sqd_async_notify),
            ("SQ draining", self.sq_draining),
            ("Max RD atomic", self.max_rd_atomic),
            ("Max dest. RD atomic", self.max_dest_rd_atomic),
            ("Min RNR timer", self.min_rnr_timer),
            ("Port number", self.port_num),
            ("Timeout", self.timeout),
            ("Retry counter", self.retry_cnt),
            ("RNR retry", self.rnr_retry),
            ("Alt. port number", self.alt_port_num),
            ("Alt. timeout", self.alt_timeout),
            ("Rate limit", self.rate_limit),
        ]
        return "".join(
            [
                lines(22, before),
                "QP caps:\n",
                lines(20, self._cap.shown("WR", "SGE"), indent=2),
                "AH Attr:\n",
                str(self._ah_attr),
                "Alt. AH Attr:\n",
                str(self._alt_ah_attr),
                lines(22, after),
            ]
        )


_ATTRIBUTES: Final = tuple(name for name, kind in vars(QPAttr).items() if isinstance(kind, CField))
