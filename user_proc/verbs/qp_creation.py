"""Init attributes as the request of a creation, as far as they count.

Rules: any thread; asks nothing.
Spec: ibv_create_qp(3), ibv_create_qp_ex(3).
"""

import errno
from typing import Any, Final

from shared.verb_messages import CreateQp
from user_proc.verbs.base import Parent
from user_proc.verbs.device import Context
from user_proc.verbs.libibverbs_enums import ibv_qp_init_attr_mask
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.qp_init_attr_ex import QPInitAttrEx
from user_proc.verbs.verb_session import VerbRefusal, VerbSession

_U32: Final = 0xFFFF_FFFF
_PD: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD)
_XRCD: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD)
_CREATE_FLAGS: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS)
_SEND_OPS: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
_KNOWN: Final = _PD | _XRCD | _CREATE_FLAGS | _SEND_OPS


def request_of(
    session: VerbSession, creator: Any, attr: QPInitAttr | QPInitAttrEx
) -> tuple[CreateQp, list[Parent]]:
    """Give the request without its memory, and what the queue pair will be a child of."""
    pd, xrcd, flags, operations = creator, None, 0, 0
    if isinstance(attr, QPInitAttrEx):
        if attr.comp_mask & ~_KNOWN:
            raise VerbRefusal(
                errno.EOPNOTSUPP,
                "the device has neither segmentation offload nor receive-side scaling",
            )
        pd = attr.pd if attr.comp_mask & _PD else None
        xrcd = attr.xrcd if attr.comp_mask & _XRCD else None
        flags = attr.create_flags if attr.comp_mask & _CREATE_FLAGS else 0
        operations = send_operations(attr)
    parts = (pd, attr.send_cq, attr.recv_cq, attr.srq, xrcd)
    handles = [0 if part is None else part.handle_for(session) for part in parts]
    request = CreateQp(
        attr.qp_type & _U32,
        handles[0],
        handles[1],
        handles[2],
        handles[3],
        handles[4],
        attr.max_send_wr,
        attr.max_recv_wr,
        attr.max_send_sge,
        attr.max_recv_sge,
        attr.max_inline_data,
        int(attr.sq_sig_all != 0),
        flags,
        operations,
        0,
        0,
    )
    parents: list[Parent] = [part for part in parts if part is not None]
    if isinstance(creator, Context):
        parents.append(creator)
    return request, parents


def send_operations(attr: QPInitAttr | QPInitAttrEx) -> int:
    """Give the send operations asked for, ibv_qp_create_send_ops_flags."""
    if isinstance(attr, QPInitAttrEx) and attr.comp_mask & _SEND_OPS:
        return attr.send_ops_flags
    return 0
