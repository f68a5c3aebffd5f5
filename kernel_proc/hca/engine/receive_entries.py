"""Receive entries as the owner of a ring wrote them: read once, copied, checked.

Spec: shared/wqe_layout.py.
"""

from typing import Final

from kernel_proc.hca.in_hand import Element, Incoming
from kernel_proc.hca.work_queue import EntryRing
from shared.wqe_layout import RECEIVE_HEAD, RECEIVE_SGE_OFFSET, SGE

_unpack_head: Final = RECEIVE_HEAD.unpack_from
_unpack_element: Final = SGE.unpack_from
_ELEMENT_SHIFT: Final = SGE.size.bit_length() - 1


def read_receive(ring: EntryRing, position: int, incoming: Incoming) -> bool:
    """Take the elements of an entry in hand; False if the entry cannot be.

    Raise BufferGone if the ring's memory is not there.
    """
    buffer = ring.buffer
    if buffer is not None and buffer.single and buffer.pages:  # as `entry` does
        view = buffer.pages[0]
        place = ring.offset + (position & ring.mask) * ring.stride
    else:
        view, place = ring.entry(position)
    (count,) = _unpack_head(view, place)
    incoming.position = position
    place += RECEIVE_SGE_OFFSET
    if count == 1:  # a stride has room for one
        element: Element = _unpack_element(view, place)
        incoming.room = element[1]
        incoming.elements = [element] if element[1] else []
        return True
    if count << _ELEMENT_SHIFT > ring.stride - RECEIVE_SGE_OFFSET:
        incoming.room = 0
        incoming.elements = []
        return False
    copied = bytes(view[place : place + (count << _ELEMENT_SHIFT)])
    incoming.elements = [element for element in SGE.iter_unpack(copied) if element[1]]
    incoming.room = sum(element[1] for element in incoming.elements)
    return True
