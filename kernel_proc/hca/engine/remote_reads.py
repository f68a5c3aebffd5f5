"""RDMA READs and atomics at their requester: ask, and put what comes where the entry says.

Spec: IBA vol. 1, 9.7.5.1.6 and 9.7.5.1.7; `max_rd_atomic` 0 forbids both.
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import STOP, Completer, packets_in_hand
from kernel_proc.hca.engine.send_records import SendRecords
from kernel_proc.hca.engine.sender_memory import SenderMemory
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.packets import ACKNOWLEDGE, Answer
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.work_queue import WorkQueue

_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_LOCAL_WRITE: Final = ops.LOCAL_WRITE


class RemoteReads:
    """The steps of entries that have a result."""

    def __init__(self, records: SendRecords, memory: SenderMemory, completer: Completer) -> None:
        self._records: Final = records
        self._memory: Final = memory
        self._completer: Final = completer

    def read(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Ask for a chunk of an RDMA READ and store what comes."""
        if not self._may(qp):
            return STOP
        done = out.done
        if not done and not self._memory.check(qp, out, _LOCAL_WRITE):
            return STOP
        record, port = self._records.ready(qp, out)
        shift = record.path.mtu_shift
        count = out.length - done
        if count > out.chunk:
            count = min(count, out.chunk >> shift << shift or 1 << shift)
        out.chunk = count
        flags = _FIRST if not done else 0
        record.flags = flags | (_LAST if done + count >= out.length else 0)
        record.packets = packets_in_hand(out)
        record.offset = done
        answer = port.send(record)
        if answer.kind != ACKNOWLEDGE:
            return self._completer.not_acknowledged(qp, queue, out, answer)
        return self.take_read(qp, queue, out, answer)

    def take_read(self, qp: QueuePair, queue: WorkQueue, out: Outgoing, answer: Answer) -> int:
        """Store the answer to a read where the entry says."""
        count = out.chunk
        data = answer.data
        size = len(data) if isinstance(data, memoryview) else sum(map(len, data))
        if size != count:
            self._completer.failed(qp, ops.BAD_RESP_ERR)
            return STOP
        run = packets_in_hand(out)
        return self._memory.put_result(qp, queue, out, data, run, count)

    def change(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Ask for an atomic operation and store the original value."""
        if not self._may(qp) or not self._memory.check(qp, out, _LOCAL_WRITE):
            return STOP
        record, port = self._records.ready(qp, out)
        out.chunk = ops.ATOMIC_LENGTH
        record.flags = packets.WHOLE
        record.packets = 1
        record.offset = 0
        answer = port.send(record)
        if answer.kind != ACKNOWLEDGE:
            return self._completer.not_acknowledged(qp, queue, out, answer)
        return self.take_original(qp, queue, out, answer)

    def take_original(self, qp: QueuePair, queue: WorkQueue, out: Outgoing, answer: Answer) -> int:
        """Store what an atomic found where the entry says."""
        data = memoryview(answer.value.to_bytes(ops.ATOMIC_LENGTH, "little"))
        return self._memory.put_result(qp, queue, out, data, 1, ops.ATOMIC_LENGTH)

    def _may(self, qp: QueuePair) -> bool:
        if qp.context.sra_max:
            return True
        self._completer.failed(qp, ops.LOC_QP_OP_ERR)
        return False
