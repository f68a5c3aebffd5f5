"""Queue pair attributes as messages, and back; the least masks of each step.

Spec: ibv_modify_qp(3); shared/verb_messages.py.
"""

from typing import Final

from shared.verb_messages import ModifyQp, QpAttributes
from shared.verbs_enums import ibv_qp_attr_mask as mask
from shared.verbs_enums import ibv_qp_state as state
from shared.verbs_enums import ibv_qp_type as qp_type
from user_proc.verbs.address_attributes import GID, AHAttr, GlobalRoute
from user_proc.verbs.qp_attributes import QPAttr
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.utils import GID_LENGTH

_U32: Final = 0xFFFF_FFFF

_RC: Final = int(qp_type.IBV_QPT_RC)
_UC: Final = int(qp_type.IBV_QPT_UC)
_UD: Final = int(qp_type.IBV_QPT_UD)
_RAW: Final = int(qp_type.IBV_QPT_RAW_PACKET)
_XRC_SEND: Final = int(qp_type.IBV_QPT_XRC_SEND)
_XRC_RECV: Final = int(qp_type.IBV_QPT_XRC_RECV)

INIT: Final = int(state.IBV_QPS_INIT)
RTR: Final = int(state.IBV_QPS_RTR)
RTS: Final = int(state.IBV_QPS_RTS)


def _bits(*names: str) -> int:
    return sum(int(mask[f"IBV_QP_{name}"]) for name in ("STATE", *names))


_INIT: Final = _bits("PKEY_INDEX", "PORT", "ACCESS_FLAGS")
_PATH: Final = _bits("AV", "PATH_MTU", "DEST_QPN", "RQ_PSN")
_PATH_RC: Final = _PATH | _bits("MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER")
_SEND_RC: Final = _bits("TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC")

#: The least attributes of each step, by type of queue pair and state to be reached.
LEAST_MASKS: Final[dict[int, dict[int, int]]] = {
    _RC: {INIT: _INIT, RTR: _PATH_RC, RTS: _SEND_RC},
    _UC: {INIT: _INIT, RTR: _PATH, RTS: _bits("SQ_PSN")},
    _UD: {INIT: _bits("PKEY_INDEX", "PORT", "QKEY"), RTR: _bits(), RTS: _bits("SQ_PSN")},
    _RAW: {INIT: _bits("PORT"), RTR: _bits(), RTS: _bits()},
    _XRC_RECV: {INIT: _INIT, RTR: _PATH_RC, RTS: _bits("TIMEOUT", "SQ_PSN")},
    _XRC_SEND: {INIT: _INIT, RTR: _PATH, RTS: _SEND_RC},
}

#: Fields of the same name on both sides.
_SAME: Final = (
    "qkey",
    "rq_psn",
    "sq_psn",
    "dest_qp_num",
    "qp_access_flags",
    "pkey_index",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "port_num",
    "timeout",
    "retry_cnt",
    "rnr_retry",
)
_ONLY_GIVEN: Final = (
    "alt_pkey_index",
    "en_sqd_async_notify",
    "alt_port_num",
    "alt_timeout",
    "rate_limit",
)
_ENUMS: Final = ("qp_state", "path_mtu", "path_mig_state")


def modify_request(handle: int, attr: QPAttr, bits: int) -> ModifyQp:
    """Make the message of a modify."""
    path = attr.ah_attr
    route = path.route
    values = {name: getattr(attr, name) for name in (*_SAME, *_ONLY_GIVEN)}
    values |= {name: getattr(attr, name) & _U32 for name in (*_ENUMS, "cur_qp_state")}
    return ModifyQp(
        handle=handle,
        mask=bits & _U32,
        **values,
        ah_port_num=path.port_num,
        ah_dlid=path.dlid,
        ah_sl=path.sl,
        ah_src_path_bits=path.src_path_bits,
        ah_static_rate=path.static_rate,
        ah_is_global=path.is_global,
        ah_dgid=route.dgid.raw,
        ah_flow_label=route.flow_label,
        ah_sgid_index=route.sgid_index,
        ah_hop_limit=route.hop_limit,
        ah_traffic_class=route.traffic_class,
    )


def queried(answer: QpAttributes) -> tuple[QPAttr, QPInitAttr]:
    """Give what a query tells: the attributes, and what the queue pair was created with."""
    attr = QPAttr(answer.qp_state, answer.qp_state, answer.port_num, answer.path_mtu)
    for name in (*_SAME, "sq_draining"):
        setattr(attr, name, getattr(answer, name))
    attr.path_mig_state = answer.path_mig_state
    cap = QPCap(
        answer.max_send_wr,
        answer.max_recv_wr,
        answer.max_send_sge,
        answer.max_recv_sge,
        answer.max_inline_data,
    )
    attr.cap = cap
    attr.ah_attr = _path(answer)
    return attr, QPInitAttr(answer.qp_type, cap=cap, sq_sig_all=answer.sq_sig_all)


def _path(answer: QpAttributes) -> AHAttr:
    route = None
    if answer.ah_is_global:
        route = GlobalRoute(
            GID.of(answer.ah_dgid.ljust(GID_LENGTH, b"\0")),
            answer.ah_flow_label,
            answer.ah_sgid_index,
            answer.ah_hop_limit,
            answer.ah_traffic_class,
        )
    return AHAttr(
        answer.ah_dlid,
        answer.ah_sl,
        answer.ah_src_path_bits,
        answer.ah_static_rate,
        answer.ah_is_global,
        answer.ah_port_num,
        route,
    )
