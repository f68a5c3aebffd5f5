"""Commands on queue pairs: the transitions, by the one state table, and the query.

Which attributes a transition takes follows from the table. Everything is checked before anything
changes.

Spec: IBA vol. 1, 10.3.1; kernel_proc/hca_abi/qp_transitions.py.
"""

from typing import Any, Final

from kernel_proc.hca.command import Command, CommandNotYet, CommandRefused, bad_index, bad_parameter
from kernel_proc.hca.commands.qp_mailbox import (
    QPN_MASK,
    read_mailbox,
    taken_attributes,
    taken_values,
)
from kernel_proc.hca.commands.queue_commands import check_ring
from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.queue_buffer import QueueBuffer
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from shared.wqe_layout import SEND_HEAD_SIZE

_EE_CONTEXT: Final = 1 << 24  # of the input modifier
_LEAST_ALIGNMENT: Final = 64
_SPECIAL_KINDS: Final = 4

_TRANSPORT_TYPE: Final = {
    abi.QPC_TRANSPORT_RC: table.RC,
    abi.QPC_TRANSPORT_UC: table.UC,
    abi.QPC_TRANSPORT_UD: table.UD,
    abi.QPC_TRANSPORT_XRC_SEND: table.XRC_SEND,
    abi.QPC_TRANSPORT_XRC_RECV: table.XRC_RECV,
}

#: What each command leads from and to; those with attributes only.
_FORWARD: Final = {
    transition.opcode: (old, new)
    for (old, new), transition in table.TRANSITIONS.items()
    if transition.opcode not in (0, op.TOERR_QPEE, op.ERR2RST_QPEE)
}
_TO_ERR_FROM: Final = frozenset(
    old for (old, _), transition in table.TRANSITIONS.items() if transition.opcode == op.TOERR_QPEE
)


def _qpn(command: Command) -> int:
    if command.modifier & _EE_CONTEXT:
        raise bad_index()  # no reliable datagrams, so no EE contexts
    return command.modifier & QPN_MASK


def _bad_state() -> CommandRefused:
    return CommandRefused(op.CMD_STAT_BAD_QPEE_STATE)


def _existing(hca: HcaTables, command: Command) -> QueuePair:
    """Return the QP; one that does not exist is in RESET, where no such command is legal."""
    number = _qpn(command)
    hca.qps.index_of(number)
    qp = hca.qps.find(number)
    if qp is None:
        raise _bad_state()
    return qp


def _allowed(command: Command, kind: int) -> table.Attributes:
    return table.TRANSITIONS[_FORWARD[command.opcode]].attributes[kind]


def _apply(qp: QueuePair, attributes: int, changes: dict[str, Any]) -> None:
    qp.context = qp.context._replace(**changes)
    if attributes & table.SQ_PSN:
        qp.send_psn = qp.context.next_send_psn
    if attributes & table.RQ_PSN:
        qp.receive_psn = qp.context.next_receive_psn


# RESET to INIT: the QP comes to be


def rst2init(hca: HcaTables, command: Command) -> None:
    """Make a QP of its context."""
    number = _qpn(command)
    index = hca.qps.index_of(number)
    if hca.qps.is_taken(index):
        raise _bad_state()
    options, new = read_mailbox(command)
    hca.require_icm(hca.bases.qpc_base, index, abi.QPC_SIZE)
    hca.require_icm(hca.bases.eqpc_base, index, abi.EQPC_SIZE)
    hca.require_icm(hca.bases.rdb_base, index, abi.RDB_SIZE)
    kind = _TRANSPORT_TYPE.get(new.transport)
    if kind is None or new.local_qpn != number or new.pd >> 24:
        raise bad_parameter()
    attributes = taken_attributes(_allowed(command, kind), options)
    changes = taken_values(hca, attributes, new)
    static = {name: getattr(new, name) for name in _STATIC_FIELDS}
    qp = QueuePair(abi.QpContext(**static, **changes), hca.page(new.uar))
    _find_queues(hca, qp, kind)
    qp.buffer = _map_rings(hca, qp.context)
    if not hca.qps.claim_slots(qp):
        if qp.buffer is not None:
            qp.buffer.close()
        raise bad_parameter()
    hca.qps.attach(qp)


_STATIC_FIELDS: Final = (
    "transport", "flags", "local_qpn", "pd", "uar", "wqe_lkey", "send_offset", "send_entries",
    "send_stride", "receive_entries", "receive_stride", "send_slot", "receive_slot", "send_cqn",
    "receive_cqn", "srqn", "xrcd",
)  # fmt: skip


def _find_queues(hca: HcaTables, qp: QueuePair, kind: int) -> None:
    """Find the CQs and the SRQ that a QP of its type has."""
    context = qp.context
    if kind != table.XRC_RECV:
        qp.send_cq = _find_cq(hca, context.send_cqn)
    if kind not in (table.XRC_SEND, table.XRC_RECV):
        qp.receive_cq = _find_cq(hca, context.receive_cqn)
    has_srq = bool(context.flags & abi.QPC_HAS_SRQ)
    if has_srq:
        qp.srq = hca.srqs.find(context.srqn)
        if qp.srq is None:
            raise CommandRefused(op.CMD_STAT_BAD_RESOURCE)
    no_receive = has_srq or kind in (table.XRC_SEND, table.XRC_RECV)
    no_send = kind == table.XRC_RECV
    if (context.receive_entries and no_receive) or (context.send_entries and no_send):
        raise bad_parameter()


def _find_cq(hca: HcaTables, number: int) -> CompletionQueue:
    cq = hca.cqs.find(number)
    if cq is None:
        raise CommandRefused(op.CMD_STAT_BAD_RESOURCE)
    return cq


def _map_rings(hca: HcaTables, context: abi.QpContext) -> QueueBuffer | None:
    """Map the memory of both rings: the receive ring at the region's start, then the send ring."""
    most = 1 << (hca.limits.max_wqes - 1).bit_length()
    end = 0
    if context.receive_entries:
        check_ring(context.receive_entries, context.receive_stride, most)
        end = context.receive_entries * context.receive_stride
    if context.send_entries:
        check_ring(context.send_entries, context.send_stride, most)
        if context.send_stride < SEND_HEAD_SIZE:
            raise bad_parameter()
        if context.send_offset < end or context.send_offset % context.send_stride:
            raise bad_parameter()
        end = context.send_offset + context.send_entries * context.send_stride
    if not end:
        return None
    return hca.queue(
        context.wqe_lkey, context.pd, abi.MPT_FLAG_LOCAL_READ, end, alignment=_LEAST_ALIGNMENT
    )


# The others


def forward(hca: HcaTables, command: Command) -> None:
    """Change state and attributes as one of the transitions with a mailbox."""
    qp = _existing(hca, command)
    old, new_state = _FORWARD[command.opcode]
    if qp.state != old or qp.draining:
        raise _bad_state()
    options, new = read_mailbox(command)
    kind = _TRANSPORT_TYPE[qp.context.transport]
    attributes = taken_attributes(_allowed(command, kind), options)
    changes = taken_values(hca, attributes, new)
    _apply(qp, attributes, changes)
    hca.qps.set_state(qp, new_state)


def to_error(hca: HcaTables, command: Command) -> None:
    """Take a QP out of service: what is posted will be flushed."""
    qp = _existing(hca, command)
    if qp.state not in _TO_ERR_FROM:
        raise _bad_state()
    hca.qps.set_state(qp, table.ERR)


def rts2sqd(hca: HcaTables, command: Command) -> None:
    """Stop starting send entries."""
    notify = bool(command.modifier & op.RTS2SQD_NOTIFY)
    command.modifier &= ~op.RTS2SQD_NOTIFY
    qp = _existing(hca, command)
    if qp.state != table.RTS:
        raise _bad_state()
    hca.qps.drain(qp, notify)


def err2rst(hca: HcaTables, command: Command) -> None:
    """Let a QP go from any state; its entries leave its CQs, so nothing is flushed before."""
    qp = _existing(hca, command)
    if qp.copies:
        raise CommandNotYet  # nothing touches its memory after this command
    if not command.opmod & op.ERR2RST_NO_OUTBOX and command.out_param:
        command.outbox(_pack(qp))
    hca.qps.reset(qp)


def query(hca: HcaTables, command: Command) -> None:
    """Answer a QP's context with its live state and PSNs; a RESET one has no context."""
    number = _qpn(command)
    hca.qps.index_of(number)
    qp = hca.qps.find(number)
    if qp is None:
        raise CommandRefused(op.CMD_STAT_BAD_QPEE_STATE)
    command.outbox(_pack(qp))


def _pack(qp: QueuePair) -> bytes:
    return abi.QP_MAILBOX_HEAD.pack(0) + abi.QP_CONTEXT.pack(*qp.live_context())


def conf_special_qp(hca: HcaTables, command: Command) -> None:
    """Note the numbers of the special QPs; 0 SMI, 1 GSI, 2 raw IPv6, 3 raw Ethertype."""
    number = command.modifier
    if command.opmod >= _SPECIAL_KINDS:
        raise bad_parameter()
    if number >= hca.limits.reserved_qps:
        raise bad_index()
    hca.special_qps[command.opmod] = number


_READY: Final = FirmwareState.INITIALISED

HANDLERS: Final = {
    op.RST2INIT_QPEE: (rst2init, _READY),
    op.INIT2INIT_QPEE: (forward, _READY),
    op.INIT2RTR_QPEE: (forward, _READY),
    op.RTR2RTS_QPEE: (forward, _READY),
    op.RTS2RTS_QPEE: (forward, _READY),
    op.SQERR2RTS_QPEE: (forward, _READY),
    op.SQD2RTS_QPEE: (forward, _READY),
    op.SQD2SQD_QPEE: (forward, _READY),
    op.RTS2SQD_QPEE: (rts2sqd, _READY),
    op.TOERR_QPEE: (to_error, _READY),
    op.ERR2RST_QPEE: (err2rst, _READY),
    op.QUERY_QPEE: (query, _READY),
    op.CONF_SPECIAL_QP: (conf_special_qp, _READY),
}
