"""What kernel clients do with verbs again and again: create queue pairs, bring them to RTS.

Rules: PASSIVE_LEVEL in a kernel thread. A verb that is refused is RaisedStatus, whose
status says as much as an NTSTATUS can of why.
Spec: channel_interface/verbs_table.py; IBA vol. 1, 11.2.5.2.
"""

from typing import Any, Final

from kernel_proc.channel_interface.verbs_table import CompletionRoutine, VerbAnswer, VerbsTable
from kernel_proc.clients.ib_nt_statuses import nt_status_of
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.verb_messages import CreateCq, CreateQp, ModifyQp
from shared.verbs_enums import ibv_qp_attr_mask as mask
from shared.verbs_enums import ibv_qp_state, ibv_qp_type

UD: Final = int(ibv_qp_type.IBV_QPT_UD)
RC: Final = int(ibv_qp_type.IBV_QPT_RC)
_INIT: Final = int(ibv_qp_state.IBV_QPS_INIT)
_RTR: Final = int(ibv_qp_state.IBV_QPS_RTR)
_RTS: Final = int(ibv_qp_state.IBV_QPS_RTS)
_ZEROES: Final[dict[str, Any]] = dict.fromkeys(ModifyQp._fields, 0)
_NOTHING: Final = ModifyQp(**{**_ZEROES, "ah_dgid": bytes(16)})

_STATE: Final = int(mask.IBV_QP_STATE)
_PORT: Final = _STATE | int(mask.IBV_QP_PKEY_INDEX | mask.IBV_QP_PORT)
_PATH: Final = _STATE | int(
    mask.IBV_QP_AV
    | mask.IBV_QP_PATH_MTU
    | mask.IBV_QP_DEST_QPN
    | mask.IBV_QP_RQ_PSN
    | mask.IBV_QP_MAX_DEST_RD_ATOMIC
    | mask.IBV_QP_MIN_RNR_TIMER
)
_REQUESTER: Final = _STATE | int(
    mask.IBV_QP_TIMEOUT
    | mask.IBV_QP_RETRY_CNT
    | mask.IBV_QP_RNR_RETRY
    | mask.IBV_QP_SQ_PSN
    | mask.IBV_QP_MAX_QP_RD_ATOMIC
)


def require(answer: VerbAnswer, what: str) -> VerbAnswer:
    """Return the answer of a verb that was carried out."""
    if answer.errno:
        raise RaisedStatus(
            nt_status_of(answer.status),
            f"{what} was refused: {answer.status.name}, errno {answer.errno}, "
            f"reason {answer.reason}",
        )
    return answer


def do(table: VerbsTable, code: int, request: Any = None) -> Any:
    """Carry out a verb; return its reply."""
    return require(table.call(code, request), codes.VERB_NAMES[code]).reply


def make_cq(table: VerbsTable, cqe: int, on_completion: CompletionRoutine | None = None) -> int:
    """Make a CQ, with a channel if there is a routine to call; return its handle."""
    request = CreateCq(cqe, 0, int(on_completion is not None), 0, 0, 0)
    answer = table.call(codes.IOCTL_CREATE_CQ, request, on_completion)
    handle: int = require(answer, "create_cq").reply.handle
    return handle


def qp_request(qp_type: int, pd: int, cqs: tuple[int, int], **values: int) -> CreateQp:
    """Return the request for a QP that completes in these CQs, of one segment for each request."""
    request = CreateQp(qp_type, pd, *cqs, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    return request._replace(**values)


def modify(table: VerbsTable, qp: int, which: int, **values: Any) -> None:
    """Change attributes of a QP: those of the mask."""
    do(table, codes.IOCTL_MODIFY_QP, _NOTHING._replace(handle=qp, mask=which, **values))


def start_datagrams(table: VerbsTable, qp: int, port: int, qkey: int) -> None:
    """Bring a UD QP to RTS."""
    first = _PORT | int(mask.IBV_QP_QKEY)
    modify(table, qp, first, qp_state=_INIT, port_num=port, qkey=qkey)
    modify(table, qp, _STATE, qp_state=_RTR)
    modify(table, qp, _STATE | int(mask.IBV_QP_SQ_PSN), qp_state=_RTS)


def connect(table: VerbsTable, qp: int, peer_qpn: int, port: int, lid: int, **path: int) -> None:
    """Bring an RC QP to RTS towards another one; `path` may have access and MTU."""
    first = _PORT | int(mask.IBV_QP_ACCESS_FLAGS)
    access = path.get("access", 0)
    modify(table, qp, first, qp_state=_INIT, port_num=port, qp_access_flags=access)
    modify(
        table,
        qp,
        _PATH,
        qp_state=_RTR,
        path_mtu=path["mtu"],
        dest_qp_num=peer_qpn,
        max_dest_rd_atomic=1,
        min_rnr_timer=1,
        ah_port_num=port,
        ah_dlid=lid,
    )
    modify(
        table, qp, _REQUESTER, qp_state=_RTS, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1
    )
