"""RDMA WRITEs at their responder: the whole range, its memory, and with IMM a receive entry.

Spec: IBA vol. 1, 9.7.5.1.5; docs/engine.md (order of checks).
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.pieces import is_shared, store, store_data
from kernel_proc.hca.engine.private_requests import PrivateRequests
from kernel_proc.hca.engine.receive_side import NO_ENTRY, ReceiveSide
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import ACK, INVALID_REQUEST, REMOTE_ACCESS_ERROR, Answer, Request
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation

_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_LONGEST: Final = ops.LONGEST_MESSAGE
_REMOTE_WRITE: Final = ops.REMOTE_WRITE
_WRITE_WITH_IMM: Final = ops.RDMA_WRITE_WITH_IMM


class IncomingWrites:
    """Takes runs of RDMA WRITEs that are in sequence and that the queue pair permits."""

    def __init__(
        self, side: ReceiveSide, translation: Translation, private: PrivateRequests
    ) -> None:
        self._translation: Final = translation
        self._reach: Final = translation.reach
        self._private: Final = private
        self._take_entry: Final = side.take_entry
        self._complete: Final = side.complete
        self._not_ready: Final = side.not_ready
        self._bad_entry: Final = side.bad_entry
        self._fail_entry: Final = side.fail_entry
        self._invalid: Final = side.invalid
        self._access_error: Final = side.access_error

    def take(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Take a run; the last of a message with immediate data needs a receive entry."""
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
            return self._refuse(qp, incoming, bool(has_entry), INVALID_REQUEST)
        if flags & _LAST and offset + size != length:
            return self._refuse(qp, incoming, bool(has_entry), INVALID_REQUEST)
        if size:
            try:
                pd = incoming.pd
                if size != length and not offset:
                    self._translation.find(
                        request.rkey, pd, _REMOTE_WRITE, request.address, length, qp.number
                    )
                memory = self._reach(
                    request.rkey, pd, _REMOTE_WRITE, request.address + offset, size, qp.number
                )
            except TranslationFault:
                return self._refuse(qp, incoming, bool(has_entry), REMOTE_ACCESS_ERROR)
            if isinstance(memory, memoryview) and isinstance(data, memoryview) and flags & _LAST:
                store(memory, data)
                if not has_entry:
                    return self._written(qp, incoming, length)
            elif isinstance(memory, memoryview) or is_shared(memory):
                store_data(memory, data, bool(flags & _LAST))
            else:
                incoming.offset = offset
                return self._private.store(
                    qp, incoming, request, memory, [request.rkey], self._stored, self._not_stored
                )
        incoming.offset = offset
        return self._stored(qp, incoming, request, size)

    def _stored(self, qp: QueuePair, incoming: Incoming, request: Request, size: int) -> Answer:
        """Go on after the bytes are where they belong."""
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

    def _not_stored(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        has_entry = request.opcode == _WRITE_WITH_IMM and bool(request.flags & _LAST)
        return self._refuse(qp, incoming, has_entry, REMOTE_ACCESS_ERROR)

    def _refuse(self, qp: QueuePair, incoming: Incoming, has_entry: bool, answer: Answer) -> Answer:
        """Refuse a write: by its receive entry if it has one, else by an event."""
        if has_entry:
            self._fail_entry(qp, incoming, ops.LOC_ACCESS_ERR)
            return answer
        if answer is REMOTE_ACCESS_ERROR:
            return self._access_error(qp)
        return self._invalid(qp)
