"""Attributes of a QP between the three forms they have: message, HCA context, answer.

Rules: any IRQL; does not wait.
Spec: IBA vol. 1, 11.2.5.2; Linux mthca_qp.c (__mthca_modify_qp, mthca_query_qp).
"""

from typing import Any, Final

from kernel_proc.driver.qp_checks import Step
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi.contexts import QpContext
from shared.verb_messages import ModifyQp
from shared.verbs_enums import ibv_access_flags

_NUMBER_MASK: Final = 0xFF_FFFF  # PSNs and QPNs
REMOTE_WRITE: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE)
REMOTE_READ: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_READ)
REMOTE_ATOMIC: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)
_REMOTE: Final = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
_GO_ON: Final = frozenset({"state", "next_send_psn", "next_receive_psn"})

TRANSPORTS: Final = {
    table.RC: abi.QPC_TRANSPORT_RC,
    table.UC: abi.QPC_TRANSPORT_UC,
    table.UD: abi.QPC_TRANSPORT_UD,
    table.XRC_SEND: abi.QPC_TRANSPORT_XRC_SEND,
    table.XRC_RECV: abi.QPC_TRANSPORT_XRC_RECV,
}

#: What an attribute is as a bit of opt_param_mask; those that are only ever required have none.
OPTIONAL_PARAMETERS: Final[dict[int, int]] = {
    table.ACCESS: abi.OPT_ACCESS,
    table.PKEY: abi.OPT_PKEY_INDEX,
    table.QKEY: abi.OPT_QKEY,
    table.RNR_TIMER: abi.OPT_RNR_TIMER,
    table.AV: abi.OPT_PRIMARY_PATH | abi.OPT_PORT,  # a path has its own port
    table.RD_ATOMIC: abi.OPT_SRA_MAX,
    table.DEST_RD_ATOMIC: abi.OPT_RRA_MAX | abi.OPT_ACCESS,  # none granted: no reads either
    table.PORT: abi.OPT_PORT,
    table.RETRY: abi.OPT_RETRY_COUNT,
    table.TIMEOUT: abi.OPT_ACK_TIMEOUT,
    table.RNR_RETRY: abi.OPT_RNR_RETRY,
}


def optional_mask(mask: int) -> int:
    """Return the opt_param_mask for an attribute mask."""
    result = 0
    for bit, parameter in OPTIONAL_PARAMETERS.items():
        if mask & bit:
            result |= parameter
    return result


def _power_of_two(number: int) -> int:
    """Round up as the device's log2 fields do; 0 stays."""
    return 1 << (number - 1).bit_length() if number else 0


def _path(request: ModifyQp) -> dict[str, Any]:
    path: dict[str, Any] = {
        "port": request.ah_port_num,
        "path_port": request.ah_port_num,
        "path_grh": int(bool(request.ah_is_global)),
        "path_dlid": request.ah_dlid,
        "path_sl": request.ah_sl,
        "path_source_bits": request.ah_src_path_bits,
        "path_static_rate": request.ah_static_rate,
    }
    if request.ah_is_global:
        path |= {
            "path_sgid_index": request.ah_sgid_index,
            "path_hop_limit": request.ah_hop_limit,
            "path_traffic_class": request.ah_traffic_class,
            "path_flow_label": request.ah_flow_label,
            "path_dgid": request.ah_dgid,
        }
    return path


def changed(context: QpContext, request: ModifyQp, step: Step) -> QpContext:
    """Return a QP's attributes as they will be after a step; `access` as the user wants it."""
    mask = step.mask
    given = (
        (table.ACCESS, "access", request.qp_access_flags & _REMOTE),
        (table.PKEY, "pkey_index", request.pkey_index),
        (table.PORT, "port", request.port_num),
        (table.QKEY, "qkey", request.qkey),
        (table.MTU, "mtu", request.path_mtu),
        (table.TIMEOUT, "ack_timeout", request.timeout),
        (table.RETRY, "retry_count", request.retry_cnt),
        (table.RNR_RETRY, "rnr_retry", request.rnr_retry),
        (table.RNR_TIMER, "min_rnr_timer", request.min_rnr_timer),
        (table.RQ_PSN, "next_receive_psn", request.rq_psn & _NUMBER_MASK),
        (table.SQ_PSN, "next_send_psn", request.sq_psn & _NUMBER_MASK),
        (table.DEST_QPN, "remote_qpn", request.dest_qp_num & _NUMBER_MASK),
        (table.RD_ATOMIC, "sra_max", _power_of_two(request.max_rd_atomic)),
        (table.DEST_RD_ATOMIC, "rra_max", _power_of_two(request.max_dest_rd_atomic)),
    )
    values: dict[str, Any] = {name: value for bit, name, value in given if mask & bit}
    values["state"] = step.new
    if mask & table.AV:
        values |= _path(request)
    return context._replace(**values)


def settled(known: QpContext, asked: QpContext, live: QpContext) -> QpContext:
    """Return which of the two a QP has, after a transition from one to the other was not answered.

    What both agree on says nothing, and neither do numbers that go on by themselves.
    """
    before, after = granted(known), granted(asked)
    telling = [
        name
        for name in QpContext._fields
        if name not in _GO_ON and getattr(before, name) != getattr(after, name)
    ]
    taken = all(getattr(live, name) == getattr(after, name) for name in telling)
    return asked if taken else known


def granted(context: QpContext) -> QpContext:
    """Return attributes as the HCA gets them: without responder resources no reads, no atomics."""
    if context.rra_max:
        return context
    return context._replace(access=context.access & REMOTE_WRITE)


def mailbox(context: QpContext, mask: int) -> bytes:
    """Return the input mailbox of a transition."""
    return abi.QP_MAILBOX_HEAD.pack(optional_mask(mask)) + abi.QP_CONTEXT.pack(*granted(context))


def answer(context: QpContext) -> dict[str, Any]:
    """Return the fields of QpAttributes that a context holds."""
    return {
        "qp_state": context.state,
        "path_mtu": context.mtu,
        "path_mig_state": 0,
        "qkey": context.qkey,
        "rq_psn": context.next_receive_psn & _NUMBER_MASK,
        "sq_psn": context.next_send_psn & _NUMBER_MASK,
        "dest_qp_num": context.remote_qpn,
        "qp_access_flags": context.access,
        "pkey_index": context.pkey_index,
        "sq_draining": context.sq_draining,
        "max_rd_atomic": context.sra_max,
        "max_dest_rd_atomic": context.rra_max,
        "min_rnr_timer": context.min_rnr_timer,
        "port_num": context.port,
        "timeout": context.ack_timeout,
        "retry_cnt": context.retry_count,
        "rnr_retry": context.rnr_retry,
        "ah_port_num": context.path_port,
        "ah_dlid": context.path_dlid,
        "ah_sl": context.path_sl,
        "ah_src_path_bits": context.path_source_bits,
        "ah_static_rate": context.path_static_rate,
        "ah_is_global": context.path_grh,
        "ah_dgid": context.path_dgid,
        "ah_flow_label": context.path_flow_label,
        "ah_sgid_index": context.path_sgid_index,
        "ah_hop_limit": context.path_hop_limit,
        "ah_traffic_class": context.path_traffic_class,
    }
