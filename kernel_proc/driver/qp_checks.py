"""What modify_qp accepts: the rule of transitions and the checks of values, one row each.

Nothing here changes anything. The first thing that is wrong is refused with its own reason.

Rules: any IRQL; does not wait.
Spec: IBA vol. 1, 11.2.5.2; Linux drivers/infiniband/core/verbs.c (ib_modify_qp_is_ok) and
uverbs_cmd.c (modify_qp); mthca_qp.c.
"""

import errno
from collections.abc import Callable
from typing import Final, NamedTuple

from kernel_proc.driver.limits import Limits
from kernel_proc.driver.queue_resource import refuse
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import qp_transitions as table
from shared.verb_messages import ModifyQp
from shared.verb_reasons import VerbReason

_STATES_WITH_CUR: Final = (table.RTR, table.RTS, table.SQD, table.SQE)
_GID_LENGTH: Final = 16
_MOST_TIMEOUT: Final = 31
_MOST_RETRIES: Final = 7
_MOST_RNR_TIMER: Final = 31
CONTROLLED_QKEY: Final = 1 << 31

_PATH_FIELDS: Final = (
    ("ah_dlid", 0xFFFF, VerbReason.BAD_LID),
    ("ah_sl", 15, VerbReason.BAD_SERVICE_LEVEL),
    ("ah_src_path_bits", 127, VerbReason.BAD_PATH_BITS),
    ("ah_static_rate", 63, VerbReason.BAD_STATIC_RATE),
)
_GLOBAL_FIELDS: Final = (
    ("ah_flow_label", (1 << 20) - 1, VerbReason.BAD_FLOW_LABEL),
    ("ah_hop_limit", 255, VerbReason.BAD_HOP_LIMIT_OR_CLASS),
    ("ah_traffic_class", 255, VerbReason.BAD_HOP_LIMIT_OR_CLASS),
)

#: Reads and atomics outstanding as requester, which take no device memory.
MOST_INITIATED: Final = 128


class Step(NamedTuple):
    """One accepted transition: from where, to where, its row, and the bits that count."""

    old: int
    new: int
    row: table.Transition
    mask: int


def check_step(qp_type: int, present: int, request: ModifyQp) -> Step:
    """Apply the acceptance rule to a call in a present state."""
    unknown = request.mask & ~table.KNOWN_ATTRIBUTES
    if unknown:
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.UNKNOWN_ATTRIBUTES, 0, unknown)
    mask = request.mask & ~table.MEANINGLESS.get(qp_type, 0)
    old = _old_state(present, mask, request)
    new = request.qp_state if mask & table.STATE else old
    if new not in table.QP_STATES:
        refuse(VerbReason.BAD_STATE, 0, new)
    name = qp_type << 16 | old << 8 | new
    row = table.TRANSITIONS.get((old, new))
    if row is None or qp_type not in row.attributes:
        refuse(VerbReason.NO_SUCH_TRANSITION, name)
    required, optional = row.attributes[qp_type]
    missing = required & ~mask
    if missing:
        refuse(VerbReason.ATTRIBUTES_MISSING, name, missing)
    extra = mask & ~(required | optional | table.STATE)
    if extra:
        refuse(VerbReason.ATTRIBUTES_NOT_ALLOWED, name, extra)
    return Step(old, new, row, mask)


def _old_state(present: int, mask: int, request: ModifyQp) -> int:
    if not mask & table.CUR_STATE:
        return present
    if present not in _STATES_WITH_CUR:
        refuse(VerbReason.CUR_STATE_NOT_ALLOWED, 0, present)
    if request.cur_qp_state not in table.QP_STATES:
        refuse(VerbReason.BAD_STATE, 1, request.cur_qp_state)
    return request.cur_qp_state


class Values(NamedTuple):
    """What the checks of values look at; `port` is the QP's own before the call."""

    request: ModifyQp
    limits: Limits
    step: Step
    port: int


def check_values(values: Values) -> None:
    """Check every attribute that is given; the first bad value is refused."""
    mask = values.step.mask
    for bits, check in _CHECKS:
        if mask & bits:
            check(values)


def _alternate(values: Values) -> None:
    bits = values.step.mask & (table.ALT_PATH | table.MIGRATION)
    raise VerbRefused(errno.EOPNOTSUPP, VerbReason.ALTERNATE_PATH_NOT_SUPPORTED, 0, bits)


def _port(values: Values) -> None:
    if not 1 <= values.request.port_num <= values.limits.ports:
        refuse(VerbReason.BAD_PORT, values.request.port_num, values.limits.ports)


def _pkey_index(values: Values) -> None:
    length = values.limits.device.pkey_table_length
    if values.request.pkey_index >= length:
        refuse(VerbReason.BAD_PKEY_INDEX, values.request.pkey_index, length)


def _path(values: Values) -> None:
    request, limits = values.request, values.limits
    port = request.ah_port_num
    if not 1 <= port <= limits.ports:
        refuse(VerbReason.BAD_PORT, port, limits.ports)
    if values.step.new == table.RTR:
        expected = values.port
    elif values.step.mask & table.PORT:
        expected = request.port_num
    else:
        expected = port  # alone, it selects its own port
    if port != expected:
        refuse(VerbReason.BAD_PATH_PORT, port, expected)
    for field, most, reason in _PATH_FIELDS:
        if getattr(request, field) > most:
            refuse(reason, 0, getattr(request, field))
    if request.ah_is_global:
        _global_path(values)


def _global_path(values: Values) -> None:
    request, length = values.request, values.limits.device.gid_table_length
    if request.ah_sgid_index >= length:
        refuse(VerbReason.BAD_SGID_INDEX, request.ah_sgid_index, length)
    for field, most, reason in _GLOBAL_FIELDS:
        if getattr(request, field) > most:
            refuse(reason, 0, getattr(request, field))
    if len(request.ah_dgid) != _GID_LENGTH:
        refuse(VerbReason.BAD_GID, 0, len(request.ah_dgid))


def _path_mtu(values: Values) -> None:
    most = values.limits.device.max_mtu
    if not 1 <= values.request.path_mtu <= most:
        refuse(VerbReason.BAD_PATH_MTU, values.request.path_mtu, most)


def _qkey(values: Values) -> None:
    if values.request.qkey & CONTROLLED_QKEY:
        raise VerbRefused(errno.EPERM, VerbReason.CONTROLLED_QKEY, 0, values.request.qkey)


def _at_most(reason: VerbReason, field: str, most: int) -> Callable[[Values], None]:
    def check(values: Values) -> None:
        value: int = getattr(values.request, field)
        if value > most:
            refuse(reason, value, most)

    return check


def _responder_reads(values: Values) -> None:
    most = values.limits.max_rd_atomic
    if values.request.max_dest_rd_atomic > most:
        refuse(VerbReason.BAD_DEST_RD_ATOMIC, values.request.max_dest_rd_atomic, most)


_CHECKS: Final[tuple[tuple[int, Callable[[Values], None]], ...]] = (
    (table.ALT_PATH | table.MIGRATION, _alternate),
    (table.PORT, _port),
    (table.PKEY, _pkey_index),
    (table.AV, _path),
    (table.MTU, _path_mtu),
    (table.TIMEOUT, _at_most(VerbReason.BAD_TIMEOUT, "timeout", _MOST_TIMEOUT)),
    (table.RETRY, _at_most(VerbReason.BAD_RETRY_COUNT, "retry_cnt", _MOST_RETRIES)),
    (table.RNR_RETRY, _at_most(VerbReason.BAD_RNR_RETRY, "rnr_retry", _MOST_RETRIES)),
    (table.RNR_TIMER, _at_most(VerbReason.BAD_RNR_TIMER, "min_rnr_timer", _MOST_RNR_TIMER)),
    (table.RD_ATOMIC, _at_most(VerbReason.BAD_RD_ATOMIC, "max_rd_atomic", MOST_INITIATED)),
    (table.DEST_RD_ATOMIC, _responder_reads),
    (table.QKEY, _qkey),
)
