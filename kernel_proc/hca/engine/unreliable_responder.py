"""The responder of UC: the same work as for a reliable connection, but nobody is told of a failure.

A message whose first run has come is a new message, whatever its PSN; one that is not continued as
expected is dropped with all that is left of it. A receive entry that was in hand is used for the
next message, or, if it came from a shared queue, completes in error; the queue pair goes on either
way. Only an entry that is itself no good takes it out of service.

Spec: IBA vol. 1, 9.8.2 (unreliable connection), 9.9.3 (classes A, D and E); docs/engine.md.
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.receive_side import ReceiveSide, is_too_long
from kernel_proc.hca.engine.request_routines import Routine
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.packets import IN_HAND, NOTHING, Answer, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca_abi import qp_transitions as states

_PSN_MASK: Final = ops.PSN_MASK
_OPCODES: Final = ops.OPCODES
_FIRST: Final = packets.FIRST
_RTR: Final = states.RTR
_OF_THE_ENTRY: Final = (ops.LOC_PROT_ERR, ops.LOC_QP_OP_ERR)
_REASONS: Final = {
    ops.LOC_LEN_ERR: "longer than the receive entry",
    ops.LOC_ACCESS_ERR: "key",
    ops.REM_INV_REQ_ERR: "not to be invalidated",
}


class UnreliableSide(ReceiveSide):
    """The receive side of UC: what fails is counted and dropped."""

    def not_ready(self, qp: QueuePair) -> Answer:
        """Drop a message for which there is no entry."""
        qp.counters.drops["no receive entry"] += 1
        return NOTHING

    def invalid(self, qp: QueuePair) -> Answer:
        """Drop a request that cannot be."""
        qp.counters.drops["invalid request"] += 1
        return NOTHING

    def access_error(self, qp: QueuePair) -> Answer:
        """Drop an access that a key does not grant."""
        qp.counters.drops["key"] += 1
        return NOTHING

    def fail_entry(self, qp: QueuePair, incoming: Incoming, status: int) -> None:
        """Drop the message in hand; an entry that is no good ends the queue pair's service."""
        if status in _OF_THE_ENTRY:
            super().fail_entry(qp, incoming, status)
            return
        qp.counters.drops[_REASONS[status]] += 1
        self._give_up(qp, incoming, status)

    def cut_short(self, qp: QueuePair, incoming: Incoming) -> None:
        """Drop a message whose rest does not come."""
        qp.counters.drops["cut short"] += 1
        self._give_up(qp, incoming, ops.REM_INV_REQ_ERR)

    def _give_up(self, qp: QueuePair, incoming: Incoming, status: int) -> None:
        incoming.opcode = -1
        if incoming.srq_position >= 0:
            self._end_shared(qp, incoming, status)


class UnreliableResponder:
    """Serves requests that arrive at queue pairs of UC."""

    def __init__(self, side: UnreliableSide, routines: tuple[Routine, ...]) -> None:
        self._side: Final = side
        self._routines: Final = routines

    def receive(self, port: Port, qp: QueuePair, request: Request) -> Answer:
        """Take a request, or drop it; IN_HAND says that the link is busy, and nothing else.

        Whatever else is answered the sender of an unreliable message does not learn.
        """
        incoming = qp.incoming
        if incoming.job is not None:
            return IN_HAND
        if qp.state == _RTR and not incoming.established:
            self._side.established(qp, incoming)
        opcode = request.opcode
        if request.flags & _FIRST:
            if incoming.opcode != -1:
                self._side.cut_short(qp, incoming)
            qp.receive_psn = request.psn
        elif request.psn != qp.receive_psn or opcode != incoming.opcode:
            if incoming.opcode != -1:
                self._side.cut_short(qp, incoming)
            qp.counters.drops["out of sequence"] += 1
            return NOTHING
        if opcode >= _OPCODES or ops.QP_RIGHTS[opcode] & ~incoming.access:
            return self._side.invalid(qp)
        if incoming.other_mtu and is_too_long(request, incoming.other_mtu):
            return self._side.invalid(qp)
        answer = self._routines[opcode](qp, incoming, request)
        if not answer.kind:
            qp.receive_psn = (request.psn + request.packets) & _PSN_MASK
        elif answer.kind != packets.WAIT:
            incoming.opcode = -1
        return answer
