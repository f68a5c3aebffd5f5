"""The session's doorbell segment, as the one place of this process that writes it.

To ring: the index word, an entry of the ring, the counter `rung`; then, after a full fence, a look
whether the HCA has announced sleep, and only then a write to its eventfd.

Rules: any thread; one rings at a time. Nothing here calls the kernel. A forked child must not use
it: the segment is not mapped there.
Spec: shared/doorbell_layout.py; shared/live_words.py.
"""

import os
import threading
from typing import Final

from shared.clock import now_ns
from shared.doorbell_layout import (
    FIRST_SLOT_WORD,
    KIND_SHIFT,
    RING_ENTRIES,
    RING_WORD,
    RUNG_WORD,
    STATUS_FATAL_WORD,
    STATUS_PROCESSOR_WORD,
    STATUS_SLEEPS_WORD,
    STATUS_SPIN_HINT_WORD,
)
from shared.live_words import fence_after_unlock, publish_fence, words64
from user_proc.provider.processor_choice import leave_processor

_RING_MASK: Final = RING_ENTRIES - 1
LATE_NS: Final = 100_000  # of a yield: more than other pollers take, less than steps of work
CROWDED_NS: Final = 5_000_000  # short, as a quiet machine has late ones, too, now and then
_CHOOSE_MASK: Final = 15  # every 16th empty look: is this the HCA's processor?


class DoorbellWriter:
    """The index words and the bell of one session.

    `poke` is the eventfd that wakes the HCA; it stays its giver's. What was rung before by an
    earlier writer of the same segment is gone on from.
    """

    __slots__ = (
        "__weakref__",
        "_crowded_until_ns",
        "_lock",
        "_poke",
        "_rests",
        "_rung",
        "_status",
        "_words",
        "is_crowded",
    )

    def __init__(self, segment: memoryview, status_page: memoryview, poke: int) -> None:
        self._words: Final = words64(segment)
        self._status: Final = words64(status_page)
        self._poke: Final = poke
        self._lock: Final = threading.Lock()
        self._rung = self._words[RUNG_WORD]
        self._rests = 0
        self._crowded_until_ns = 0
        self.is_crowded = False  # a yield came back late of late: others have work for the core

    def store(self, slot: int, value: int) -> None:
        """Store an index word and ring nothing."""
        self._words[FIRST_SLOT_WORD + slot] = value

    def word(self, slot: int) -> int:
        """Give the index word of a slot."""
        return self._words[FIRST_SLOT_WORD + slot]

    def ring(self, kind: int, slot: int, value: int) -> None:
        """Store an index word and tell the HCA of it, waking it."""
        if self.note(kind, slot, value):
            self.wake()

    def note(self, kind: int, slot: int, value: int) -> bool:
        """Store an index word and have the HCA see it when it next looks; True if it sleeps.

        It looks after whatever it does for others, before it sleeps again.
        """
        words = self._words
        with self._lock:
            words[FIRST_SLOT_WORD + slot] = value
            rung = self._rung
            words[RING_WORD + (rung & _RING_MASK)] = kind << KIND_SHIFT | slot
            publish_fence()
            self._rung = rung = rung + 1
            words[RUNG_WORD] = rung
        fence_after_unlock()
        return self._status[STATUS_SLEEPS_WORD] != 0

    def wake(self) -> None:
        """Wake the HCA."""
        os.eventfd_write(self._poke, 1)

    @property
    def spin_hint(self) -> int:
        """Empty looks before a poller should yield, as the HCA sees it now."""
        return self._status[STATUS_SPIN_HINT_WORD]

    def rest(self, looks: int) -> bool:
        """Yield the processor after so many empty looks, if the HCA's hint says so.

        Now and then look whether it is the HCA's own, and leave that to it.

        False, and no yield, if the HCA has said that it is dead.
        """
        status = self._status
        if status[STATUS_FATAL_WORD]:
            return False
        if looks > status[STATUS_SPIN_HINT_WORD]:
            begin = now_ns()
            os.sched_yield()
            end = now_ns()
            if end - begin > LATE_NS:
                self._crowded_until_ns = end + CROWDED_NS
            self.is_crowded = end < self._crowded_until_ns
        self._rests = rests = self._rests + 1
        if not rests & _CHOOSE_MASK and not status[STATUS_SLEEPS_WORD]:
            leave_processor(status[STATUS_PROCESSOR_WORD] - 1)
        return True

    @property
    def device_is_dead(self) -> bool:
        """Tell whether the HCA has said that it is dead."""
        return self._status[STATUS_FATAL_WORD] != 0
