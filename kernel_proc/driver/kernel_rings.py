"""Work queues of kernel clients: entries in kernel memory, index words in the kernel's doorbells.

A user's library does the same with locks of its process, in one piece of an arena. The kernel's
queues lie in pieces of which no entry crosses an edge, and nothing interrupts a call, so that
there is no lock here.

Rules: <= DISPATCH_LEVEL; nothing waits, wakes anybody or lowers the IRQL.
Spec: shared/wqe_layout.py; shared/doorbell_layout.py; Linux mthca_qp.c (get_send_wqe).
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from shared.doorbell_layout import (
    FIRST_SLOT_WORD,
    KIND_SHIFT,
    RING_ENTRIES,
    RING_SRQ,
    RING_WORD,
    RUNG_WORD,
)
from shared.live_words import publish_fence, words64
from shared.segment import PAGE_SIZE

POSITION_MASK: Final = 0xFFFF_FFFF
_ONE_PIECE: Final = 62  # as a shift: every offset lies in piece 0
_PAGE_SHIFT: Final = PAGE_SIZE.bit_length() - 1


class Pieces:
    """Memory in one piece, or in pages; `shift` gives the piece of an offset, `mask` the rest."""

    __slots__ = ("mask", "shift", "views")

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.views = views
        self.shift = _ONE_PIECE if len(views) == 1 else _PAGE_SHIFT
        self.mask = (1 << self.shift) - 1

    def store(self, at: int, entry: bytes) -> None:
        """Store an entry that crosses no edge."""
        inside = at & self.mask
        self.views[at >> self.shift][inside : inside + len(entry)] = entry


class Bell:
    """The kernel's doorbell segment, in which all kernel clients ring."""

    __slots__ = ("_poke", "words")

    def __init__(self, segment: memoryview, poke: Callable[[], None]) -> None:
        self.words = words64(segment)
        self._poke = poke

    def word(self, slot: int) -> int:
        """Return the index word of a slot."""
        return self.words[FIRST_SLOT_WORD + slot]

    def store(self, slot: int, value: int) -> None:
        """Store an index word and ring nothing."""
        self.words[FIRST_SLOT_WORD + slot] = value

    def ring(self, kind: int, slot: int, value: int) -> None:
        """Store an index word and tell the HCA of it."""
        words = self.words
        words[FIRST_SLOT_WORD + slot] = value
        rung = words[RUNG_WORD]
        words[RING_WORD + rung % RING_ENTRIES] = kind << KIND_SHIFT | slot
        publish_fence()
        words[RUNG_WORD] = rung + 1
        self._poke()

    def release(self) -> None:
        """Let go of the segment: the client's file is closed."""
        self.words.release()


class WorkRing(Protocol):
    """What a queue is to posting and polling."""

    @property
    def is_full(self) -> bool:
        """Tell whether one more request is refused."""

    def put(self, wr_id: int, entry: bytes) -> None:
        """Store an entry behind the last one; the HCA is not told yet."""

    def publish(self) -> None:
        """Tell the HCA how many have been put."""

    def complete(self, position: int) -> int | None:
        """Take the completion at a position (32 bits of it); return its wr_id, None if unknown."""


class OrderedRing:
    """A queue whose entries complete in their order: a QP's send or receive queue."""

    __slots__ = (
        "_at",
        "_bell",
        "_kind",
        "_mask",
        "_memory",
        "_slot",
        "_stride",
        "_wr_ids",
        "head",
        "tail",
    )

    def __init__(
        self,
        bell: Bell,
        kind: int,
        slot: int,
        memory: Pieces,
        place: tuple[int, int, int],
    ) -> None:
        self._bell = bell
        self._kind = kind
        self._slot = slot
        self._memory = memory
        self._at, self._stride, entries = place
        self._mask = entries - 1
        self._wr_ids = [0] * entries
        # The word is counted on from where the slot's last queue left it: the HCA does so, too.
        self.head = self.tail = bell.word(slot)

    @property
    def is_full(self) -> bool:
        """Tell whether one more request is refused."""
        return self.head - self.tail > self._mask

    def put(self, wr_id: int, entry: bytes) -> None:
        """Store an entry behind the last one; the HCA is not told yet."""
        index = self.head & self._mask
        self._memory.store(self._at + index * self._stride, entry)
        self._wr_ids[index] = wr_id
        self.head += 1

    def publish(self) -> None:
        """Tell the HCA how many have been put."""
        self._bell.ring(self._kind, self._slot, self.head)

    def complete(self, position: int) -> int | None:
        """Take a completion, and with it those before it; return its wr_id, None if unknown."""
        ahead = (position - self.tail) & POSITION_MASK
        if ahead >= self.head - self.tail:
            return None
        self.tail += ahead + 1
        return self._wr_ids[position & self._mask]

    def reset(self) -> None:
        """Be empty, as the queue of a QP in RESET is."""
        self.tail = self.head


class SharedRing:
    """A shared receive queue: entries are taken in their order and complete in any."""

    __slots__ = ("_bell", "_entries", "_memory", "_slot", "_stride", "_wr_ids", "head")

    def __init__(self, bell: Bell, slot: int, memory: Pieces, stride: int, entries: int) -> None:
        self._bell = bell
        self._slot = slot
        self._memory = memory
        self._stride = stride
        self._entries = entries
        self._wr_ids: dict[int, int] = {}
        self.head = bell.word(slot)

    @property
    def is_full(self) -> bool:
        """Tell whether one more request is refused."""
        return len(self._wr_ids) >= self._entries

    def put(self, wr_id: int, entry: bytes) -> None:
        """Store an entry behind the last one; the HCA is not told yet."""
        self._memory.store((self.head & (self._entries - 1)) * self._stride, entry)
        self._wr_ids[self.head & POSITION_MASK] = wr_id
        self.head += 1

    def publish(self) -> None:
        """Tell the HCA how many have been put."""
        self._bell.ring(RING_SRQ, self._slot, self.head)

    def complete(self, position: int) -> int | None:
        """Take a completion; return its wr_id, None if unknown."""
        return self._wr_ids.pop(position, None)
