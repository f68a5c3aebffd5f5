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
from kernel_proc.hca.device_memory import Piece
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import Completer
from kernel_proc.hca.engine.datagram_sender import DatagramSender
from kernel_proc.hca.engine.pieces import is_shared, reach_elements, store_data
from kernel_proc.hca.engine.private_copier import Copied, CopyJob, PrivateCopier
from kernel_proc.hca.engine.rounds import BYTES_A_RUN, BYTES_A_TURN, Rounds
from kernel_proc.hca.engine.send_entries import SOLICITED, read_send
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.packets import ACKNOWLEDGE, NO_DATA, Answer, Path, Request, make_grh
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.queue_buffer import BufferGone
from kernel_proc.hca.translation import Translation, TranslationFault
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import qp_transitions as states
from shared.doorbell_layout import RING_SEND

_PSN_MASK: Final = ops.PSN_MASK
_LOCAL_READ: Final = ops.LOCAL_READ
_LOCAL_WRITE: Final = ops.LOCAL_WRITE
_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_WHOLE: Final = packets.WHOLE
_SOLICITED: Final = packets.SOLICITED
_SOLICITING: Final = ops.SOLICITING
_RTS: Final = states.RTS

#: What a step answers beside the bytes it moved.
STOP: Final = -1
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
    ) -> None:
        self._queue_pairs: Final = queue_pairs
        self._rounds: Final = rounds
        self._translation: Final = translation
        self._reach: Final = translation.reach
        self._ports: Final = ports
        self._completer: Final = completer
        self._copier: Final = copier
        datagrams = DatagramSender(translation, ports, completer, self._fetch)
        self._steps: Final[tuple[Step, ...]] = (
            self._refuse,
            self._move,
            self._read,
            self._change,
            self._invalidate,
            datagrams.send,
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
        self._completer.failed(qp, ops.LOC_QP_OP_ERR)
        return STOP

    def _move(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Send a chunk of a SEND or an RDMA WRITE."""
        record = out.record
        port = out.port
        if (
            record is None
            or port is None
            or out.context is not qp.context
            or out.port_version != port.version
        ):
            record, port = self._make_record(qp, out)
        shift = record.path[4]
        done = out.done
        length = out.length
        if done:
            flags = 0
            count = length - done
        else:
            flags = _FIRST
            count = length
            if count > out.chunk and not self._check_elements(qp, out, _LOCAL_READ):
                return STOP
        data: memoryview | list[memoryview] | list[Piece]
        if out.fetched is not None:
            data = out.fetched
            count = len(data)
        elif count:
            if count > out.chunk:
                count = min(count, out.chunk >> shift << shift or 1 << shift)
            elements = out.elements
            try:
                if len(elements) == 1:
                    address, _, key = elements[0]
                    data = self._reach(key, qp.context.pd, _LOCAL_READ, address + done, count)
                else:
                    data = reach_elements(
                        self._translation, qp.context.pd, _LOCAL_READ, elements, done, count
                    )
            except TranslationFault:
                self._completer.failed(qp, ops.LOC_PROT_ERR)
                return STOP
            if not isinstance(data, memoryview) and not is_shared(data):
                return self._fetch(qp, out, data)
        else:
            data = NO_DATA
        if done + count == length:
            flags |= _LAST
        run = (count + (1 << shift) - 1) >> shift or 1
        opcode = out.opcode
        if out.flags & SOLICITED and opcode in _SOLICITING:
            flags |= _SOLICITED
        record.opcode = opcode
        record.flags = flags
        record.psn = qp.send_psn
        record.packets = run
        record.length = length
        record.offset = done
        record.imm_data = out.imm_data
        record.address = out.remote_address
        record.rkey = out.rkey
        record.data = data
        out.chunk = count
        answer = port.send(record)
        record.data = NO_DATA
        if answer.kind != ACKNOWLEDGE:
            return self._refused(qp, out, answer)
        return self._arrived(qp, queue, out, run, count, 0)

    def _arrived(
        self, qp: QueuePair, queue: WorkQueue, out: Outgoing, run: int, count: int, byte_len: int
    ) -> int:
        """Go on after an acknowledged run of packets."""
        if not out.busy:
            return STOP  # it was its own responder, and that failed
        qp.send_psn = (qp.send_psn + run) & _PSN_MASK
        out.again = 0
        if out.done + count >= out.length:
            out.fetched = None
            self._completer.succeeded(qp, queue, out, byte_len)
        else:
            self._completer.went_on(qp, out, count)
        return count

    def _refused(self, qp: QueuePair, out: Outgoing, answer: Answer) -> int:
        if not out.busy:
            return STOP
        out.again = out.chunk
        return 0 if self._completer.refused(qp, out, answer) else STOP

    def _read(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Ask for a chunk of an RDMA READ and store what comes."""
        if not qp.context.sra_max:
            return self._refuse(qp, queue, out)
        done = out.done
        if not done and not self._check_elements(qp, out, _LOCAL_WRITE):
            return STOP
        record, port = self._ready_record(qp, out)
        shift = record.path.mtu_shift
        count = out.length - done
        if count > out.chunk:
            count = min(count, out.chunk >> shift << shift or 1 << shift)
        out.chunk = count
        flags = _FIRST if not done else 0
        record.flags = flags | (_LAST if done + count >= out.length else 0)
        record.packets = (count + (1 << shift) - 1) >> shift or 1
        record.offset = done
        answer = port.send(record)
        if answer.kind != ACKNOWLEDGE:
            return self._refused(qp, out, answer)
        return self._take_read(qp, queue, out, answer)

    def _take_read(self, qp: QueuePair, queue: WorkQueue, out: Outgoing, answer: Answer) -> int:
        """Store the answer to a read where the entry says."""
        count = out.chunk
        data = answer.data
        size = len(data) if isinstance(data, memoryview) else sum(map(len, data))
        if size != count:
            self._completer.failed(qp, ops.BAD_RESP_ERR)
            return STOP
        shift = self._ready_record(qp, out)[0].path.mtu_shift
        run = (count + (1 << shift) - 1) >> shift or 1
        try:
            stored = self._store(qp, queue, out, data, run, count)
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return STOP
        if not stored:
            return STOP
        return self._arrived(qp, queue, out, run, count, out.length)

    def _store(
        self,
        qp: QueuePair,
        queue: WorkQueue,
        out: Outgoing,
        data: memoryview | list[memoryview],
        run: int,
        count: int,
    ) -> bool:
        """Put a result into the entry's elements; False if that takes until a copy has ended."""
        if not count:
            return True
        memory = reach_elements(
            self._translation, qp.context.pd, _LOCAL_WRITE, out.elements, out.done, count
        )
        if isinstance(memory, memoryview) or is_shared(memory):
            store_data(memory, data, out.done + count >= out.length)
            return True

        def stored(job: CopyJob) -> None:
            if out.job is not job:
                return
            out.job = None
            out.waiting = False
            if job.failed:
                self._completer.failed(qp, ops.LOC_PROT_ERR)
            else:
                self._arrived(qp, queue, out, run, count, out.length)
                self._rounds.ready(queue)

        out.waiting = True
        held = b"".join(data if isinstance(data, list) else [data])
        out.job = self._copier.write(memory, held, stored, self._users(qp, out))
        return False

    def _change(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Ask for an atomic operation and store the original value."""
        if not qp.context.sra_max:
            return self._refuse(qp, queue, out)
        if not self._check_elements(qp, out, _LOCAL_WRITE):
            return STOP
        record, port = self._ready_record(qp, out)
        out.chunk = ops.ATOMIC_LENGTH
        record.flags = _WHOLE
        record.packets = 1
        record.offset = 0
        answer = port.send(record)
        if answer.kind != ACKNOWLEDGE:
            return self._refused(qp, out, answer)
        return self._take_original(qp, queue, out, answer)

    def _take_original(self, qp: QueuePair, queue: WorkQueue, out: Outgoing, answer: Answer) -> int:
        data = memoryview(answer.value.to_bytes(ops.ATOMIC_LENGTH, "little"))
        try:
            stored = self._store(qp, queue, out, data, 1, ops.ATOMIC_LENGTH)
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return STOP
        if not stored:
            return STOP
        return self._arrived(qp, queue, out, 1, ops.ATOMIC_LENGTH, ops.ATOMIC_LENGTH)

    def _invalidate(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Do LOCAL_INV; every entry before it is complete."""
        if not self._translation.invalidate(out.imm_data, qp.context.pd):
            return self._refuse(qp, queue, out)
        self._completer.succeeded(qp, queue, out, 0)
        return 0

    def answered(self, qpn: int, psn: int, answer: Answer) -> None:
        """Take an answer that comes later than its request's call."""
        qp = self._queue_pairs.find(qpn)
        out = self._completer.answered(qp, psn) if qp is not None else None
        if qp is None or out is None or qp.send is None:
            return
        if answer.kind != ACKNOWLEDGE:
            if self._completer.refused(qp, out, answer):
                self._rounds.ready(qp.send)
            return
        if out.action == ops.READS:
            self._take_read(qp, qp.send, out, answer)
        elif out.action == ops.IS_ATOMIC:
            self._take_original(qp, qp.send, out, answer)
        else:
            count = out.chunk
            shift = self._ready_record(qp, out)[0].path.mtu_shift
            run = (count + (1 << shift) - 1) >> shift or 1
            self._arrived(qp, qp.send, out, run, count, 0)
        self._rounds.ready(qp.send)

    def _check_elements(self, qp: QueuePair, out: Outgoing, rights: int) -> bool:
        """Check all elements before the first byte; a fault ends the entry."""
        pd = qp.context.pd
        try:
            for address, length, key in out.elements:
                self._translation.find(key, pd, rights, address, length)
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return False
        return True

    def _fetch(self, qp: QueuePair, out: Outgoing, pieces: list[Piece]) -> int:
        """Have the next bytes copied out of private memory, and go on then."""

        def fetched(job: CopyJob) -> None:
            if out.job is not job:
                return
            out.job = None
            if job.failed:
                out.waiting = False
                self._completer.failed(qp, ops.LOC_PROT_ERR)
                return
            out.fetched = job.buffer
            self._completer.resume(qp)

        out.waiting = True
        out.job = self._copier.read(pieces, fetched, self._users(qp, out))
        return STOP

    def _users(self, qp: QueuePair, out: Outgoing) -> list[Copied]:
        """Return what must not end before a copy for the entry in hand does."""
        keys = (self._translation.named(key) for _, _, key in out.elements)
        return [qp, *(key for key in keys if key is not None)]

    def _ready_record(self, qp: QueuePair, out: Outgoing) -> tuple[Request, Port]:
        """Return the record with the fields of the entry in hand, but for run and flags."""
        record, port = out.record, out.port
        if (
            record is None
            or port is None
            or out.context is not qp.context
            or out.port_version != port.version
        ):
            record, port = self._make_record(qp, out)
        record.opcode = out.opcode
        record.psn = qp.send_psn
        record.length = out.length
        record.imm_data = out.imm_data
        record.address = out.remote_address
        record.rkey = out.rkey
        record.compare_add = out.compare_add
        record.swap = out.swap
        return record, port

    def _make_record(self, qp: QueuePair, out: Outgoing) -> tuple[Request, Port]:
        """Make the record anew: the queue pair's attributes or the port's tables have changed."""
        context = qp.context
        port = self._ports[context.port - 1]
        grh = b""
        if context.path_grh:
            grh = make_grh(
                port.gid(context.path_sgid_index), context.path_dgid, context.path_flow_label,
                context.path_traffic_class, context.path_hop_limit, 0,
            )  # fmt: skip
        path = Path(
            port.lid, context.path_dlid, context.path_sl, port.pkeys[context.pkey_index],
            context.mtu + ops.MTU_SHIFT, grh,
        )  # fmt: skip
        record = Request(path, context.transport, qp.number, context.remote_qpn)
        out.record = record
        out.context = context
        out.port = port
        out.port_version = port.version
        return record, port
