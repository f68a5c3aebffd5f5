"""What a queue pair was last asked to do, read where it was posted: in the memory of its queues.

An entry of a ring stays there until its owner writes over it, and so does a completion; so nothing
need be kept for this while messages move. What is not in the rings any more is not told: of a ring
with fewer entries than `SHOWN` there are as many as it has, and of an entry whose completion was
never written, or has been written over, neither status nor time. The rings are their owner's: an
entry he is writing over at this moment is told as it is found.

Rules: between rounds; reads only, and at most `_COMPLETIONS` of a completion queue.
Spec: shared/wqe_layout.py, shared/cqe_layout.py.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.qp_table import STATE_NAMES, QueuePair
from kernel_proc.hca.queue_buffer import BufferGone
from kernel_proc.hca.work_queue import EntryRing, WorkQueue
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi.inspection_text import Part
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_WORD, Cqe
from shared.doorbell_layout import RING_SEND
from shared.verbs_enums import ibv_send_flags
from shared.wqe_layout import (
    ADDRESS_VECTOR,
    RECEIVE_HEAD,
    RECEIVE_SGE_OFFSET,
    SEND_HEAD,
    SEND_SGE_OFFSET,
    SGE,
    AddressVector,
    SendHead,
)

SHOWN: Final = 64  # of each queue, the newest
_COMPLETIONS: Final = 8192
_INDEX_MASK: Final = (1 << 32) - 1
_WORD_MASK: Final = (1 << 64) - 1
_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)


class _Ended(NamedTuple):
    """What a completion says of an entry."""

    status: int
    when_ns: int
    byte_len: int


def posted_requests(qp: QueuePair, now_ns: int) -> Iterator[Part]:
    """Give the QP, then its requests, the newest of each queue first."""
    yield (
        ("queue_pair",),
        {
            "number": qp.number,
            "state": STATE_NAMES[qp.state],
            "srq": qp.srq.number if qp.srq is not None else 0,
            "now_ns": now_ns,
        },
    )
    yield ("send",), {}
    yield ("receive",), {}
    for name, queue, cq in (("send", qp.send, qp.send_cq), ("receive", qp.receive, qp.receive_cq)):
        if queue is None:
            continue
        ended = completions_of(qp.number, cq, is_send=queue.kind == RING_SEND) if cq else {}
        for position in _positions(queue):
            yield (name, str(position)), _request(queue, position, ended)


def completions_of(qpn: int, cq: CompletionQueue, *, is_send: bool) -> dict[int, _Ended]:
    """Return what the newest completions of a queue say of a QP's entries, by position."""
    ended: dict[int, _Ended] = {}
    first = max(0, cq.producer - min(cq.mask + 1, _COMPLETIONS))
    for position in range(first, cq.producer):
        try:
            page, place = cq.buffer.locate((position & cq.mask) * CQE_SIZE)
        except BufferGone:
            break
        view, words = cq.buffer.pages[page], cq.buffer.words[page]
        if words[(place >> 3) + CQE_VALID_WORD] != position + 1:
            continue
        entry = Cqe(*CQE.unpack_from(view, place))
        if entry.qpn == qpn and bool(entry.is_send) == is_send and not entry.srqn:
            ended[entry.wqe_index] = _Ended(entry.status, entry.timestamp_ns, entry.byte_len)
    return ended


def _positions(queue: WorkQueue) -> range:
    """Return the positions that are shown, the newest first."""
    end = queue.head + queue.outstanding()
    return range(end - 1, max(queue.first, end - min(SHOWN, queue.entries)) - 1, -1)


def _request(queue: WorkQueue, position: int, ended: dict[int, _Ended]) -> dict[str, object]:
    told: dict[str, object] = {"position": position & _WORD_MASK}
    end = ended.get(position & _INDEX_MASK)
    if position >= queue.head:
        told["progress"] = "in hand" if _is_in_hand(queue, position) else "posted"
    else:
        told["progress"] = "completed"
        if end is not None:
            told |= {"status": end.status, "when_ns": end.when_ns, "byte_len": end.byte_len}
    try:
        view, place = queue.entry(position)
    except BufferGone:
        return told  # the memory is gone; that there was an entry is known all the same
    if queue.kind == RING_SEND:
        return told | _send_entry(queue, view, place)
    (count,) = RECEIVE_HEAD.unpack_from(view, place)
    return told | _elements(queue, view, place, RECEIVE_SGE_OFFSET, count)


def _is_in_hand(queue: WorkQueue, position: int) -> bool:
    return queue.kind == RING_SEND and position == queue.head and queue.qp.outgoing.busy


def _send_entry(queue: WorkQueue, view: memoryview, place: int) -> dict[str, object]:
    head = SendHead(*SEND_HEAD.unpack_from(view, place))
    told: dict[str, object] = {
        "opcode": head.opcode,
        "flags": head.flags | (_SIGNALED if queue.signals_all else 0),
        "imm_data": head.imm_data,
    }
    if queue.transport == abi.QPC_TRANSPORT_UD:
        vector = AddressVector(*ADDRESS_VECTOR.unpack(head.address_vector))
        told |= {
            "remote_qpn": head.remote_qpn,
            "remote_qkey": head.remote_qkey,
            "dlid": vector.dlid,
            "dgid": vector.dgid.hex() if vector.is_global else None,
        }
    else:
        told |= {
            "remote_address": head.remote_address,
            "rkey": head.rkey,
            "compare_add": head.compare_add,
            "swap": head.swap,
        }
    if head.flags & _INLINE:
        return told | {"inline_length": head.inline_length, "elements": []}
    return told | _elements(queue, view, place, SEND_SGE_OFFSET, head.elements)


def _elements(
    queue: EntryRing, view: memoryview, place: int, offset: int, count: int
) -> dict[str, object]:
    """Return address, length and key of the elements an entry has room for."""
    room = (queue.stride - offset) // SGE.size
    start = place + offset
    raw = bytes(view[start : start + min(count, room) * SGE.size])
    told: dict[str, object] = {"elements": list(SGE.iter_unpack(raw))}
    return told if count <= room else told | {"elements_claimed": count}
