"""The ends of an XRC connection: a sender without a receive queue, a target with a shared one."""

import os
from typing import Final

from shared.verbs_enums import ibv_srq_type
from user_proc.stress.client_world import World
from user_proc.stress.completion_source import CompletionSource
from user_proc.stress.connection_end import End
from user_proc.stress.shapes import INLINE, SGES, XRC_RECV, XRC_SEND, Shape
from user_proc.verbs.libibverbs_enums import (
    ibv_qp_init_attr_mask,
    ibv_srq_init_attr_mask,
    ibv_xrcd_init_attr_mask,
)
from user_proc.verbs.qp import QP, QPCap, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqInitAttrEx
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

_OF_DOMAIN: Final = int(
    ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_FD
    | ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_OFLAGS
)
_OF_SRQ: Final = sum(
    int(ibv_srq_init_attr_mask[f"IBV_SRQ_INIT_ATTR_{name}"])
    for name in ("TYPE", "PD", "XRCD", "CQ")
)


class XrcSender(End):
    """The end that sends."""

    def _make_srq(self) -> SRQ | None:
        return None

    def _make_qp(self) -> QP:
        attr = QPInitAttrEx(
            qp_type=XRC_SEND,
            scq=self.source.cq,
            pd=self.world.pd,
            cap=QPCap(self.shape.depth + 2, 0, SGES, 0, INLINE),
            comp_mask=int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD),
        )
        made = self.world.call("create_qp (XRC send)", lambda: QP(self.world.context, attr))
        assert made is not None
        return made

    def post_receives(self, count: int) -> int:
        """Post nothing: it receives nothing."""
        return 0


class XrcTarget(End):
    """The end that receives: a domain of its own, a shared queue in it, and a target."""

    def __init__(self, world: World, shape: Shape, source: CompletionSource, name: str) -> None:
        domain = XRCDInitAttr(_OF_DOMAIN, os.O_CREAT, -1)
        made = world.call("open_xrcd", lambda: XRCD(world.context, domain))
        assert made is not None
        self._xrcd = made
        super().__init__(world, shape, source, name)

    def _make_srq(self) -> SRQ | None:
        attr = SrqInitAttrEx(max_wr=self.shape.depth, max_sge=SGES)
        attr.comp_mask, attr.srq_type = _OF_SRQ, int(ibv_srq_type.IBV_SRQT_XRC)
        attr.pd, attr.xrcd, attr.cq = self.world.pd, self._xrcd, self.source.cq
        made = self.world.call("create_srq (XRC)", lambda: SRQ(self.world.context, attr))
        assert made is not None
        return made

    def _make_qp(self) -> QP:
        attr = QPInitAttrEx(
            qp_type=XRC_RECV,
            xrcd=self._xrcd,
            comp_mask=int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD),
        )
        made = self.world.call("create_qp (XRC target)", lambda: QP(self.world.context, attr))
        assert made is not None
        return made

    @property
    def sends_requests(self) -> bool:
        """Tell whether it has a send queue."""
        return False

    @property
    def srqn(self) -> int:
        """The number a sender puts into its requests."""
        assert self.srq is not None
        return self.srq.get_srq_num()

    def close(self) -> None:
        """Destroy everything of it, the domain last."""
        super().close()
        self.world.call("close_xrcd", self._xrcd.close)
