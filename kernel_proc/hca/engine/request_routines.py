"""What a responder does for each opcode: one routine, found by index.

Spec: IBA vol. 1, table 38 (opcodes by transport).
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.incoming_reads import IncomingReads
from kernel_proc.hca.engine.incoming_sends import IncomingSends
from kernel_proc.hca.engine.incoming_writes import IncomingWrites
from kernel_proc.hca.engine.private_requests import PrivateRequests
from kernel_proc.hca.engine.receive_side import ReceiveSide
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.packets import Answer, Request
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation

#: Takes a request that is in sequence and that the queue pair permits.
Routine = Callable[[QueuePair, Incoming, Request], Answer]


class RequestRoutines:
    """The routines of one kind of responder; `by_opcode` has one for every opcode."""

    def __init__(
        self, side: ReceiveSide, translation: Translation, private: PrivateRequests
    ) -> None:
        self._side: Final = side
        self.reads: Final = IncomingReads(side, translation, private)
        sends = IncomingSends(side, translation, private)
        writes = IncomingWrites(side, translation, private)
        self._kinds: Final[dict[int, Routine]] = {
            **dict.fromkeys(ops.SENDS, sends.take),
            **dict.fromkeys(ops.WRITES, writes.take),
            ops.RDMA_READ: self.reads.read,
            **dict.fromkeys(ops.ATOMICS, self.reads.change),
        }

    def by_opcode(self, opcodes: frozenset[int] = ops.ANY_REQUEST) -> tuple[Routine, ...]:
        """Return a routine for each opcode; those not named are invalid."""
        return tuple(
            self._kinds[opcode] if opcode in opcodes else self._unknown
            for opcode in range(ops.OPCODES)
        )

    def _unknown(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        return self._side.invalid(qp)
