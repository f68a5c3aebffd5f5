"""One user with one object of every kind, for verbs to be refused on."""

import os
from typing import Any

from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

GROUP = GID("ff12:0000:0000:0000:0000:0000:0000:0007")
MLID = 0xC007
PEER = GID("fe80:0000:0000:0000:0000:0000:0000:0001")
XRCD_MASK = int(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS)
XRC_SRQ_MASK = int(
    e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD
    | e.IBV_SRQ_INIT_ATTR_CQ
)  # fmt: skip


def attributes(**changes: Any) -> QPAttr:
    """Attributes every transition of an RC queue pair takes, but for what is changed."""
    attr = QPAttr()
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
    attr.ah_attr = AHAttr(dlid=1)
    for name, value in changes.items():
        setattr(attr, name, value)
    return attr


def path(**changes: Any) -> AHAttr:
    """A path with a GRH, but for what is changed."""
    route = {"dgid": PEER, "sgid_index": 0, "hop_limit": 1}
    own = {name: changes.pop(name) for name in ("flow_label", "sgid_index") if name in changes}
    return AHAttr(**{"dlid": 1, "is_global": 1, "gr": GlobalRoute(**route | own)} | changes)


class Things:
    """The objects; `in_state` makes further queue pairs."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.pd = PD(context)
        self.mr = MR(self.pd, 8192, int(e.IBV_ACCESS_LOCAL_WRITE))
        self.mw = MW(self.pd, int(e.IBV_MW_TYPE_1))
        self.ah = AH(self.pd, attr=AHAttr(dlid=1))
        self.channel = CompChannel(context)
        self.cq = CQ(context, 16, None, self.channel)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(8, 2)))
        self.xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))
        self.xrc_srq = SRQ(context, self.xrc_srq_attributes())
        self.init = self.in_state(e.IBV_QPS_INIT)
        self.rtr = self.in_state(e.IBV_QPS_RTR)
        self.sqd = self.in_state(e.IBV_QPS_SQD)
        self.with_srq = QP(self.pd, self.qp_attributes(srq=self.srq))
        self.ud = QP(self.pd, self.qp_attributes(e.IBV_QPT_UD))
        self.ud.attach_mcast(GROUP, MLID)
        self.spare_ud = QP(self.pd, self.qp_attributes(e.IBV_QPT_UD))
        self.xrc_target = QP(
            context,
            QPInitAttrEx(
                e.IBV_QPT_XRC_RECV, xrcd=self.xrcd, comp_mask=int(e.IBV_QP_INIT_ATTR_XRCD)
            ),
        )

    def qp_attributes(self, kind: int = e.IBV_QPT_RC, **changes: Any) -> QPInitAttr:
        given = {"scq": self.cq, "rcq": self.cq, "cap": QPCap(4, 4, 1, 1)}
        return QPInitAttr(int(kind), **given | changes)

    def extended(self, kind: int, **changes: Any) -> QPInitAttrEx:
        """Extended init attributes, with the PD unless that is taken out of the mask."""
        given = {
            "scq": self.cq, "rcq": self.cq, "cap": QPCap(4, 4, 1, 1), "pd": self.pd,
            "comp_mask": int(e.IBV_QP_INIT_ATTR_PD),
        }  # fmt: skip
        return QPInitAttrEx(int(kind), **given | changes)

    def xrc_srq_attributes(self, mask: int = XRC_SRQ_MASK, kind: int = 1) -> SrqInitAttrEx:
        attr = SrqInitAttrEx(4, 1)
        attr.comp_mask, attr.srq_type = mask, int(kind)
        attr.pd, attr.xrcd, attr.cq = self.pd, self.xrcd, self.cq
        return attr

    def in_state(self, state: int) -> QP:
        """An RC queue pair in a state."""
        qp = QP(self.pd, self.qp_attributes())
        for name, go in (("INIT", qp.to_init), ("RTR", qp.to_rtr), ("RTS", qp.to_rts)):
            if state >= int(getattr(e, f"IBV_QPS_{name}")):
                go(attributes())
        if state == e.IBV_QPS_SQD:
            qp.modify(QPAttr(qp_state=int(state)), e.IBV_QP_STATE)
        return qp
