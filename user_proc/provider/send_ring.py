"""The send queue of a queue pair: entries, their wr_ids, and what is free again.

A slot is free when its completion, or a later one of the same queue, has been polled.

Rules: `put` and `publish` under `lock`; `complete` by whoever holds the lock of the completion
queue. Neither waits for the other: each index has one writer.
Spec: shared/wqe_layout.py; verbs semantics of posting: a queue of N takes exactly N.
"""

import threading
from typing import Final

from user_proc.provider.doorbell_writer import DoorbellWriter

POSITION_MASK: Final = 0xFFFF_FFFF


class SendRing:
    """One ring whose entries complete in their order; `limit` of them at a time."""

    __slots__ = (
        "_kind",
        "_mask",
        "_slot",
        "_stride",
        "_tail",
        "_view",
        "_wr_ids",
        "_writer",
        "head",
        "limit",
        "lock",
        "released",
    )

    def __init__(
        self,
        writer: DoorbellWriter,
        kind: int,
        slot: int,
        view: memoryview,
        stride: int,
        limit: int,
    ) -> None:
        entries = len(view) // stride
        self._writer: Final = writer
        self._kind: Final = kind
        self._slot: Final = slot
        self._view: Final = view
        self._stride: Final = stride
        self._mask: Final = entries - 1
        self._wr_ids: Final = [0] * entries
        # The word is counted on from where the slot's last queue left it: the HCA does so, too.
        self.head = self._tail = writer.word(slot)
        self.limit: Final = limit
        self.released = False
        self.lock: Final = threading.Lock()

    @property
    def outstanding(self) -> int:
        """Requests whose slots are not free yet."""
        return self.head - self._tail

    @property
    def is_full(self) -> bool:
        """Tell whether one more request is refused."""
        return self.head - self._tail >= self.limit

    def put(self, wr_id: int, entry: bytes) -> None:
        """Store an entry behind the last one; nobody is told yet."""
        index = self.head & self._mask
        at = index * self._stride
        self._view[at : at + len(entry)] = entry
        self._wr_ids[index] = wr_id
        self.head += 1

    def post(self, wr_id: int, entry: bytes) -> bool:
        """Do `put` and `publish` for one request; False if there is no room or no memory.

        Called without `lock`, which it takes.
        """
        with self.lock:
            head = self.head
            if self.released or head - self._tail >= self.limit:
                return False
            index = head & self._mask
            at = index * self._stride
            self._view[at : at + len(entry)] = entry
            self._wr_ids[index] = wr_id
            self.head = head = head + 1
            writer = self._writer
            if writer.note(self._kind, self._slot, head):  # as `publish` does
                writer.wake()
        return True

    def publish(self) -> None:
        """Tell the HCA how many have been put."""
        self._writer.ring(self._kind, self._slot, self.head)

    def complete(self, position: int) -> int | None:
        """Take the completion of the entry at a position (32 bits of it); give its wr_id.

        None if nothing outstanding lies there.
        """
        ahead = (position - self._tail) & POSITION_MASK
        if ahead >= self.head - self._tail:
            return None
        self._tail += ahead + 1
        return self._wr_ids[position & self._mask]

    def reset(self) -> None:
        """Be empty, as the queue of a QP in RESET is; called under `lock`."""
        self._tail = self.head

    def release(self) -> None:
        """Let go of the memory; called under `lock`."""
        self.released = True
        self._view.release()
