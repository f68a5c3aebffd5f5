"""RDMA READs and atomics at their responder, and both once more when they are asked for again.

A read is executed again, an atomic never: what it found is remembered as long as the requester may
ask, for as many as it may have outstanding.

Spec: IBA vol. 1, 9.7.5.1.6 and 9.7.5.1.7 (read, atomic), 9.7.5.1.2 (duplicates).
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.device_memory import Piece, PrivateRun
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.pieces import is_shared
from kernel_proc.hca.engine.private_copier import CopyJob
from kernel_proc.hca.engine.private_requests import PrivateRequests
from kernel_proc.hca.engine.receive_side import ReceiveSide
from kernel_proc.hca.in_hand import Executed, Incoming
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import NOTHING, Answer, Request
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation

_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_WORD_MASK: Final = ops.WORD_MASK


class IncomingReads:
    """Takes reads and atomics that are in sequence and that the queue pair permits."""

    def __init__(
        self, side: ReceiveSide, translation: Translation, private: PrivateRequests
    ) -> None:
        self._translation: Final = translation
        self._private: Final = private
        self._invalid: Final = side.invalid
        self._access_error: Final = side.access_error

    def read(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Answer with the bytes of a run."""
        if not qp.context.rra_max:
            return self._invalid(qp)
        offset = 0 if request.flags & _FIRST else incoming.offset
        count = _count(request)
        if request.length > ops.LONGEST_MESSAGE or request.offset != offset or count < 0:
            return self._invalid(qp)
        memory: memoryview | list[Piece] = packets.NO_DATA
        if request.length:
            reach, pd = self._translation.reach, incoming.pd
            try:
                if not offset and count != request.length:
                    self._translation.find(
                        request.rkey, pd, ops.REMOTE_READ, request.address, request.length,
                        qp.number,
                    )  # fmt: skip
                memory = reach(
                    request.rkey, pd, ops.REMOTE_READ, request.address + offset, count, qp.number
                )
            except TranslationFault:
                return self._access_error(qp)
        if isinstance(memory, memoryview) or is_shared(memory):
            self._read_done(qp, incoming, request, count)
            return Answer(packets.ACKNOWLEDGE, 0, memory)

        def fetched(held: Request, job: CopyJob) -> Answer:
            self._read_done(qp, incoming, held, count)
            return Answer(packets.ACKNOWLEDGE, 0, job.buffer)

        return self._private.fetch(qp, incoming, request, memory, fetched, self._not_copied)

    def change(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Execute an atomic and answer with what was there."""
        if not qp.context.rra_max:
            return self._invalid(qp)
        try:
            memory = self._translation.reach(
                request.rkey, incoming.pd, ops.REMOTE_ATOMIC, request.address, ops.ATOMIC_LENGTH,
                qp.number,
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
        return self._change_done(qp, incoming, request, original)

    def again(self, qp: QueuePair, incoming: Incoming, request: Request, pd: int) -> Answer:
        """Answer a read or an atomic that was executed before."""
        for executed in incoming.executed:
            if executed.psn == request.psn and executed.opcode == request.opcode:
                if executed.opcode != ops.RDMA_READ:
                    return Answer(packets.ACKNOWLEDGE, executed.original)
                if (request.address, request.rkey) == (executed.address, executed.rkey):
                    return self._read_again(qp, request, pd)
        qp.counters.drops["duplicate unknown"] += 1
        return NOTHING

    def _read_again(self, qp: QueuePair, request: Request, pd: int) -> Answer:
        address = request.address + request.offset
        try:
            memory = self._translation.reach(
                request.rkey, pd, ops.REMOTE_READ, address, _count(request), qp.number
            )
        except TranslationFault:
            return self._access_error(qp)
        if isinstance(memory, memoryview) or is_shared(memory):
            return Answer(packets.ACKNOWLEDGE, 0, memory)
        qp.counters.drops["duplicate of private memory"] += 1
        return NOTHING

    def _change_private(
        self, qp: QueuePair, incoming: Incoming, request: Request, run: PrivateRun
    ) -> Answer:
        def changed(held: Request, job: CopyJob) -> Answer:
            return self._change_done(qp, incoming, held, job.original)

        held = request.copied()
        return self._private.change(
            qp, incoming, request, run, lambda original: _changed(held, original), changed,
            self._not_copied,
        )  # fmt: skip

    def _not_copied(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        return self._access_error(qp)

    @staticmethod
    def _read_done(qp: QueuePair, incoming: Incoming, request: Request, count: int) -> None:
        _remember(qp, incoming, request, 0)
        if request.flags & _LAST:
            incoming.opcode = -1
            qp.counters.received_messages += 1
            qp.counters.received_bytes += request.length
        else:
            incoming.opcode = request.opcode
            incoming.offset = request.offset + count

    @staticmethod
    def _change_done(qp: QueuePair, incoming: Incoming, request: Request, original: int) -> Answer:
        _remember(qp, incoming, request, original)
        qp.counters.received_messages += 1
        qp.counters.received_bytes += ops.ATOMIC_LENGTH
        return Answer(packets.ACKNOWLEDGE, original)


def _remember(qp: QueuePair, incoming: Incoming, request: Request, original: int) -> None:
    executed = incoming.executed
    while len(executed) >= qp.context.rra_max:
        executed.popleft()
    executed.append(
        Executed(
            request.psn, request.packets, request.opcode, request.address, request.rkey, original
        )
    )


def _count(request: Request) -> int:
    """Return how many bytes a request to read asks for: one chunk, or what is left."""
    left = request.length - request.offset
    return left if request.flags & _LAST else min(left, request.packets << request.path[4])


def _changed(request: Request, original: int) -> int:
    """Return what an atomic makes of a word."""
    if request.opcode == ops.FETCH_AND_ADD:
        return (original + request.compare_add) & _WORD_MASK
    return request.swap if original == request.compare_add else original
