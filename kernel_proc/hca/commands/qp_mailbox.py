"""The mailbox of a transition: which attributes it brings, and whether their values can be.

A transition takes the attributes it requires, and of its optional ones those in the
opt_param_mask.

Spec: PRM, QP transitions (opt_param_mask); IBA vol. 1, 11.2.5.2.
"""

from functools import lru_cache
from typing import Any, Final

from kernel_proc.hca.command import Command, bad_parameter
from kernel_proc.hca.hca_tables import HcaTables
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table

QP_MAILBOX_SIZE: Final = abi.QP_MAILBOX_HEAD.size + abi.QP_CONTEXT.size
QPN_MASK: Final = 0xFFFFFF
_PSN_MASK: Final = 0xFFFFFF
_MOST_RD_ATOMIC: Final = 128

_PATH_FIELDS: Final = tuple(name for name in abi.QpContext._fields if name.startswith("path_"))

_FIELDS: Final[dict[int, tuple[str, ...]]] = {
    table.PKEY: ("pkey_index",),
    table.PORT: ("port",),
    table.ACCESS: ("access",),
    table.QKEY: ("qkey",),
    table.AV: _PATH_FIELDS,
    table.MTU: ("mtu",),
    table.DEST_QPN: ("remote_qpn",),
    table.RQ_PSN: ("next_receive_psn",),
    table.SQ_PSN: ("next_send_psn",),
    table.DEST_RD_ATOMIC: ("rra_max",),
    table.RD_ATOMIC: ("sra_max",),
    table.RNR_TIMER: ("min_rnr_timer",),
    table.TIMEOUT: ("ack_timeout",),
    table.RETRY: ("retry_count",),
    table.RNR_RETRY: ("rnr_retry",),
}

_OPTIONS: Final = (
    (abi.OPT_ALT_PATH, table.ALT_PATH),
    (abi.OPT_ACCESS, table.ACCESS),
    (abi.OPT_PKEY_INDEX, table.PKEY),
    (abi.OPT_QKEY, table.QKEY),
    (abi.OPT_RNR_TIMER, table.RNR_TIMER),
    (abi.OPT_PRIMARY_PATH, table.AV),
    (abi.OPT_SRA_MAX, table.RD_ATOMIC),
    (abi.OPT_RRA_MAX, table.DEST_RD_ATOMIC),
    (abi.OPT_MIGRATION_STATE, table.MIGRATION),
    (abi.OPT_PORT, table.PORT),
    (abi.OPT_RETRY_COUNT, table.RETRY),
    (abi.OPT_ACK_TIMEOUT, table.TIMEOUT),
    (abi.OPT_RNR_RETRY, table.RNR_RETRY),
)
_NEVER: Final = abi.OPT_ALT_PATH | abi.OPT_MIGRATION_STATE | abi.OPT_ALT_RNR_RETRY


def read_mailbox(command: Command) -> tuple[int, abi.QpContext]:
    """Return the opt_param_mask and the context a transition brings."""
    mailbox = command.inbox(QP_MAILBOX_SIZE)
    (options,) = abi.QP_MAILBOX_HEAD.unpack_from(mailbox)
    values: tuple[Any, ...] = abi.QP_CONTEXT.unpack_from(mailbox, abi.QP_MAILBOX_HEAD.size)
    return options, abi.QpContext(*values)


def taken_attributes(allowed: table.Attributes, options: int) -> int:
    """Return the attributes a command takes; options that it does not know are ignored."""
    if options & _NEVER:
        raise bad_parameter()
    given = 0
    for bits, attribute in _OPTIONS:
        if options & bits:
            given |= attribute
    taken = allowed.required | given & allowed.optional
    if taken & table.AV:
        taken |= given & table.PORT  # a path has its own port
    return taken


def taken_values(hca: HcaTables, attributes: int, new: abi.QpContext) -> dict[str, Any]:
    """Take the fields of the attributes from a mailbox; refuse values that cannot be."""
    changes = {
        name: getattr(new, name)
        for attribute, names in _FIELDS.items()
        if attributes & attribute
        for name in names
    }
    for name in ("next_receive_psn", "next_send_psn"):
        if name in changes:
            changes[name] &= _PSN_MASK
    if any(
        not least <= changes[name] <= most
        for name, least, most in _ranges(hca.limits)
        if name in changes
    ):
        raise bad_parameter()
    return changes


@lru_cache(maxsize=4)  # those of a device never change
def _ranges(limits: abi.DeviceLimits) -> tuple[tuple[str, int, int], ...]:
    return (
        ("pkey_index", 0, limits.pkey_table_length - 1),
        ("port", 1, limits.ports),
        ("mtu", 1, limits.max_mtu),
        ("remote_qpn", 0, QPN_MASK),
        ("rra_max", 0, 1 << limits.log_max_rdb_per_qp),
        ("sra_max", 0, _MOST_RD_ATOMIC),
        ("min_rnr_timer", 0, 31),
        ("ack_timeout", 0, 31),
        ("retry_count", 0, 7),
        ("rnr_retry", 0, 7),
        ("path_port", 1, limits.ports),
        ("path_grh", 0, 1),
        ("path_dlid", 0, 0xFFFF),
        ("path_sl", 0, 15),
        ("path_source_bits", 0, 127),
        ("path_sgid_index", 0, limits.gid_table_length - 1),
        ("path_hop_limit", 0, 255),
        ("path_traffic_class", 0, 255),
        ("path_flow_label", 0, (1 << 20) - 1),
    )
