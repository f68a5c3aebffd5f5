"""SENDs at their responder: a receive entry, its length, its memory, its completion.

Spec: IBA vol. 1, 9.7.5.1.4 and 10.7; docs/engine.md (order of checks).
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.pieces import is_shared, reach_elements, store, store_data
from kernel_proc.hca.engine.private_requests import PrivateRequests
from kernel_proc.hca.engine.receive_side import NO_ENTRY, ReceiveSide
from kernel_proc.hca.engine.windows import invalidate_for_peer
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import (
    ACK,
    INVALID_REQUEST,
    REMOTE_ACCESS_ERROR,
    REMOTE_OPERATION_ERROR,
    Answer,
    Request,
)
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation

_FIRST: Final = packets.FIRST
_LAST: Final = packets.LAST
_LOCAL_WRITE: Final = ops.LOCAL_WRITE
_LONGEST: Final = ops.LONGEST_MESSAGE
_SEND_WITH_INV: Final = ops.SEND_WITH_INV


class IncomingSends:
    """Takes runs of SENDs that are in sequence."""

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

    def take(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        """Take a run; the first brings the receive entry."""
        flags = request.flags
        if flags & _FIRST:
            none = self._take_entry(qp, incoming)
            if none:
                if none == NO_ENTRY:
                    return self._not_ready(qp)
                return self._bad_entry(qp, incoming)
            if request.length > incoming.room or request.length > _LONGEST:
                self._fail_entry(qp, incoming, ops.LOC_LEN_ERR)
                return INVALID_REQUEST
            incoming.offset = 0
        data = request.data
        size = len(data) if isinstance(data, memoryview) else sum(map(len, data))
        if request.offset != incoming.offset or size > request.length - incoming.offset:
            return self._cut_short(qp, incoming)
        if size:
            srq = incoming.srq
            pd = incoming.pd if srq is None else srq.context.pd
            elements, offset = incoming.elements, incoming.offset
            try:
                if len(elements) == 1:  # as `reach_elements` does
                    address, _, key = elements[0]
                    memory = self._reach(key, pd, _LOCAL_WRITE, address + offset, size)
                else:
                    memory = reach_elements(
                        self._translation, pd, _LOCAL_WRITE, elements, offset, size
                    )
            except TranslationFault:
                self._fail_entry(qp, incoming, ops.LOC_PROT_ERR)
                return REMOTE_OPERATION_ERROR
            if isinstance(memory, memoryview) and isinstance(data, memoryview) and flags & _LAST:
                store(memory, data)
            elif isinstance(memory, memoryview) or is_shared(memory):
                store_data(memory, data, bool(flags & _LAST))
            else:
                keys = [key for _, _, key in incoming.elements]
                return self._private.store(
                    qp, incoming, request, memory, keys, self._stored, self._not_stored
                )
        return self._stored(qp, incoming, request, size)

    def _stored(self, qp: QueuePair, incoming: Incoming, request: Request, size: int) -> Answer:
        """Go on after the bytes are where they belong."""
        if not request.flags & _LAST:
            incoming.opcode = request.opcode
            incoming.offset += size
            return ACK
        if incoming.offset + size != request.length:
            return self._cut_short(qp, incoming)
        if request.opcode == _SEND_WITH_INV and not invalidate_for_peer(
            self._translation, qp, request.imm_data, incoming.pd
        ):
            self._fail_entry(qp, incoming, ops.REM_INV_REQ_ERR)
            return REMOTE_ACCESS_ERROR
        return self._complete(qp, incoming, request, ops.RECEIVED, request.length)

    def _not_stored(self, qp: QueuePair, incoming: Incoming, request: Request) -> Answer:
        self._fail_entry(qp, incoming, ops.LOC_PROT_ERR)
        return REMOTE_OPERATION_ERROR

    def _cut_short(self, qp: QueuePair, incoming: Incoming) -> Answer:
        """Refuse packets that do not add up to their message."""
        self._fail_entry(qp, incoming, ops.LOC_LEN_ERR)
        return INVALID_REQUEST
