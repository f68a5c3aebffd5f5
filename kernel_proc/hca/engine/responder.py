"""The responder of reliable queue pairs: checks in one order, executes, completes, answers.

1 PSN, 2 sequence of first and last, 3 right of the queue pair, 4 resources, 5 length, 6 key, 7 the
execution itself, 8 completion, 9 acknowledgement. The first that fails decides the answer.

Rules: knows its own queue pair and the record, nothing else; memory is checked before it is
touched, and no byte outside what the key grants is.
Spec: IBA vol. 1, 9.7.4 and 9.9.3 (responder); verbs semantics of each failure in docs/engine.md.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.incoming_reads import IncomingReads
from kernel_proc.hca.engine.receive_side import ReceiveSide, is_too_long
from kernel_proc.hca.engine.request_routines import Routine
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.packets import ACK, IN_HAND, NOTHING, SEQUENCE_ERROR, Answer, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca_abi import qp_transitions as states

_PSN_MASK: Final = ops.PSN_MASK
_OPCODES: Final = ops.OPCODES
_PSN_HALF: Final = 1 << 23
_FIRST: Final = packets.FIRST
_QP_RIGHTS: Final = ops.QP_RIGHTS
_RTR: Final = states.RTR

#: The protection domain whose keys a request may name; None if it may name none.
DomainOf = Callable[[QueuePair, Request], int | None]


class Responder:
    """Serves requests that arrive at queue pairs of RC, or at targets of XRC."""

    def __init__(
        self,
        side: ReceiveSide,
        routines: tuple[Routine, ...],
        reads: IncomingReads,
        domain_of: DomainOf,
    ) -> None:
        self._routines: Final = routines
        self._reads: Final = reads
        self._domain_of: Final = domain_of
        self._invalid: Final = side.invalid
        self._established: Final = side.established

    def receive(self, port: Port, qp: QueuePair, request: Request) -> Answer:
        """Take a request that came to a queue pair in RTR, RTS or SQD, over its own path."""
        incoming = qp.incoming
        if request.psn != qp.receive_psn:
            return self._out_of_sequence(qp, incoming, request)
        if incoming.job is not None:
            return IN_HAND  # the same again, while it is being executed
        incoming.nak_sent = False
        if qp.state == _RTR and not incoming.established:
            self._established(qp, incoming)
        opcode = request.opcode
        if opcode >= _OPCODES or incoming.opcode != (-1 if request.flags & _FIRST else opcode):
            return self._invalid(qp)
        if incoming.other_mtu and is_too_long(request, incoming.other_mtu):
            return self._invalid(qp)
        if _QP_RIGHTS[opcode] & ~incoming.access:
            return self._invalid(qp)
        answer = self._routines[opcode](qp, incoming, request)
        if not answer.kind:
            qp.receive_psn = (request.psn + request.packets) & _PSN_MASK
        return answer

    def _out_of_sequence(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Answer a duplicate again; ahead of what is expected, ask once to go back."""
        if (request.psn - qp.receive_psn) & _PSN_MASK < _PSN_HALF:
            if incoming.nak_sent:
                qp.counters.drops["PSN ahead"] += 1
                return NOTHING
            incoming.nak_sent = True
            return SEQUENCE_ERROR
        if (qp.receive_psn - request.psn) & _PSN_MASK < request.packets:
            qp.counters.drops["half a duplicate"] += 1
            return NOTHING
        if request.opcode in ops.SENDS or request.opcode in ops.WRITES:
            return ACK
        domain = self._domain_of(qp, request)
        if domain is None:
            return self._invalid(qp)
        return self._reads.again(qp, incoming, request, domain)
