"""The QP state machine as one table: transition -> command, required and optional attributes.

The driver checks a modify against it before it issues the command; the HCA finds by it from which
states a command is legal. A pair that is not listed is refused. STATE itself is never listed: it is
always allowed.

Spec: IBA vol. 1, 11.2.5.2 and 10.3.1; Linux drivers/infiniband/core/verbs.c (qp_state_table).
"""

from typing import Final, NamedTuple

from kernel_proc.hca_abi import command_opcodes as op
from shared.verbs_enums import ibv_qp_attr_mask as mask
from shared.verbs_enums import ibv_qp_state as state
from shared.verbs_enums import ibv_qp_type as qp_type

RC: Final = int(qp_type.IBV_QPT_RC)
UC: Final = int(qp_type.IBV_QPT_UC)
UD: Final = int(qp_type.IBV_QPT_UD)
RAW_PACKET: Final = int(qp_type.IBV_QPT_RAW_PACKET)
XRC_SEND: Final = int(qp_type.IBV_QPT_XRC_SEND)
XRC_RECV: Final = int(qp_type.IBV_QPT_XRC_RECV)
QP_TYPES: Final = (RC, UC, UD, RAW_PACKET, XRC_SEND, XRC_RECV)

RESET: Final = int(state.IBV_QPS_RESET)
INIT: Final = int(state.IBV_QPS_INIT)
RTR: Final = int(state.IBV_QPS_RTR)
RTS: Final = int(state.IBV_QPS_RTS)
SQD: Final = int(state.IBV_QPS_SQD)
SQE: Final = int(state.IBV_QPS_SQE)
ERR: Final = int(state.IBV_QPS_ERR)
QP_STATES: Final = (RESET, INIT, RTR, RTS, SQD, SQE, ERR)

STATE: Final = int(mask.IBV_QP_STATE)
CUR_STATE: Final = int(mask.IBV_QP_CUR_STATE)
SQD_NOTIFY: Final = int(mask.IBV_QP_EN_SQD_ASYNC_NOTIFY)
ACCESS: Final = int(mask.IBV_QP_ACCESS_FLAGS)
PKEY: Final = int(mask.IBV_QP_PKEY_INDEX)
PORT: Final = int(mask.IBV_QP_PORT)
QKEY: Final = int(mask.IBV_QP_QKEY)
AV: Final = int(mask.IBV_QP_AV)
MTU: Final = int(mask.IBV_QP_PATH_MTU)
TIMEOUT: Final = int(mask.IBV_QP_TIMEOUT)
RETRY: Final = int(mask.IBV_QP_RETRY_CNT)
RNR_RETRY: Final = int(mask.IBV_QP_RNR_RETRY)
RQ_PSN: Final = int(mask.IBV_QP_RQ_PSN)
RD_ATOMIC: Final = int(mask.IBV_QP_MAX_QP_RD_ATOMIC)
ALT_PATH: Final = int(mask.IBV_QP_ALT_PATH)
RNR_TIMER: Final = int(mask.IBV_QP_MIN_RNR_TIMER)
SQ_PSN: Final = int(mask.IBV_QP_SQ_PSN)
DEST_RD_ATOMIC: Final = int(mask.IBV_QP_MAX_DEST_RD_ATOMIC)
MIGRATION: Final = int(mask.IBV_QP_PATH_MIG_STATE)
DEST_QPN: Final = int(mask.IBV_QP_DEST_QPN)
RATE_LIMIT: Final = int(mask.IBV_QP_RATE_LIMIT)


class Attributes(NamedTuple):
    """What a transition must and may be given for one QP type, as bits of ibv_qp_attr_mask."""

    required: int = 0
    optional: int = 0


class Transition(NamedTuple):
    """One legal pair of states; `opcode` is 0 where the HCA is not told."""

    opcode: int
    attributes: dict[int, Attributes]


_NOTHING: Final = Attributes()
_ANY: Final = {kind: _NOTHING for kind in QP_TYPES}


def _rows(*rows: tuple[tuple[int, ...], int, int]) -> dict[int, Attributes]:
    return {kind: Attributes(must, may) for kinds, must, may in rows for kind in kinds}


_CONNECTED: Final = (RC, UC, XRC_SEND, XRC_RECV)
_PATH: Final = AV | MTU | DEST_QPN | RQ_PSN
_REQUESTER: Final = TIMEOUT | RETRY | RNR_RETRY | RD_ATOMIC
_TO_RTS: Final = CUR_STATE | ACCESS | ALT_PATH | MIGRATION
_IN_SQD: Final = AV | ALT_PATH | ACCESS | PKEY | MIGRATION

_STAYING: Final = _rows(
    ((RC, XRC_RECV), 0, _TO_RTS | RNR_TIMER),
    ((UC, XRC_SEND), 0, _TO_RTS),
    ((UD,), 0, CUR_STATE | QKEY),
)

TRANSITIONS: Final[dict[tuple[int, int], Transition]] = {
    (RESET, RESET): Transition(0, _ANY),
    (RESET, INIT): Transition(
        op.RST2INIT_QPEE,
        _rows(
            (_CONNECTED, PKEY | PORT | ACCESS, 0),
            ((UD,), PKEY | PORT | QKEY, 0),
            ((RAW_PACKET,), PORT, 0),
        ),
    ),
    (INIT, INIT): Transition(
        op.INIT2INIT_QPEE,
        _rows(
            (_CONNECTED, 0, PKEY | PORT | ACCESS),
            ((UD,), 0, PKEY | PORT | QKEY),
            ((RAW_PACKET,), 0, 0),
        ),
    ),
    (INIT, RTR): Transition(
        op.INIT2RTR_QPEE,
        _rows(
            ((RC, XRC_RECV), _PATH | DEST_RD_ATOMIC | RNR_TIMER, ALT_PATH | ACCESS | PKEY),
            ((UC, XRC_SEND), _PATH, ALT_PATH | ACCESS | PKEY),
            ((UD,), 0, PKEY | QKEY),
            ((RAW_PACKET,), 0, 0),
        ),
    ),
    (RTR, RTS): Transition(
        op.RTR2RTS_QPEE,
        _rows(
            ((RC,), SQ_PSN | _REQUESTER, _TO_RTS | RNR_TIMER),
            ((XRC_SEND,), SQ_PSN | _REQUESTER, _TO_RTS),
            ((XRC_RECV,), SQ_PSN | TIMEOUT, _TO_RTS | RNR_TIMER),
            ((UC,), SQ_PSN, _TO_RTS),
            ((UD,), SQ_PSN, CUR_STATE | QKEY),
            ((RAW_PACKET,), 0, RATE_LIMIT),
        ),
    ),
    (RTS, RTS): Transition(op.RTS2RTS_QPEE, _STAYING | _rows(((RAW_PACKET,), 0, RATE_LIMIT))),
    (RTS, SQD): Transition(
        op.RTS2SQD_QPEE,
        _rows(((*_CONNECTED, UD), 0, SQD_NOTIFY), ((RAW_PACKET,), 0, 0)),
    ),
    (SQD, RTS): Transition(op.SQD2RTS_QPEE, _STAYING | _rows(((RAW_PACKET,), 0, 0))),
    (SQD, SQD): Transition(
        op.SQD2SQD_QPEE,
        _rows(
            ((RC,), 0, _IN_SQD | PORT | _REQUESTER | DEST_RD_ATOMIC | RNR_TIMER),
            ((XRC_SEND,), 0, _IN_SQD | PORT | _REQUESTER),
            ((XRC_RECV,), 0, _IN_SQD | PORT | TIMEOUT | DEST_RD_ATOMIC | RNR_TIMER),
            ((UC,), 0, _IN_SQD),
            ((UD,), 0, PKEY | QKEY),
            ((RAW_PACKET,), 0, 0),
        ),
    ),
    (SQE, RTS): Transition(
        op.SQERR2RTS_QPEE,
        _rows(
            ((UD,), 0, CUR_STATE | QKEY),
            ((UC,), 0, CUR_STATE | ACCESS),
            ((RC, XRC_SEND, XRC_RECV, RAW_PACKET), 0, 0),
        ),
    ),
    **{(old, RESET): Transition(op.ERR2RST_QPEE, _ANY) for old in QP_STATES if old != RESET},
    **{(old, ERR): Transition(op.TOERR_QPEE, _ANY) for old in QP_STATES if old != RESET},
}

#: What the core drops before it checks, as it means nothing to that side of an XRC connection.
MEANINGLESS: Final[dict[int, int]] = {
    XRC_SEND: DEST_RD_ATOMIC | RNR_TIMER,
    XRC_RECV: RD_ATOMIC | RETRY | RNR_RETRY,
}

#: Every bit the interface knows.
KNOWN_ATTRIBUTES: Final = sum(int(bit) for bit in mask)
