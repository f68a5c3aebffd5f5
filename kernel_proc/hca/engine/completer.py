"""What becomes of send entries: answers, retries, timeouts, and the completions they end in.

An entry leaves its queue when it completes: a reliable one when it is acknowledged, one of UC when
it is sent, since its sender hears of nothing but a link that is busy. Retries are counted from
where something last went on: `retry_cnt` of them after a timeout or a sequence NAK, `rnr_retry`
after RNR NAKs (7: for ever).

Spec: IBA vol. 1, 9.7.5 and 9.7.6 (requester), 10.7.3 (completions).
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.deadlines import Deadlines
from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.engine.send_entries import SIGNALED
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.packets import Answer
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as states

_COMPLETED_AS: Final = ops.COMPLETED_AS
_WORD_MASK: Final = ops.WORD_MASK
_PSN_MASK: Final = ops.PSN_MASK
_RTS: Final = states.RTS
_FAILED: Final = {
    packets.NAK_INVALID_REQUEST: ops.REM_INV_REQ_ERR,
    packets.NAK_REMOTE_ACCESS: ops.REM_ACCESS_ERR,
    packets.NAK_REMOTE_OPERATION: ops.REM_OP_ERR,
}
_UC: Final = abi.QPC_TRANSPORT_UC
_TO_SEND_ERROR: Final = (abi.QPC_TRANSPORT_UD, _UC)

#: What a step of the requester answers, instead of bytes moved, when nothing goes on now.
STOP: Final = -1


class Completer:
    """Ends send entries, or has them tried again."""

    def __init__(
        self,
        queue_pairs: QpTable,
        rounds: Rounds,
        deadlines: Deadlines,
        clock_ns: Callable[[], int],
    ) -> None:
        self._queue_pairs: Final = queue_pairs
        self._rounds: Final = rounds
        self._deadlines: Final = deadlines
        self._clock_ns: Final = clock_ns

    def succeeded(self, qp: QueuePair, queue: WorkQueue, out: Outgoing, byte_len: int) -> None:
        """End the entry in hand well."""
        position = queue.head
        queue.head = (position + 1) & _WORD_MASK
        out.busy = False
        counters = qp.counters
        counters.sent_messages += 1
        counters.sent_bytes += out.length
        if out.flags & SIGNALED:
            cq = qp.send_cq
            if cq is not None and not cq.add_plain(
                qp.number, position, byte_len, 0, _COMPLETED_AS[out.opcode], 1
            ):
                self._queue_pairs.completion_lost(qp)
        if qp.draining:
            self._queue_pairs.drained(qp)

    def arrived(
        self, qp: QueuePair, queue: WorkQueue, out: Outgoing, run: int, count: int, byte_len: int
    ) -> int:
        """Go on after a run of packets that arrived, or that nobody will tell of."""
        if not out.busy:
            return STOP  # it was its own responder, and that failed
        qp.send_psn = (qp.send_psn + run) & _PSN_MASK
        out.again = 0
        if out.done + count >= out.length:
            out.fetched = None
            self.succeeded(qp, queue, out, byte_len)
        else:
            self.went_on(qp, out, count)
        return count

    def not_acknowledged(
        self, qp: QueuePair, queue: WorkQueue, out: Outgoing, answer: Answer
    ) -> int:
        """Go on, or not, after a run that was answered with anything but ACK."""
        if not out.busy:
            return STOP
        if qp.context.transport == _UC and answer.kind != packets.WAIT:
            return self.arrived(qp, queue, out, packets_in_hand(out), out.chunk, 0)
        out.again = out.chunk
        return 0 if self.refused(qp, out, answer) else STOP

    def went_on(self, qp: QueuePair, out: Outgoing, count: int) -> None:
        """Note that a chunk that is not the last of its message has arrived."""
        out.done += count
        out.fetched = None
        out.retries = out.rnr_retries = 0

    def failed(self, qp: QueuePair, status: int) -> None:
        """End the entry at the head with an error; what is behind it will be flushed."""
        queue = qp.send
        if queue is None:
            return
        position = queue.take()
        if qp.send_cq is not None:
            qp.send_cq.post(qp.number, position, status, is_send=1)
        unreliable = qp.context.transport in _TO_SEND_ERROR
        qp.outgoing.stop()
        self._queue_pairs.set_state(qp, states.SQE if unreliable else states.ERR)

    def refused(self, qp: QueuePair, out: Outgoing, answer: Answer) -> bool:
        """Take an answer that is no ACK; True if the same is to be sent again at once."""
        kind = answer.kind
        if kind == packets.SILENCE:
            self._wait_for_answer(qp, out)
        elif kind == packets.WAIT:
            self._wait_for_answer(qp, out)
            out.timed_out = False  # it is asked again after the timeout, which is no retry
            out.retries = 0
        elif kind == packets.NAK_NOT_READY:
            self._wait_for_receiver(qp, out, answer.value)
        elif kind == packets.NAK_SEQUENCE:
            return self._retry(qp, out)
        else:
            self.failed(qp, _FAILED.get(kind, ops.BAD_RESP_ERR))
        return False

    def _wait_for_answer(self, qp: QueuePair, out: Outgoing) -> None:
        out.waiting = True
        out.answer_due = True
        code = qp.context.ack_timeout
        timeout = ops.timeout_ns(ops.BUSY_LINK_TIMEOUT if qp.context.transport == _UC else code)
        if timeout:
            out.timed_out = True
            self._deadlines.set(qp, self._clock_ns() + timeout)

    def _wait_for_receiver(self, qp: QueuePair, out: Outgoing, code: int) -> None:
        qp.counters.rnr_naks_received += 1
        allowed = qp.context.rnr_retry
        if allowed != ops.RNR_FOR_EVER and out.rnr_retries >= allowed:
            self.failed(qp, ops.RNR_RETRY_EXC_ERR)
            return
        out.rnr_retries += 1
        out.retries = 0  # somebody answers
        out.waiting = True
        self._deadlines.set(qp, self._clock_ns() + ops.RNR_DELAYS_NS[code & 31])

    def _retry(self, qp: QueuePair, out: Outgoing) -> bool:
        if out.retries >= qp.context.retry_count:
            self.failed(qp, ops.RETRY_EXC_ERR)
            return False
        out.retries += 1
        qp.counters.retries += 1
        return True

    def resume(self, qp: QueuePair) -> None:
        """Go on with an entry whose deadline has come, or whose copy has ended.

        Until it is its turn the answer may still come, and then it is not sent again: a responder
        of UC would take it for a new message.
        """
        out = qp.outgoing
        if not out.busy or not out.waiting or qp.send is None:
            return
        out.waiting = False
        if out.timed_out:
            out.timed_out = False
            qp.counters.timeouts += 1
            if not self._retry(qp, out):
                return
        self._rounds.ready(qp.send)

    def answered(self, qp: QueuePair, psn: int) -> Outgoing | None:
        """Take a late answer, if it is still waited for; return what it is for."""
        out = qp.outgoing
        if not out.answer_due or psn != qp.send_psn:
            return None
        out.waiting = out.answer_due = out.timed_out = False
        out.deadline_ns = 0
        return out


def packets_in_hand(out: Outgoing) -> int:
    """Return how many packets the last run of an entry was, or is to be."""
    assert out.record is not None
    shift = out.record.path.mtu_shift
    return (out.chunk + (1 << shift) - 1) >> shift or 1
