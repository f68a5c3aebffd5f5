"""What a shared receive queue is asked to be.

Spec: rdma-core, pyverbs/srq.pyx; ibv_create_srq(3), ibv_create_srq_ex(3).
"""

from shared.verbs_enums import ibv_srq_type
from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, ReadOnly, to_int, to_u32
from user_proc.verbs.completion_queue import CompletionQueue
from user_proc.verbs.object_fields import ObjectField
from user_proc.verbs.pd import PD
from user_proc.verbs.xrcd import XRCD


class SrqAttr(PyverbsObject):
    """ibv_srq_attr."""

    max_wr = CField(to_u32)
    max_sge = CField(to_u32)
    srq_limit = CField(to_u32)

    def __init__(self, max_wr: IntLike = 100, max_sge: IntLike = 1, srq_limit: IntLike = 0) -> None:
        super().__init__()
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class InitAttributes(PyverbsObject):
    """What both kinds of init attributes have."""

    max_wr = ReadOnly()
    max_sge = ReadOnly()
    srq_limit = ReadOnly()

    def __init__(self, max_wr: int, max_sge: int, srq_limit: int) -> None:
        super().__init__()
        self.grant(max_wr, max_sge)
        self._srq_limit = srq_limit

    def grant(self, max_wr: int, max_sge: int) -> None:
        """Take what was granted."""
        self._max_wr = max_wr
        self._max_sge = max_sge


class SrqInitAttr(InitAttributes):
    """ibv_srq_init_attr; without `attr` all is 0."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        given = optional("attr", attr, SrqAttr) or SrqAttr(0, 0, 0)
        super().__init__(given.max_wr, given.max_sge, given.srq_limit)


class SrqInitAttrEx(InitAttributes):
    """ibv_srq_init_attr_ex."""

    comp_mask = CField(to_u32)
    srq_type = CField(to_int)
    max_num_tags = CField(to_u32)
    max_ops = CField(to_u32)
    pd = ObjectField(PD)
    xrcd = ObjectField(XRCD)
    cq = ObjectField(CompletionQueue)

    def __init__(self, max_wr: IntLike = 100, max_sge: IntLike = 1, srq_limit: IntLike = 0) -> None:
        super().__init__(to_u32(max_wr), to_u32(max_sge), to_u32(srq_limit))
        self.comp_mask = 0
        self.srq_type = int(ibv_srq_type.IBV_SRQT_BASIC)
        self.max_num_tags = 0
        self.max_ops = 0
        self.pd = self.xrcd = self.cq = None
