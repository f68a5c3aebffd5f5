"""The receive entries of a queue pair: taking them, ending them well or not, and what tells of it.

An error that ends an entry is reported by its completion; one that ends none, by an event. Either
takes the queue pair out of service.

Spec: IBA vol. 1, 9.9.3 and 10.2.9; docs/engine.md.
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.receive_entries import read_receive
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.packets import (
    ACK,
    INVALID_REQUEST,
    NOT_READY,
    NOTHING,
    REMOTE_ACCESS_ERROR,
    REMOTE_OPERATION_ERROR,
    Answer,
    Request,
)
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.queue_buffer import BufferGone
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca_abi import qp_transitions as states
from kernel_proc.hca_abi.event_entries import (
    EVENT_ACCESS_ERROR,
    EVENT_COMMUNICATION_ESTABLISHED,
    EVENT_INVALID_REQUEST,
)

_WORD_MASK: Final = ops.WORD_MASK
_SOLICITED: Final = packets.SOLICITED
_WC_FLAGS: Final = ops.WC_FLAGS

#: Why `take_entry` has none.
NO_ENTRY: Final = -1
BAD_ENTRY: Final = -2


class ReceiveSide:
    """Receive entries and errors of connected queue pairs."""

    def __init__(self, queue_pairs: QpTable, events: EventTable) -> None:
        self._queue_pairs: Final = queue_pairs
        self._events: Final = events

    def established(self, qp: QueuePair, incoming: Incoming) -> None:
        """Tell the owner of a queue pair in RTR, once, that its peer has begun."""
        incoming.established = True
        self._events.queue_pair(EVENT_COMMUNICATION_ESTABLISHED, qp.number)

    def take_entry(self, qp: QueuePair, incoming: Incoming) -> int:
        """Have the next receive entry in hand; 0, or why there is none.

        An entry of the own queue stays there until it completes; one of a shared queue is taken.
        """
        srq = qp.srq
        if srq is not None:
            return self._take_shared(srq, incoming)
        queue = qp.receive
        if queue is None or not queue.outstanding():
            if queue is not None and queue.broken:
                self._queue_pairs.queue_broken(queue)
            return NO_ENTRY
        try:
            return 0 if read_receive(queue, queue.head, incoming) else BAD_ENTRY
        except BufferGone:
            self._queue_pairs.queue_broken(queue)
            return NO_ENTRY

    @staticmethod
    def _take_shared(srq: SharedReceiveQueue, incoming: Incoming) -> int:
        if not srq.alive:
            return NO_ENTRY
        taken = srq.next_entry()
        if taken is None:
            return NO_ENTRY
        try:
            is_good = read_receive(srq, taken, incoming)
        except BufferGone:
            is_good = False
            incoming.position = taken
        incoming.srq = srq
        incoming.srq_position = taken
        return 0 if is_good else BAD_ENTRY

    def not_ready(self, qp: QueuePair) -> Answer:
        """Ask for another try after the queue pair's own delay."""
        if qp.state == states.ERR:
            return NOTHING  # its queue was found broken
        qp.counters.rnr_naks_sent += 1
        return NOT_READY[qp.context.min_rnr_timer]

    def complete(
        self, qp: QueuePair, incoming: Incoming, request: Request, opcode: int, length: int
    ) -> Answer:
        """End the message and its entry well."""
        incoming.opcode = -1
        counters = qp.counters
        counters.received_messages += 1
        counters.received_bytes += length
        position, source = incoming.position, request.source_qpn
        wc_flags = _WC_FLAGS[request.opcode]
        solicited = 1 if request.flags & _SOLICITED else 0
        cq, srq = qp.receive_cq, incoming.srq
        if srq is None:
            if qp.receive is not None:
                qp.receive.head = (position + 1) & _WORD_MASK
            if cq is not None and not wc_flags and not solicited:
                if cq.add_plain(qp.number, position, length, source, opcode, 0):
                    return ACK
                return self._lost(qp)
            srqn = 0
        else:
            incoming.srq_position = -1
            srqn = srq.number
            cq = cq or srq.cq
        if cq is not None and cq.add(
            qp.number, position, length, request.imm_data if wc_flags else 0, source, opcode,
            0, 0, 0, wc_flags, 0, 0, 0, 0, srqn, solicited,
        ):  # fmt: skip
            return ACK
        return self._lost(qp)

    def _lost(self, qp: QueuePair) -> Answer:
        self._queue_pairs.completion_lost(qp)
        return NOTHING

    # What fails

    def fail_entry(self, qp: QueuePair, incoming: Incoming, status: int) -> None:
        """End the entry in hand with an error, which takes the queue pair out of service."""
        if incoming.srq_position >= 0:
            self._end_shared(qp, incoming, status)
        elif qp.receive is not None and qp.receive_cq is not None:
            position = qp.receive.take()
            qp.receive_cq.post(qp.number, position, status, is_send=0)
        self._queue_pairs.set_state(qp, states.ERR)

    @staticmethod
    def _end_shared(qp: QueuePair, incoming: Incoming, status: int) -> None:
        """End an entry that was taken of a shared queue with an error."""
        srq, position = incoming.srq, incoming.srq_position
        incoming.srq_position = -1
        if srq is None:
            return
        cq = qp.receive_cq or srq.cq
        if cq is not None:
            cq.post(qp.number, position, status, is_send=0, srqn=srq.number)

    def invalid(self, qp: QueuePair) -> Answer:
        """Refuse a request that no entry reports; an event does."""
        self._events.queue_pair(EVENT_INVALID_REQUEST, qp.number)
        self._queue_pairs.set_state(qp, states.ERR)
        return INVALID_REQUEST

    def access_error(self, qp: QueuePair) -> Answer:
        """Refuse an access that a key does not grant and no entry reports; an event does."""
        self._events.queue_pair(EVENT_ACCESS_ERROR, qp.number)
        self._queue_pairs.set_state(qp, states.ERR)
        return REMOTE_ACCESS_ERROR

    def bad_entry(self, qp: QueuePair, incoming: Incoming) -> Answer:
        """End an entry that cannot be, and the message with it."""
        self.fail_entry(qp, incoming, ops.LOC_QP_OP_ERR)
        return REMOTE_OPERATION_ERROR


def is_too_long(request: Request, mtu_shift: int) -> bool:
    """Say whether packets are longer than the smaller of two MTUs that should be one."""
    return request.opcode in ops.WITH_INLINE and request.length > 1 << mtu_shift
