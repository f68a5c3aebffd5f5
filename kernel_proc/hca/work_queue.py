"""A work queue: where its entries are, how many its owner posted, how far the HCA has come.

The owner's index word counts what was posted. It is the owner's, so it can say anything: a word
that is more than a full queue ahead is a broken queue, and nothing of it is believed any more.

Spec: shared/doorbell_layout.py, shared/wqe_layout.py.
"""

from typing import TYPE_CHECKING, Final, Protocol

from kernel_proc.hca.doorbell_pages import DoorbellPage
from kernel_proc.hca.queue_buffer import BufferGone, QueueBuffer
from kernel_proc.hca_abi.contexts import QPC_SIGNAL_ALL
from shared.doorbell_layout import FIRST_SLOT_WORD, RING_SEND

if TYPE_CHECKING:
    from kernel_proc.hca.qp_table import QueuePair

_WORD_MASK: Final = (1 << 64) - 1


class IndexWord:
    """How far the owner and the HCA have come in a ring of `entries`."""

    __slots__ = ("broken", "entries", "first", "head", "page", "slot", "word")

    def __init__(self, page: DoorbellPage, slot: int, entries: int) -> None:
        self.page = page
        self.slot = slot
        self.word = FIRST_SLOT_WORD + slot  # its place in the page
        self.entries = entries
        self.broken = False
        # What was counted before the queue's life is not of it.
        self.first = self.head = page.index(slot) or 0

    def outstanding(self) -> int:
        """Return how many entries are posted and not taken; 0 from a broken queue."""
        words = self.page.words
        if words is None or self.broken:
            return 0
        count = (words[self.word] - self.head) & _WORD_MASK
        if count > self.entries:
            self.broken = True
            return 0
        return count

    def take(self, count: int = 1) -> int:
        """Take entries that are outstanding; return the position of the first."""
        position = self.head
        self.head = (position + count) & _WORD_MASK
        return position


class EntryRing(IndexWord):
    """A ring whose entries lie in memory: `offset` bytes into the buffer, each of `stride`."""

    __slots__ = ("buffer", "mask", "offset", "stride")

    def __init__(
        self,
        page: DoorbellPage,
        slot: int,
        entries: int,
        stride: int,
        buffer: QueueBuffer | None,
        offset: int = 0,
    ) -> None:
        super().__init__(page, slot, entries)
        self.stride = stride
        self.mask = entries - 1
        self.offset = offset
        self.buffer = buffer

    def close(self) -> None:
        """Give the memory back."""
        if self.buffer is not None:
            self.buffer.close()

    @property
    def alive(self) -> bool:
        """Whether the memory is still there."""
        return self.buffer is not None and bool(self.buffer.pages)

    def entry(self, position: int) -> tuple[memoryview, int]:
        """Return the view that holds an entry, and its place there; BufferGone without memory."""
        buffer = self.buffer
        if buffer is None or not buffer.pages:
            raise BufferGone
        offset = self.offset + (position & self.mask) * self.stride
        if buffer.single:
            return buffer.pages[0], offset
        page, place = buffer.locate(offset)
        if place + self.stride > len(buffer.pages[page]):
            raise BufferGone  # it goes on in a page that lies elsewhere
        return buffer.pages[page], place


class ReadyQueues(Protocol):
    """The engine, as queues know it."""

    def ready(self, queue: "WorkQueue") -> None:
        """Have a queue looked at, if there is a service for it in its state."""


class WorkQueue(EntryRing):
    """The send or the receive queue of a QP; `kind` as doorbells name it.

    `transport` and `signals_all` are the QP's, which never change.
    """

    __slots__ = ("_rounds", "kind", "qp", "queued", "signals_all", "told", "transport")

    def __init__(
        self,
        qp: "QueuePair",
        rounds: "ReadyQueues",
        kind: int,
        slot: int,
        entries: int,
        stride: int,
    ) -> None:
        offset = qp.context.send_offset if kind == RING_SEND else 0
        super().__init__(qp.page, slot, entries, stride, qp.buffer, offset)
        self.qp = qp
        self.kind = kind
        self.transport = qp.context.transport
        self.signals_all = bool(qp.context.flags & QPC_SIGNAL_ALL)
        self.queued = False
        self.told = False  # that it is broken
        self._rounds = rounds

    def rung(self) -> None:
        """Have the engine look at the queue, if its state is one in which it is served."""
        self._rounds.ready(self)

    def inspect(self) -> dict[str, object]:
        """Return size, head and what is outstanding."""
        return {"entries": self.entries, "head": self.head, "outstanding": self.outstanding()}
