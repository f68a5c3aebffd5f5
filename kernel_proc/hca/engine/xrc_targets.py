"""XRC targets: which shared receive queue a request is for, and whose memory it may name.

A target queue pair has no receive queue, no CQ and no memory of its own. Every request says which
shared queue it is for; that queue must be of XRC and of the target's domain. Its entries take the
message, its CQ the completion, and keys are looked for in its protection domain. The queue can be
of another process than the target, and go at any time.

Spec: IBA vol. 1, annex A14 (XRC); ibv_post_send(3), remote_srqn.
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine.receive_side import ReceiveSide
from kernel_proc.hca.engine.request_routines import Routine
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.number_table import NumberTable
from kernel_proc.hca.packets import Answer, Request
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca_abi.contexts import SRQ_IS_XRC

_FIRST: Final = packets.FIRST


class XrcSide(ReceiveSide):
    """The receive side of a target: its entries are those of the queue a message is for."""

    def take_entry(self, qp: QueuePair, incoming: Incoming) -> int:
        """Have the next entry of that queue in hand; 0, or why there is none."""
        assert incoming.srq is not None  # it was aimed
        return self._take_shared(incoming.srq, incoming)


class XrcTargets:
    """Finds the shared queues that requests are for."""

    def __init__(self, shared: NumberTable[SharedReceiveQueue], side: ReceiveSide) -> None:
        self._find: Final = shared.find
        self._invalid: Final = side.invalid

    def find(self, qp: QueuePair, request: Request) -> SharedReceiveQueue | None:
        """Return the queue a request is for, if it is one of the target's domain."""
        srq = self._find(request.srqn)
        if srq is None or not srq.context.flags & SRQ_IS_XRC:
            return None
        return srq if srq.context.xrcd == qp.context.xrcd else None

    def domain_of(self, qp: QueuePair, request: Request) -> int | None:
        """Return the protection domain whose keys a request may name."""
        srq = self.find(qp, request)
        return None if srq is None else srq.context.pd

    def aimed(self, routines: tuple[Routine, ...]) -> tuple[Routine, ...]:
        """Return the routines with the look-up of the target before each."""
        return tuple(self._aimed(routine) for routine in routines)

    def _aimed(self, routine: Routine) -> Routine:
        def aim(qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
            srq = self.find(qp, request)
            if srq is None or not (request.flags & _FIRST or srq is incoming.srq):
                return self._invalid(qp)
            incoming.srq = srq
            incoming.pd = srq.context.pd
            return routine(qp, incoming, request)

        return aim
