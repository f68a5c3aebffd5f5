"""The requester: takes send entries in order, sends them in chunks, and gives answers on.

One entry of a queue is in hand at a time, so reads and atomics in flight never pass each other and
a fence has nothing to wait for: everything before it is complete. An entry is checked against the
sender's keys as a whole before its first byte goes; a turn moves at most 128 KiB.

Rules: between two turns nothing keeps a view of anybody's memory.
Spec: IBA vol. 1, 9.7 (reliable service), 10.7.2 (entries), 10.8.3 (fence).
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import STOP, Completer, packets_in_hand
from kernel_proc.hca.engine.datagram_sender import DatagramSender
from kernel_proc.hca.engine.pieces import is_shared, reach_elements
from kernel_proc.hca.engine.private_copier import PrivateCopier
from kernel_proc.hca.engine.remote_reads import RemoteReads
from kernel_proc.hca.engine.rounds import BYTES_A_RUN, BYTES_A_TURN, Rounds
from kernel_proc.hca.engine.send_entries import SOLICITED, read_send
from kernel_proc.hca.engine.send_records import SendRecords
from kernel_proc.hca.engine.sender_memory import SenderMemory
from kernel_proc.hca.engine.windows import Windows
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import ACKNOWLEDGE, NO_DATA, Answer, Data
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.queue_buffer import BufferGone
from kernel_proc.hca.translation import Translation
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import qp_transitions as states
from shared.doorbell_layout import RING_SEND

_LOCAL_READ: Final = ops.LOCAL_READ
_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_SOLICITED: Final = packets.SOLICITED
_SOLICITING: Final = ops.SOLICITING
_RTS: Final = states.RTS

#: Does a piece of the entry in hand; returns bytes moved, or STOP.
Step = Callable[[QueuePair, WorkQueue, Outgoing], int]


class Requester:
    """The service of send queues in RTS and, for what was started, in SQD."""

    def __init__(
        self,
        queue_pairs: QpTable,
        rounds: Rounds,
        translation: Translation,
        ports: list[Port],
        completer: Completer,
        copier: PrivateCopier,
        windows: Windows,
    ) -> None:
        self._queue_pairs: Final = queue_pairs
        self._rounds: Final = rounds
        self._translation: Final = translation
        self._reach: Final = translation.reach
        self._completer: Final = completer
        self._arrived: Final = completer.arrived
        self._records: Final = SendRecords(ports)
        self._memory: Final = SenderMemory(translation, rounds, completer, copier)
        self._reads: Final = RemoteReads(self._records, self._memory, completer)
        datagrams = DatagramSender(translation, ports, completer, self._memory.fetch)
        self._steps: Final[tuple[Step, ...]] = (
            self._refuse,
            self._move,
            self._reads.read,
            self._reads.change,
            windows.invalidate,
            datagrams.send,
            windows.bind,
        )
        rounds.serve_with(RING_SEND, states.RTS, self.serve)
        rounds.serve_with(RING_SEND, states.SQD, self.serve)

    def serve(self, queue: WorkQueue, most: int, room: int) -> bool:
        """Do up to `most` entries or `room` bytes; True if there is more to do now."""
        qp = queue.qp
        out = qp.outgoing
        if out.waiting:
            return False
        posted = queue.outstanding()
        if queue.broken:
            self._queue_pairs.queue_broken(queue)
            return False
        steps = self._steps
        rounds = self._rounds
        rounds.long_turn = False
        while posted:
            if not out.busy:
                if qp.state != _RTS:
                    return False  # what was posted since then is not started
                try:
                    status = read_send(queue, out)
                except BufferGone:
                    self._queue_pairs.queue_broken(queue)
                    return False
                if status:
                    self._completer.failed(qp, status)
                    return False
            out.chunk = out.again or (BYTES_A_RUN if room > BYTES_A_RUN else room)
            moved = steps[out.action](qp, queue, out)
            if moved < 0:
                return False
            room -= moved
            if not out.busy:
                posted -= 1
                most -= 1
            if moved > BYTES_A_TURN:
                rounds.long_turn = True
                if rounds.others_wait(queue.page):
                    return posted > 0
            if room <= 0 or most <= 0:
                return posted > 0
        return False

    def _refuse(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        return self._fail(qp, ops.LOC_QP_OP_ERR)

    def _fail(self, qp: QueuePair, status: int) -> int:
        self._completer.failed(qp, status)
        return STOP

    def _move(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Send a chunk of a SEND or an RDMA WRITE."""
        record, port = out.record, out.port
        if (
            record is None
            or port is None
            or out.context is not qp.context
            or out.port_version != port.version
        ):
            record, port = self._records.make(qp, out)
        shift = record.path[4]
        done = out.done
        flags = 0 if done else _FIRST
        count = out.length - done
        if count > out.chunk:
            count = self._cut(qp, out, shift, count)
            if not count:
                return STOP
        data: Data = NO_DATA
        if out.fetched is not None:
            data = out.fetched
            count = len(data)
        elif count:
            elements = out.elements
            try:
                if len(elements) == 1:
                    address, _, key = elements[0]
                    memory = self._reach(key, qp.context.pd, _LOCAL_READ, address + done, count)
                else:
                    memory = reach_elements(
                        self._translation, qp.context.pd, _LOCAL_READ, elements, done, count
                    )
            except TranslationFault:
                return self._fail(qp, ops.LOC_PROT_ERR)
            if not isinstance(memory, memoryview) and not is_shared(memory):
                return self._memory.fetch(qp, out, memory)
            data = memory
        if done + count == out.length:
            flags |= _LAST
        run = (count + (1 << shift) - 1) >> shift or 1
        if out.flags & SOLICITED and out.opcode in _SOLICITING:
            flags |= _SOLICITED
        record.opcode = out.opcode
        record.flags = flags
        record.psn = qp.send_psn
        record.packets = run
        record.length = out.length
        record.offset = done
        record.imm_data = out.imm_data
        record.address = out.remote_address
        record.rkey = out.rkey
        record.srqn = out.srqn
        record.data = data
        out.chunk = count
        answer = port.send(record)
        record.data = NO_DATA
        if answer.kind != ACKNOWLEDGE:
            return self._completer.not_acknowledged(qp, queue, out, answer)
        return self._arrived(qp, queue, out, run, count, 0)

    def _cut(self, qp: QueuePair, out: Outgoing, shift: int, count: int) -> int:
        """Return how many bytes go in this run of a longer message; 0 if an element is no good."""
        if not out.done and not self._memory.check(qp, out, _LOCAL_READ):
            return 0
        return min(count, out.chunk >> shift << shift or 1 << shift)

    def answered(self, qpn: int, psn: int, answer: Answer) -> None:
        """Take an answer that comes later than its request's call."""
        qp = self._queue_pairs.find(qpn)
        out = self._completer.answered(qp, psn) if qp is not None else None
        if qp is None or out is None or qp.send is None:
            return
        queue = qp.send
        if answer.kind != ACKNOWLEDGE:
            self._completer.not_acknowledged(qp, queue, out, answer)
        elif out.action == ops.READS:
            self._reads.take_read(qp, queue, out, answer)
        elif out.action == ops.IS_ATOMIC:
            self._reads.take_original(qp, queue, out, answer)
        else:
            self._arrived(qp, queue, out, packets_in_hand(out), out.chunk, 0)
        if not out.waiting:
            self._rounds.ready(queue)
