"""The responder of connected queue pairs: checks in one order, executes, completes, answers.

1 PSN, 2 sequence of first and last, 3 right of the queue pair, 4 resources, 5 length, 6 key, 7 the
execution itself, 8 completion, 9 acknowledgement. The first that fails decides the answer.

Rules: knows its own queue pair and the record, nothing else; memory is checked before it is
touched, and no byte outside what the key grants is.
Spec: IBA vol. 1, 9.7.4 and 9.9.3 (responder); verbs semantics of each failure in docs/engine.md.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.device_memory import Piece, PrivateRun
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.pieces import is_shared, reach_elements, store, store_data
from kernel_proc.hca.engine.private_copier import Copied, CopyJob, PrivateCopier
from kernel_proc.hca.engine.receive_side import NO_ENTRY, ReceiveSide
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.in_hand import Executed, Incoming
from kernel_proc.hca.packets import (
    ACK,
    IN_HAND,
    INVALID_REQUEST,
    NOTHING,
    REMOTE_ACCESS_ERROR,
    REMOTE_OPERATION_ERROR,
    SEQUENCE_ERROR,
    Answer,
    Request,
)
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca.translation import Translation, TranslationFault
from kernel_proc.hca_abi import qp_transitions as states
from kernel_proc.hca_abi.event_entries import EVENT_COMMUNICATION_ESTABLISHED

_PSN_MASK: Final = ops.PSN_MASK
_LONGEST: Final = ops.LONGEST_MESSAGE
_OPCODES: Final = ops.OPCODES
_PSN_HALF: Final = 1 << 23
_WORD_MASK: Final = ops.WORD_MASK
_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_QP_RIGHTS: Final = ops.QP_RIGHTS
_LOCAL_WRITE: Final = ops.LOCAL_WRITE
_REMOTE_WRITE: Final = ops.REMOTE_WRITE
_SEND_WITH_INV: Final = ops.SEND_WITH_INV
_WRITE_WITH_IMM: Final = ops.RDMA_WRITE_WITH_IMM
_RTR: Final = states.RTR
_SILENCE: Final = packets.SILENCE


class Responder:
    """Serves requests that arrive at reliable connected queue pairs."""

    def __init__(
        self,
        queue_pairs: QpTable,
        translation: Translation,
        events: EventTable,
        copier: PrivateCopier,
        answer_later: Callable[[Request, Answer], None],
    ) -> None:
        self._translation: Final = translation
        self._reach: Final = translation.reach
        self._events: Final = events
        self._copier: Final = copier
        self._answer_later: Final = answer_later
        side = ReceiveSide(queue_pairs, events)
        self._take_entry: Final = side.take_entry
        self._complete: Final = side.complete
        self._not_ready: Final = side.not_ready
        self._bad_entry: Final = side.bad_entry
        self._fail_entry: Final = side.fail_entry
        self._invalid: Final = side.invalid
        self._access_error: Final = side.access_error
        kinds: dict[int, Callable[[QueuePair, Incoming, Request], Answer]] = {
            **dict.fromkeys(ops.SENDS, self._take_send),
            **dict.fromkeys(ops.WRITES, self._take_write),
            ops.RDMA_READ: self._read,
            **dict.fromkeys(ops.ATOMICS, self._change),
        }
        self._routines: Final = tuple(
            kinds.get(opcode, self._unknown) for opcode in range(ops.OPCODES)
        )

    def receive(self, port: Port, qp: QueuePair, request: Request) -> Answer:
        """Take a request that came to a queue pair in RTR, RTS or SQD, over its own path."""
        incoming = qp.incoming
        if request.psn != qp.receive_psn:
            return self._out_of_sequence(qp, incoming, request)
        if incoming.job is not None:
            return IN_HAND  # the same again, while it is being executed
        incoming.nak_sent = False
        if qp.state == _RTR and not incoming.established:
            incoming.established = True
            self._events.queue_pair(EVENT_COMMUNICATION_ESTABLISHED, qp.number)
        opcode = request.opcode
        if opcode >= _OPCODES or incoming.opcode != (-1 if request.flags & _FIRST else opcode):
            return self._invalid(qp)
        if incoming.other_mtu and _is_too_long(request, incoming.other_mtu):
            return self._invalid(qp)
        if _QP_RIGHTS[opcode] & ~incoming.access:
            return self._invalid(qp)
        answer = self._routines[opcode](qp, incoming, request)
        if not answer.kind:
            qp.receive_psn = (request.psn + request.packets) & _PSN_MASK
        return answer

    def _unknown(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        return self._invalid(qp)

    # 1: PSN

    def _out_of_sequence(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Answer a duplicate again; ahead of what is expected, ask once to go back."""
        if (request.psn - qp.receive_psn) & _PSN_MASK < _PSN_HALF:
            if incoming.nak_sent:
                qp.counters.drops["PSN ahead"] += 1
                return NOTHING
            incoming.nak_sent = True
            return SEQUENCE_ERROR
        opcode = request.opcode
        if (qp.receive_psn - request.psn) & _PSN_MASK < request.packets:
            qp.counters.drops["half a duplicate"] += 1
            return NOTHING
        if opcode in ops.SENDS or opcode in ops.WRITES:
            return ACK
        for executed in incoming.executed:
            if executed.psn == request.psn and executed.opcode == opcode:
                return self._execute_again(qp, request, executed)
        qp.counters.drops["duplicate unknown"] += 1
        return NOTHING

    def _execute_again(self, qp: QueuePair, request: Request, executed: Executed) -> Answer:
        """Read once more what was asked for then; an atomic is answered, not executed."""
        if executed.opcode != ops.RDMA_READ:
            return Answer(packets.ACKNOWLEDGE, executed.original)
        if (request.address, request.rkey) != (executed.address, executed.rkey):
            qp.counters.drops["duplicate unknown"] += 1
            return NOTHING
        count = self._read_count(request)
        try:
            memory = self._translation.reach(
                request.rkey, qp.context.pd, ops.REMOTE_READ, request.address + request.offset,
                count,
            )  # fmt: skip
        except TranslationFault:
            return self._access_error(qp)
        if isinstance(memory, memoryview) or is_shared(memory):
            return Answer(packets.ACKNOWLEDGE, 0, memory)
        qp.counters.drops["duplicate of private memory"] += 1
        return NOTHING

    # SEND

    def _take_send(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        flags = request.flags
        if flags & _FIRST:
            none = self._take_entry(qp, incoming)
            if none:
                if none == NO_ENTRY:
                    return self._not_ready(qp)
                return self._bad_entry(qp, incoming)
            if request.length > incoming.room or request.length > ops.LONGEST_MESSAGE:
                self._fail_entry(qp, incoming, ops.LOC_LEN_ERR)
                return INVALID_REQUEST
            incoming.offset = 0
        data = request.data
        size = len(data) if isinstance(data, memoryview) else sum(map(len, data))
        if request.offset != incoming.offset or size > request.length - incoming.offset:
            return self._cut_short(qp, incoming)
        if size:
            try:
                memory = reach_elements(
                    self._translation, qp.srq.context.pd if qp.srq else incoming.pd,
                    _LOCAL_WRITE, incoming.elements, incoming.offset, size,
                )  # fmt: skip
            except TranslationFault:
                self._fail_entry(qp, incoming, ops.LOC_PROT_ERR)
                return REMOTE_OPERATION_ERROR
            if isinstance(memory, memoryview) and isinstance(data, memoryview) and flags & _LAST:
                store(memory, data)
            elif isinstance(memory, memoryview) or is_shared(memory):
                store_data(memory, data, bool(flags & _LAST))
            else:
                keys = [key for _, _, key in incoming.elements]
                return self._store_private(qp, incoming, request, memory, keys, self._send_stored)
        return self._send_stored(qp, incoming, request, size)

    def _send_stored(
        self, qp: QueuePair, incoming: Incoming, request: Request, size: int
    ) -> Answer:
        """Go on after the bytes of a SEND are where they belong."""
        if not request.flags & _LAST:
            incoming.opcode = request.opcode
            incoming.offset += size
            return ACK
        if incoming.offset + size != request.length:
            return self._cut_short(qp, incoming)
        if request.opcode == _SEND_WITH_INV and not self._translation.invalidate(
            request.imm_data, qp.context.pd
        ):
            self._fail_entry(qp, incoming, ops.REM_INV_REQ_ERR)
            return REMOTE_ACCESS_ERROR
        return self._complete(qp, incoming, request, ops.RECEIVED, request.length)

    def _cut_short(self, qp: QueuePair, incoming: Incoming) -> Answer:
        """Refuse packets that do not add up to their message."""
        self._fail_entry(qp, incoming, ops.LOC_LEN_ERR)
        return INVALID_REQUEST

    # RDMA WRITE

    def _take_write(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        flags = request.flags
        has_entry = request.opcode == _WRITE_WITH_IMM and flags & _LAST
        if has_entry:
            none = self._take_entry(qp, incoming)
            if none:
                if none == NO_ENTRY:
                    return self._not_ready(qp)
                return self._bad_entry(qp, incoming)
        length = request.length
        offset = 0 if flags & _FIRST else incoming.offset
        data = request.data
        size = len(data) if isinstance(data, memoryview) else sum(map(len, data))
        if length > _LONGEST or request.offset != offset or size > length - offset:
            return self._refuse_write(qp, incoming, bool(has_entry), INVALID_REQUEST)
        if flags & _LAST and offset + size != length:
            return self._refuse_write(qp, incoming, bool(has_entry), INVALID_REQUEST)
        if size:
            try:
                pd = incoming.pd
                if size != length and not offset:
                    self._translation.find(request.rkey, pd, _REMOTE_WRITE, request.address, length)
                memory = self._reach(
                    request.rkey, pd, _REMOTE_WRITE, request.address + offset, size
                )
            except TranslationFault:
                return self._refuse_write(qp, incoming, bool(has_entry), REMOTE_ACCESS_ERROR)
            if isinstance(memory, memoryview) and isinstance(data, memoryview) and flags & _LAST:
                store(memory, data)
                if not has_entry:
                    return self._written(qp, incoming, length)
            elif isinstance(memory, memoryview) or is_shared(memory):
                store_data(memory, data, bool(flags & _LAST))
            else:
                incoming.offset = offset
                return self._store_private(
                    qp, incoming, request, memory, [request.rkey], self._write_stored
                )
        incoming.offset = offset
        return self._write_stored(qp, incoming, request, size)

    def _write_stored(
        self, qp: QueuePair, incoming: Incoming, request: Request, size: int
    ) -> Answer:
        """Go on after the bytes of an RDMA WRITE are where they belong."""
        if not request.flags & _LAST:
            incoming.opcode = request.opcode
            incoming.offset += size
            return ACK
        if request.opcode == _WRITE_WITH_IMM:
            return self._complete(qp, incoming, request, ops.RECEIVED_WRITE, request.length)
        return self._written(qp, incoming, request.length)

    @staticmethod
    def _written(qp: QueuePair, incoming: Incoming, length: int) -> Answer:
        """End a message that leaves nothing but its bytes."""
        incoming.opcode = -1
        counters = qp.counters
        counters.received_messages += 1
        counters.received_bytes += length
        return ACK

    def _refuse_write(
        self, qp: QueuePair, incoming: Incoming, has_entry: bool, answer: Answer
    ) -> Answer:
        """Refuse a write: by its receive entry if it has one, else by an event."""
        if has_entry:
            self._fail_entry(qp, incoming, ops.LOC_ACCESS_ERR)
            return answer
        if answer is REMOTE_ACCESS_ERROR:
            return self._access_error(qp)
        return self._invalid(qp)

    # RDMA READ, atomics

    @staticmethod
    def _read_count(request: Request) -> int:
        """Return how many bytes a request to read asks for: one chunk, or what is left."""
        left = request.length - request.offset
        return left if request.flags & _LAST else min(left, request.packets << request.path[4])

    def _read(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        if not qp.context.rra_max:
            return self._invalid(qp)
        offset = 0 if request.flags & _FIRST else incoming.offset
        count = self._read_count(request)
        if request.length > ops.LONGEST_MESSAGE or request.offset != offset or count < 0:
            return self._invalid(qp)
        memory: memoryview | list[Piece] = packets.NO_DATA
        if request.length:
            reach, pd = self._translation.reach, qp.context.pd
            try:
                if not offset and count != request.length:
                    self._translation.find(
                        request.rkey, pd, ops.REMOTE_READ, request.address, request.length
                    )
                memory = reach(request.rkey, pd, ops.REMOTE_READ, request.address + offset, count)
            except TranslationFault:
                return self._access_error(qp)
        if isinstance(memory, memoryview) or is_shared(memory):
            self._read_done(qp, incoming, request, count)
            return Answer(packets.ACKNOWLEDGE, 0, memory)
        return self._fetch_private(qp, incoming, request, memory, count)

    def _read_done(self, qp: QueuePair, incoming: Incoming, request: Request, count: int) -> None:
        self._remember(qp, incoming, request, 0)
        if request.flags & _LAST:
            incoming.opcode = -1
            qp.counters.received_messages += 1
            qp.counters.received_bytes += request.length
        else:
            incoming.opcode = request.opcode
            incoming.offset = request.offset + count

    def _change(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        if not qp.context.rra_max:
            return self._invalid(qp)
        try:
            memory = self._translation.reach(
                request.rkey, qp.context.pd, ops.REMOTE_ATOMIC, request.address,
                ops.ATOMIC_LENGTH,
            )  # fmt: skip
        except TranslationFault:
            return self._access_error(qp)
        if request.address % ops.ATOMIC_LENGTH:
            return self._invalid(qp)
        if not isinstance(memory, memoryview):
            piece = memory[0]
            if len(memory) != 1:
                return self._access_error(qp)  # a word that begins on one page
            if isinstance(piece, PrivateRun):
                return self._change_private(qp, incoming, request, piece)
            memory = piece
        original = int.from_bytes(memory, "little")
        memory[:] = _changed(request, original).to_bytes(ops.ATOMIC_LENGTH, "little")
        self._remember(qp, incoming, request, original)
        qp.counters.received_messages += 1
        qp.counters.received_bytes += ops.ATOMIC_LENGTH
        return Answer(packets.ACKNOWLEDGE, original)

    def _remember(self, qp: QueuePair, incoming: Incoming, request: Request, original: int) -> None:
        executed = incoming.executed
        while len(executed) >= qp.context.rra_max:
            executed.popleft()
        one = Executed(
            request.psn, request.packets, request.opcode, request.address, request.rkey, original
        )
        executed.append(one)

    # Private memory

    def _store_private(
        self,
        qp: QueuePair,
        incoming: Incoming,
        request: Request,
        memory: list[Piece],
        keys: list[int],
        stored: Callable[[QueuePair, Incoming, Request, int], Answer],
    ) -> Answer:
        """Copy the data out and have it stored; the answer comes when it is."""
        held = request.copied()
        data = request.payload()

        def done(job: CopyJob) -> None:
            if incoming.job is not job:
                return
            incoming.job = None
            if job.failed:
                if held.opcode in ops.SENDS:
                    self._fail_entry(qp, incoming, ops.LOC_PROT_ERR)
                    answer = REMOTE_OPERATION_ERROR
                else:
                    has_entry = held.opcode == _WRITE_WITH_IMM and bool(held.flags & _LAST)
                    answer = self._refuse_write(qp, incoming, has_entry, REMOTE_ACCESS_ERROR)
            else:
                answer = stored(qp, incoming, held, len(data))
            self._later(qp, held, answer)

        incoming.job = self._copier.write(memory, data, done, self._users(qp, keys))
        return IN_HAND

    def _fetch_private(
        self, qp: QueuePair, incoming: Incoming, request: Request, memory: list[Piece], count: int
    ) -> Answer:
        held = request.copied()

        def done(job: CopyJob) -> None:
            if incoming.job is not job:
                return
            incoming.job = None
            if job.failed:
                answer = self._access_error(qp)
            else:
                self._read_done(qp, incoming, held, count)
                answer = Answer(packets.ACKNOWLEDGE, 0, job.buffer)
            self._later(qp, held, answer)

        incoming.job = self._copier.read(memory, done, self._users(qp, [request.rkey]))
        return IN_HAND

    def _change_private(
        self, qp: QueuePair, incoming: Incoming, request: Request, run: PrivateRun
    ) -> Answer:
        held = request.copied()

        def done(job: CopyJob) -> None:
            if incoming.job is not job:
                return
            incoming.job = None
            if job.failed:
                answer = self._access_error(qp)
            else:
                self._remember(qp, incoming, held, job.original)
                qp.counters.received_messages += 1
                qp.counters.received_bytes += ops.ATOMIC_LENGTH
                answer = Answer(packets.ACKNOWLEDGE, job.original)
            self._later(qp, held, answer)

        incoming.job = self._copier.change_word(
            run, lambda original: _changed(held, original), done, self._users(qp, [request.rkey])
        )
        return IN_HAND

    def _later(self, qp: QueuePair, request: Request, answer: Answer) -> None:
        if answer.kind == packets.ACKNOWLEDGE:
            qp.receive_psn = (request.psn + request.packets) & _PSN_MASK
        if answer.kind != _SILENCE:
            self._answer_later(request, answer)

    def _users(self, qp: QueuePair, keys: list[int]) -> list[Copied]:
        """Return what must not end before a copy for the request in hand does."""
        found = (self._translation.named(key) for key in keys)
        return [qp, *(key for key in found if key is not None)]


def _is_too_long(request: Request, mtu_shift: int) -> bool:
    """Say whether packets are longer than the smaller of two MTUs that should be one."""
    return request.opcode in ops.WITH_INLINE and request.length > 1 << mtu_shift


def _changed(request: Request, original: int) -> int:
    """Return what an atomic makes of a word."""
    if request.opcode == ops.FETCH_AND_ADD:
        return (original + request.compare_add) & _WORD_MASK
    return request.swap if original == request.compare_add else original
