"""Entries of a completion queue where they lie: removed in place, moved to another buffer.

Spec: shared/cqe_layout.py; verbs semantics of a reset queue pair and of ibv_resize_cq(3).
"""

from typing import Final

from kernel_proc.hca.queue_buffer import QueueBuffer
from shared.cqe_layout import CQE_SIZE

SWEPT_QPN: Final = 0  # of an entry that was removed where it lies

_ENTRY_SHIFT: Final = CQE_SIZE.bit_length() - 1


def remove_entries(buffer: QueueBuffer, mask: int, positions: range, qpn: int) -> int:
    """Have the entries of a queue pair name none any more; return how many there were."""
    removed = 0
    position = positions.start
    while position < positions.stop and buffer.alive:
        entries = _contiguous(buffer, position, mask)
        count = min(len(entries) >> _ENTRY_SHIFT, positions.stop - position)
        names = entries[: count << _ENTRY_SHIFT].cast("I")[:: CQE_SIZE // 4]
        for index, name in enumerate(names.tolist()):
            if name == qpn:
                names[index] = SWEPT_QPN
                removed += 1
        position += count
    return removed


def move_entries(
    old: QueueBuffer, old_mask: int, new: QueueBuffer, new_mask: int, positions: range
) -> None:
    """Copy entries from one live buffer to another; they keep their positions."""
    position = positions.start
    while position < positions.stop:
        source = _contiguous(old, position, old_mask)
        target = _contiguous(new, position, new_mask)
        length = min(len(source), len(target), (positions.stop - position) << _ENTRY_SHIFT)
        target[:length] = source[:length]
        position += length >> _ENTRY_SHIFT


def _contiguous(buffer: QueueBuffer, position: int, mask: int) -> memoryview:
    """View the entries from a position on that lie behind each other in memory."""
    number, place = buffer.locate((position & mask) << _ENTRY_SHIFT)
    room = (mask + 1 - (position & mask)) << _ENTRY_SHIFT
    return buffer.pages[number][place : place + room]
