"""Datagrams that arrive: Q_Key, receive entry, 40 bytes for the GRH, payload, completion.

A datagram that cannot be taken is dropped and counted, and its entry stays where it is; the sender
is never told.

Spec: IBA vol. 1, 9.8.3 and 10.2.5; 40 bytes lie before every payload, valid if a GRH came.
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.device_memory import Piece, PrivateRun
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.pieces import is_shared, reach_elements, store_data
from kernel_proc.hca.engine.private_copier import Copied, CopyJob, PrivateCopier
from kernel_proc.hca.engine.receive_entries import read_receive
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import GRH_SIZE, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.queue_buffer import BufferGone
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi import qp_transitions as states
from shared.verbs_enums import ibv_wc_flags

_MOST_KEPT: Final = 64
_GRH: Final = int(ibv_wc_flags.IBV_WC_GRH)
_WITH_IMM: Final = int(ibv_wc_flags.IBV_WC_WITH_IMM)


class DatagramReceiver:
    """Serves datagrams that came to a queue pair through its port and partition."""

    def __init__(
        self, queue_pairs: QpTable, translation: Translation, copier: PrivateCopier
    ) -> None:
        self._queue_pairs: Final = queue_pairs
        self._translation: Final = translation
        self._copier: Final = copier

    def receive(self, port: Port, qp: QueuePair, request: Request) -> None:
        """Take a datagram, or drop it."""
        if request.qkey != qp.context.qkey:
            port.count_bad_qkey()
            qp.counters.drops["Q_Key"] += 1
            return
        incoming = qp.incoming
        if incoming.job is not None:
            self._keep(qp, incoming, request)
            return
        ring = qp.srq if qp.srq is not None else qp.receive
        if ring is None or not ring.outstanding():
            if qp.receive is not None and qp.receive.broken:
                self._queue_pairs.queue_broken(qp.receive)
            qp.counters.drops["no receive entry"] += 1
            return
        # The entry is looked at where it is: a datagram that is too long leaves it there.
        try:
            is_good = read_receive(ring, ring.head, incoming)
        except BufferGone:
            if qp.receive is not None:
                self._queue_pairs.queue_broken(qp.receive)
            return
        if is_good and incoming.room < GRH_SIZE + request.length:
            qp.counters.drops["longer than the receive entry"] += 1
            return
        if qp.srq is not None:
            position = qp.srq.next_entry()
            if position is None:
                return
            incoming.srq = qp.srq
            incoming.srq_position = position
        if not is_good:
            self._fail(qp, incoming, ops.LOC_QP_OP_ERR)
            return
        self._store(port, qp, incoming, request)

    @staticmethod
    def _keep(qp: QueuePair, incoming: Incoming, request: Request) -> None:
        """Let a datagram wait until the one before it is stored."""
        if len(incoming.backlog) >= _MOST_KEPT:
            qp.counters.drops["too many at once"] += 1
            return
        held = request.copied()
        held.data = memoryview(request.payload())
        incoming.backlog.append(held)

    def _store(self, port: Port, qp: QueuePair, incoming: Incoming, request: Request) -> None:
        pd = qp.srq.context.pd if qp.srq is not None else qp.context.pd
        grh = request.path.grh
        length = request.length
        try:
            head = reach_elements(
                self._translation, pd, ops.LOCAL_WRITE, incoming.elements, 0, GRH_SIZE
            )
            body: memoryview | list[Piece] = packets.NO_DATA
            if length:
                body = reach_elements(
                    self._translation, pd, ops.LOCAL_WRITE, incoming.elements, GRH_SIZE, length
                )
        except TranslationFault:
            self._fail(qp, incoming, ops.LOC_PROT_ERR)
            return
        if (isinstance(head, memoryview) or is_shared(head)) and (
            isinstance(body, memoryview) or is_shared(body)
        ):
            if grh:
                store_data(head, memoryview(grh), False)
            if length:
                store_data(body, request.data, True)
            self._complete(port, qp, incoming, request)
            return
        pieces: list[Piece] = [*_pieces(head), *_pieces(body)] if grh else _pieces(body)
        if not any(isinstance(piece, PrivateRun) for piece in pieces):
            self._complete(port, qp, incoming, request)  # private are the 40 bytes alone
            return
        self._store_private(port, qp, incoming, request, pieces)

    def _store_private(
        self, port: Port, qp: QueuePair, incoming: Incoming, request: Request, pieces: list[Piece]
    ) -> None:
        held = request.copied()

        def done(job: CopyJob) -> None:
            if incoming.job is not job:
                return
            incoming.job = None
            if job.failed:
                self._fail(qp, incoming, ops.LOC_PROT_ERR)
            else:
                self._complete(port, qp, incoming, held)
            while incoming.backlog and incoming.job is None:
                self.receive(port, qp, incoming.backlog.popleft())

        named = (self._translation.named(key) for _, _, key in incoming.elements)
        users: list[Copied] = [qp, *(key for key in named if key is not None)]
        data = request.path.grh + request.payload()
        incoming.job = self._copier.write(pieces, data, done, users)

    def _complete(self, port: Port, qp: QueuePair, incoming: Incoming, request: Request) -> None:
        flags = _GRH if request.path.grh else 0
        if request.opcode == ops.SEND_WITH_IMM:
            flags |= _WITH_IMM
        qp.counters.received_messages += 1
        qp.counters.received_bytes += request.length
        srqn = 0
        if incoming.srq_position >= 0 and qp.srq is not None:
            incoming.srq_position = -1
            srqn = qp.srq.number
        elif qp.receive is not None:
            qp.receive.take()
        path = request.path
        cq = qp.receive_cq
        if cq is None or not cq.add(
            qp.number, incoming.position, GRH_SIZE + request.length,
            request.imm_data if flags & _WITH_IMM else 0, request.source_qpn, ops.RECEIVED, 0, 0,
            0, flags, path.slid, 0, path.sl, path.dlid & port.path_bits, srqn,
            1 if request.flags & packets.SOLICITED else 0,
        ):  # fmt: skip
            self._queue_pairs.completion_lost(qp)

    def _fail(self, qp: QueuePair, incoming: Incoming, status: int) -> None:
        """End the entry in hand with an error, which takes the queue pair out of service."""
        srqn = 0
        if incoming.srq_position >= 0 and qp.srq is not None:
            incoming.srq_position = -1
            srqn = qp.srq.number
        elif qp.receive is not None:
            qp.receive.take()
        if qp.receive_cq is not None:
            qp.receive_cq.post(qp.number, incoming.position, status, is_send=0, srqn=srqn)
        self._queue_pairs.set_state(qp, states.ERR)


def _pieces(memory: memoryview | list[Piece]) -> list[Piece]:
    return [memory] if isinstance(memory, memoryview) else memory
