"""Flushing: in the error states every posted entry completes with WR_FLUSH_ERR, in order.

Send queue and receive queue go separately. Entries of an SRQ are not touched.

Spec: IBA vol. 1, 10.3.1.7 and 10.7.3.1.
"""

from typing import Final

from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.qp_table import QpTable
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import qp_transitions as states
from shared.doorbell_layout import RING_RECEIVE, RING_SEND
from shared.verbs_enums import ibv_wc_status

_FLUSHED: Final = int(ibv_wc_status.IBV_WC_WR_FLUSH_ERR)


class Flusher:
    """The service of queues in the error states."""

    def __init__(self, queue_pairs: QpTable, rounds: Rounds) -> None:
        self._queue_pairs: Final = queue_pairs
        self.flushed = 0
        rounds.serve_with(RING_SEND, states.ERR, self.flush)
        rounds.serve_with(RING_SEND, states.SQE, self.flush)
        rounds.serve_with(RING_RECEIVE, states.ERR, self.flush)

    def flush(self, queue: WorkQueue, most: int, room: int) -> bool:
        """Complete up to `most` entries; True if more are posted."""
        outstanding = queue.outstanding()
        if queue.broken:
            self._queue_pairs.queue_broken(queue)
            return False
        qp = queue.qp
        is_send = queue.kind == RING_SEND
        cq = qp.send_cq if is_send else qp.receive_cq
        count = min(outstanding, most)
        self.flushed += count
        qp.counters.flushes += count
        for _ in range(count):
            position = queue.take()
            if cq is not None and not cq.post(qp.number, position, _FLUSHED, is_send=is_send):
                self._queue_pairs.completion_lost(qp)
        return outstanding > count
