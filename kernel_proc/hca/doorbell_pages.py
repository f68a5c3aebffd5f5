"""The doorbell segments of the sessions: what was rung, and the index words.

A segment is written by its session only, read here only, and trusted in nothing: an entry of the
ring is a hint that names a slot; which queue has that slot is known here, so a session can ring
its own queues and no others. What is missed in a ring that ran over is found by a scan.

Rules: each word is read once for each use; nothing in the segment is written.
Spec: shared/doorbell_layout.py.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from shared import doorbell_layout as layout
from shared.live_words import words64

if TYPE_CHECKING:
    from kernel_proc.hca.work_queue import WorkQueue

_WORD_MASK: Final = (1 << 64) - 1
_ENTRIES_A_TURN: Final = 64
_RING_MASK: Final = layout.RING_ENTRIES - 1
_RING_ENTRIES: Final = layout.RING_ENTRIES
_RUNG: Final = layout.RUNG_WORD
_RING: Final = layout.RING_WORD
_SCANNING: Final = -1  # no word is this, so a page whose slots are being looked at is not passed by


class Rung(Protocol):
    """A queue that has a slot."""

    def rung(self) -> None:
        """Look at the index word: the owner says it has moved."""


class DoorbellPage:
    """One session's segment; `queues` by kind and slot, as an entry of the ring names them.

    `seen` is how often it had rung when it was last looked at; while slots of a scan still wait,
    `_SCANNING`, and `scanned_at` is where it goes on. `ready` and `in_circle` are the engine's: the
    session's queues that have something to do.
    """

    __slots__ = (
        "in_circle",
        "number",
        "queues",
        "ready",
        "rings",
        "scanned_at",
        "scans",
        "seen",
        "unknown",
        "waiting",
        "words",
    )

    def __init__(self, number: int, view: memoryview) -> None:
        self.number = number
        self.words: memoryview | None = words64(view)
        self.queues: dict[int, Rung] = {}
        self.seen = self.scanned_at = self.words[layout.RUNG_WORD]
        self.waiting: deque[Rung] = deque()
        self.ready: deque[WorkQueue] = deque()
        self.in_circle = False
        self.rings = 0
        self.scans = 0
        self.unknown = 0

    def serve(self, words: memoryview) -> None:
        """Look at some of what was rung, if anything was; `words` are the segment's."""
        seen = self.seen
        if seen == _SCANNING:
            self._go_on_scanning()
            return
        count = (words[_RUNG] - seen) & _WORD_MASK
        if count != 1:
            self._read_ring(words, seen, count)
            return
        entry = words[_RING + (seen & _RING_MASK)]
        rung = words[_RUNG]
        if (rung - seen) & _WORD_MASK >= _RING_ENTRIES:
            self._scan(rung)
            return
        self.seen = (seen + 1) & _WORD_MASK
        self.rings += 1
        queue = self.queues.get(entry)
        if queue is not None:
            queue.rung()
        else:
            self.unknown += 1

    def index(self, slot: int) -> int | None:
        """Read the index word of a slot that exists; None when the session is gone."""
        return self.words[layout.FIRST_SLOT_WORD + slot] if self.words is not None else None

    def close(self) -> None:
        """Forget the segment; its queues live on with what was seen."""
        if self.words is not None:
            self.words.release()
            self.words = None
        self.waiting.clear()

    def inspect(self) -> dict[str, object]:
        """Return what was seen and counted."""
        return {
            "seen": self.scanned_at if self.seen == _SCANNING else self.seen,
            "queues": len(self.queues),
            "rings": self.rings,
            "scans": self.scans,
            "unknown": self.unknown,
        }

    def _read_ring(self, words: memoryview, seen: int, count: int) -> None:
        if count >= _RING_ENTRIES:
            self._scan((seen + count) & _WORD_MASK)
            return
        first = seen & _RING_MASK
        start = _RING + first
        count = min(count, _ENTRIES_A_TURN, _RING_ENTRIES - first)
        entries = words[start : start + count].tolist()
        # The entries are good only if the ring did not come round while they were read.
        rung = words[_RUNG]
        if (rung - seen) & _WORD_MASK >= _RING_ENTRIES:
            self._scan(rung)
            return
        self.seen = (seen + count) & _WORD_MASK
        self.rings += count
        find = self.queues.get
        for entry in entries:
            queue = find(entry)
            if queue is not None:
                queue.rung()
            else:
                self.unknown += 1

    def _scan(self, rung: int) -> None:
        """Look at every slot, from the next turn on: where the ring was read is not known."""
        self.seen = _SCANNING
        self.scanned_at = rung
        self.scans += 1
        self.waiting.extend(self.queues.values())

    def _go_on_scanning(self) -> None:
        for _ in range(min(_ENTRIES_A_TURN, len(self.waiting))):
            self.waiting.popleft().rung()
        if not self.waiting:
            self.seen = self.scanned_at


class DoorbellPages:
    """The segments by UAR number, served one after the other."""

    def __init__(self) -> None:
        self.pages: Final[dict[int, DoorbellPage]] = {}
        # The same with their words, to go through them.
        self._all: tuple[tuple[DoorbellPage, memoryview], ...] = ()

    def add(self, number: int, view: memoryview) -> None:
        """Take a session's segment."""
        if number in self.pages or number < 0:
            raise ValueError(f"{number} is no free doorbell segment number")
        if len(view.cast("B")) < layout.SEGMENT_LENGTH:
            raise ValueError("a doorbell segment is too short")
        self.pages[number] = DoorbellPage(number, view)
        self._list_all()

    def remove(self, number: int) -> None:
        """Forget a session's segment."""
        page = self.pages.pop(number, None)
        if page is not None:
            page.close()
            self._list_all()

    def _list_all(self) -> None:
        self._all = tuple(
            (page, page.words) for page in self.pages.values() if page.words is not None
        )

    def serve(self) -> bool:
        """Give each session one turn; say whether any had something."""
        busy = False
        for page, words in self._all:
            if words[_RUNG] != page.seen:
                page.serve(words)
                busy = True
        return busy

    def rung_beside(self, page: DoorbellPage) -> bool:
        """Say whether another session than this one has something to serve."""
        for other, words in self._all:  # noqa: SIM110 - a generator costs more than the looking
            if words[_RUNG] != other.seen and other is not page:
                return True
        return False

    def claim(self, page: DoorbellPage, kind: int, slot: int, queue: Rung) -> bool:
        """Let a queue have a slot; False if it is another's."""
        name = kind << layout.KIND_SHIFT | slot
        if name in page.queues:
            return False
        page.queues[name] = queue
        return True

    def release(self, page: DoorbellPage, kind: int, slot: int) -> None:
        """Take a slot back."""
        page.queues.pop(kind << layout.KIND_SHIFT | slot, None)

    def inspect(self) -> dict[str, object]:
        """Return each session's counters."""
        return {str(number): page.inspect() for number, page in self.pages.items()}

    def close(self) -> None:
        """Forget all segments."""
        for number in list(self.pages):
            self.remove(number)
