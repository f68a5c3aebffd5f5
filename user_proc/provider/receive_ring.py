"""Receive queues: a queue pair's own, and those that many share.

Entries of a shared queue are taken in their order but complete in any, so its wr_ids are kept by
position until their completion has been polled. When an entry has completed, all before it have
been taken, so a shared queue that has room always has a free place in memory, too.

Rules: as for `send_ring`; completions of a shared queue may come from several completion queues
at a time.
Spec: shared/wqe_layout.py.
"""

import threading
from typing import Final

from shared.doorbell_layout import RING_RECEIVE, RING_SRQ
from user_proc.provider.doorbell_writer import DoorbellWriter
from user_proc.provider.send_ring import POSITION_MASK, SendRing


class ReceiveRing(SendRing):
    """The receive queue of one queue pair: in order, as its send queue."""

    __slots__ = ()

    def __init__(
        self, writer: DoorbellWriter, slot: int, view: memoryview, stride: int, limit: int
    ) -> None:
        super().__init__(writer, RING_RECEIVE, slot, view, stride, limit)


class SharedReceiveRing:
    """A shared receive queue."""

    __slots__ = (
        "_mask",
        "_slot",
        "_stride",
        "_view",
        "_wr_ids",
        "_writer",
        "head",
        "limit",
        "lock",
        "released",
    )

    def __init__(
        self, writer: DoorbellWriter, slot: int, view: memoryview, stride: int, limit: int
    ) -> None:
        self._writer: Final = writer
        self._slot: Final = slot
        self._view: Final = view
        self._stride: Final = stride
        self._mask: Final = len(view) // stride - 1
        self._wr_ids: Final[dict[int, int]] = {}
        self.head = writer.word(slot)
        self.limit = limit
        self.released = False
        self.lock: Final = threading.Lock()

    @property
    def outstanding(self) -> int:
        """Requests whose completion has not been polled."""
        return len(self._wr_ids)

    @property
    def is_full(self) -> bool:
        """Tell whether one more request is refused."""
        return len(self._wr_ids) >= self.limit

    def put(self, wr_id: int, entry: bytes) -> None:
        """Store an entry behind the last one; nobody is told yet."""
        at = (self.head & self._mask) * self._stride
        self._view[at : at + len(entry)] = entry
        self._wr_ids[self.head & POSITION_MASK] = wr_id
        self.head += 1

    def publish(self) -> None:
        """Tell the HCA how many have been put."""
        self._writer.ring(RING_SRQ, self._slot, self.head)

    def complete(self, position: int) -> int | None:
        """Take a completion; give the wr_id, None if nothing outstanding lies there."""
        return self._wr_ids.pop(position, None)

    def release(self) -> None:
        """Let go of the memory; called under `lock`."""
        self.released = True
        self._view.release()
