"""Send entries as the owner of a ring wrote them: read once, copied, checked.

Every field is loaded from the ring exactly once; what was loaded is checked and used, so an entry
that changes meanwhile harms its owner's message and nothing else.

Spec: shared/wqe_layout.py; IBA vol. 1, 10.7.
"""

import struct
from typing import Final

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.in_hand import Element, Outgoing
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import ibv_send_flags
from shared.wqe_layout import BIND_OFFSET, BIND_SEGMENT, SEND_HEAD, SEND_SGE_OFFSET, SGE

FENCE: Final = int(ibv_send_flags.IBV_SEND_FENCE)
SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)
SOLICITED: Final = int(ibv_send_flags.IBV_SEND_SOLICITED)
INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)

_unpack_head: Final = SEND_HEAD.unpack_from
# The same without the fields that only datagrams have.
_unpack_connected: Final = struct.Struct("<IIIIQIIQQ48x8xI20x").unpack_from
_UD: Final = abi.QPC_TRANSPORT_UD
_unpack_element: Final = SGE.unpack_from
_ELEMENT_SHIFT: Final = SGE.size.bit_length() - 1
_OPCODES: Final = ops.OPCODES
_ACTIONS: Final = ops.ACTIONS
_WITH_INLINE: Final = ops.WITH_INLINE
_INVALIDATES: Final = ops.INVALIDATES
_BINDS: Final = ops.BINDS
_BIND_PLACE: Final = BIND_OFFSET - SEND_SGE_OFFSET
_IS_ATOMIC: Final = ops.IS_ATOMIC


def read_send(queue: WorkQueue, out: Outgoing) -> int:
    """Take the entry at the queue's head in hand; return SUCCESS or why it cannot be done.

    Raise BufferGone if the ring's memory is not there.
    """
    buffer = queue.buffer
    if buffer is not None and buffer.single and buffer.pages:  # as `entry` does
        view = buffer.pages[0]
        place = queue.offset + (queue.head & queue.mask) * queue.stride
    else:
        view, place = queue.entry(queue.head)
    transport = queue.transport
    if transport == _UD:
        (
            opcode, flags, count, out.imm_data, _, _, _, _, _, out.vector, out.remote_qpn,
            out.remote_qkey, inline_length,
        ) = _unpack_head(view, place)  # fmt: skip
    else:
        (
            opcode, flags, count, out.imm_data, out.remote_address, out.rkey, out.srqn,
            out.compare_add, out.swap, inline_length,
        ) = _unpack_connected(view, place)  # fmt: skip
    if queue.signals_all:
        flags |= SIGNALED
    out.flags = flags
    out.done = 0
    out.retries = 0
    out.rnr_retries = 0
    out.busy = True
    if opcode >= _OPCODES:
        out.action = ops.REFUSED
        return ops.LOC_QP_OP_ERR
    out.opcode = opcode
    action = out.action = _ACTIONS[transport * _OPCODES + opcode]
    if not action:
        return ops.LOC_QP_OP_ERR
    place += SEND_SGE_OFFSET
    room = queue.stride - SEND_SGE_OFFSET
    if flags & INLINE:
        if opcode not in _WITH_INLINE or inline_length > room:
            return ops.LOC_QP_OP_ERR
        out.elements = []
        out.length = inline_length
        out.fetched = memoryview(bytes(view[place : place + inline_length]))
        return ops.SUCCESS
    if count == 1 and room >= SGE.size:
        element: Element = _unpack_element(view, place)
        length = out.length = element[1]
        out.elements = [element] if length else []
    elif count << _ELEMENT_SHIFT > room:
        return ops.LOC_QP_OP_ERR
    else:
        copied = bytes(view[place : place + (count << _ELEMENT_SHIFT)])
        out.elements = [element for element in SGE.iter_unpack(copied) if element[1]]
        length = out.length = sum(element[1] for element in out.elements)
    if length > ops.LONGEST_MESSAGE:
        return ops.LOC_LEN_ERR
    is_plain = action < _IS_ATOMIC or transport == _UD
    return ops.SUCCESS if is_plain else _take_rest(out, view, place, count)


def _take_rest(out: Outgoing, view: memoryview, place: int, count: int) -> int:
    """Look at what entries have that are neither data nor a read; `place` is their elements'."""
    action = out.action
    if action == _IS_ATOMIC and out.length != ops.ATOMIC_LENGTH:
        return ops.LOC_LEN_ERR
    if count and action in (_INVALIDATES, _BINDS):
        return ops.LOC_QP_OP_ERR
    if action == _BINDS:
        start = place + _BIND_PLACE
        out.vector = bytes(view[start : start + BIND_SEGMENT.size])
    return ops.SUCCESS
