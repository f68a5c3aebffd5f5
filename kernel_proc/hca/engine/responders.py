"""The responders by transport, each with its receive side and its routines.

RC and XRC share the order of checks; XRC looks for its shared queue before anything else of a
request is done. UC shares the routines, and drops what they refuse.

Spec: docs/engine.md.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.private_copier import PrivateCopier
from kernel_proc.hca.engine.private_requests import PrivateRequests
from kernel_proc.hca.engine.receive_side import ReceiveSide
from kernel_proc.hca.engine.request_routines import RequestRoutines
from kernel_proc.hca.engine.responder import Responder
from kernel_proc.hca.engine.unreliable_responder import UnreliableResponder, UnreliableSide
from kernel_proc.hca.engine.xrc_targets import XrcSide, XrcTargets
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.number_table import NumberTable
from kernel_proc.hca.packets import Answer, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi import contexts as abi

#: Takes a request that came to a connected queue pair over its own path.
Receive = Callable[[Port, QueuePair, Request], Answer]


class Responders:
    """`receive` has the responder of each transport of connected queue pairs, None for others."""

    def __init__(
        self,
        queue_pairs: QpTable,
        shared: NumberTable[SharedReceiveQueue],
        translation: Translation,
        events: EventTable,
        copier: PrivateCopier,
        answer_later: Callable[[Request, Answer], None],
    ) -> None:
        private = PrivateRequests(translation, copier, answer_later)
        unanswered = PrivateRequests(translation, copier, answer_later, is_silent=False)
        by_transport: dict[int, Receive] = {
            abi.QPC_TRANSPORT_RC: _reliable(ReceiveSide(queue_pairs, events), translation, private),
            abi.QPC_TRANSPORT_UC: _unreliable(
                UnreliableSide(queue_pairs, events), translation, unanswered
            ),
            abi.QPC_TRANSPORT_XRC_RECV: _xrc(
                XrcSide(queue_pairs, events), shared, translation, private
            ),
        }
        self.receive: Final = tuple(by_transport.get(transport) for transport in range(8))


def _reliable(side: ReceiveSide, translation: Translation, private: PrivateRequests) -> Receive:
    routines = RequestRoutines(side, translation, private)
    own = Responder(side, routines.by_opcode(), routines.reads, _own_domain)
    return own.receive


def _own_domain(qp: QueuePair, request: Request) -> int:
    return qp.context.pd


def _unreliable(
    side: UnreliableSide, translation: Translation, private: PrivateRequests
) -> Receive:
    routines = RequestRoutines(side, translation, private)
    return UnreliableResponder(side, routines.by_opcode(ops.UNRELIABLE_REQUEST)).receive


def _xrc(
    side: XrcSide,
    shared: NumberTable[SharedReceiveQueue],
    translation: Translation,
    private: PrivateRequests,
) -> Receive:
    routines = RequestRoutines(side, translation, private)
    targets = XrcTargets(shared, side)
    aimed = targets.aimed(routines.by_opcode())
    return Responder(side, aimed, routines.reads, targets.domain_of).receive
