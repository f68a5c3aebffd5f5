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


class Rung(Protocol):
    """A queue that has a slot."""

    def rung(self) -> None:
        """Look at the index word: the owner says it has moved."""


class DoorbellPage:
    """One session's segment; `queues` by kind and slot, as an entry of the ring names them.

    `ready` and `in_circle` are the engine's: the session's queues that have something to do.
    """

    __slots__ = (
        "in_circle",
        "number",
        "queues",
        "ready",
        "rings",
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
        self.seen = self.words[layout.RUNG_WORD]
        self.waiting: deque[Rung] = deque()
        self.ready: deque[WorkQueue] = deque()
        self.in_circle = False
        self.rings = 0
        self.scans = 0
        self.unknown = 0

    def serve(self) -> bool:
        """Look at some of what was rung; say whether there was anything."""
        words = self.words
        if words is None:
            return False
        if self.waiting:
            for _ in range(min(_ENTRIES_A_TURN, len(self.waiting))):
                self.waiting.popleft().rung()
            return True
        seen = self.seen
        rung = words[_RUNG]
        if rung == seen:
            return False
        count = (rung - seen) & _WORD_MASK
        if count == 1:
            entry = words[_RING + (seen & _RING_MASK)]
            rung = words[_RUNG]
            if (rung - seen) & _WORD_MASK >= _RING_ENTRIES:
                self._scan(rung)
                return True
            self.seen = (seen + 1) & _WORD_MASK
            self.rings += 1
            queue = self.queues.get(entry)
            if queue is not None:
                queue.rung()
            else:
                self.unknown += 1
            return True
        if count >= layout.RING_ENTRIES:
            self._scan(rung)
            return True
        self._read_ring(words, seen, min(count, _ENTRIES_A_TURN))
        return True

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
            "seen": self.seen,
            "queues": len(self.queues),
            "rings": self.rings,
            "scans": self.scans,
            "unknown": self.unknown,
        }

    def _read_ring(self, words: memoryview, seen: int, count: int) -> None:
        first = seen & _RING_MASK
        start = layout.RING_WORD + first
        count = min(count, layout.RING_ENTRIES - first)
        entries = words[start : start + count].tolist()
        # The entries are good only if the ring did not come round while they were read.
        rung = words[layout.RUNG_WORD]
        if (rung - seen) & _WORD_MASK >= layout.RING_ENTRIES:
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
        self.seen = rung
        self.scans += 1
        self.waiting.extend(self.queues.values())


class DoorbellPages:
    """The segments by UAR number, served one after the other."""

    def __init__(self) -> None:
        self.pages: Final[dict[int, DoorbellPage]] = {}
        self._all: tuple[DoorbellPage, ...] = ()  # the same, to go through them

    def add(self, number: int, view: memoryview) -> None:
        """Take a session's segment."""
        if number in self.pages or number < 0:
            raise ValueError(f"{number} is no free doorbell segment number")
        if len(view.cast("B")) < layout.SEGMENT_LENGTH:
            raise ValueError("a doorbell segment is too short")
        self.pages[number] = DoorbellPage(number, view)
        self._all = tuple(self.pages.values())

    def remove(self, number: int) -> None:
        """Forget a session's segment."""
        page = self.pages.pop(number, None)
        if page is not None:
            page.close()
            self._all = tuple(self.pages.values())

    def serve(self) -> bool:
        """Give each session one turn; say whether any had something."""
        busy = False
        for page in self._all:
            words = page.words
            if words is not None and (words[_RUNG] != page.seen or page.waiting):
                busy |= page.serve()
        return busy

    def rung_beside(self, page: DoorbellPage) -> bool:
        """Say whether another session than this one has something to serve."""
        for other in self._all:
            words = other.words
            if words is None or other is page:
                continue
            if words[_RUNG] != other.seen or other.waiting:
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
