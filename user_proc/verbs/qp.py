"""Queue pairs, plain and extended, and what they are made of and changed to.

Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp(3), ibv_create_qp_ex(3), ibv_wr_post(3).
"""

from user_proc.verbs.qp_attributes import QPAttr
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.qp_ex import DataBuffer, QPEx
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.qp_init_attr_ex import QPInitAttrEx
from user_proc.verbs.queue_pair import QP

__all__ = ["QP", "DataBuffer", "QPAttr", "QPCap", "QPEx", "QPInitAttr", "QPInitAttrEx"]
