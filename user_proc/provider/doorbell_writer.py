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

from shared.doorbell_layout import (
    FIRST_SLOT_WORD,
    KIND_SHIFT,
    RING_ENTRIES,
    RING_WORD,
    RUNG_WORD,
    STATUS_FATAL_WORD,
    STATUS_SLEEPS_WORD,
    STATUS_SPIN_HINT_WORD,
)
from shared.live_words import full_fence, publish_fence, words64


class DoorbellWriter:
    """The index words and the bell of one session.

    `poke` is the eventfd that wakes the HCA; it stays its giver's. What was rung before by an
    earlier writer of the same segment is gone on from.
    """

    __slots__ = ("__weakref__", "_lock", "_poke", "_rung", "_status", "_words")

    def __init__(self, segment: memoryview, status_page: memoryview, poke: int) -> None:
        self._words: Final = words64(segment)
        self._status: Final = words64(status_page)
        self._poke: Final = poke
        self._lock: Final = threading.Lock()
        self._rung = self._words[RUNG_WORD]

    def store(self, slot: int, value: int) -> None:
        """Store an index word and ring nothing."""
        self._words[FIRST_SLOT_WORD + slot] = value

    def word(self, slot: int) -> int:
        """Give the index word of a slot."""
        return self._words[FIRST_SLOT_WORD + slot]

    def ring(self, kind: int, slot: int, value: int) -> None:
        """Store an index word and tell the HCA of it."""
        words = self._words
        with self._lock:
            words[FIRST_SLOT_WORD + slot] = value
            rung = self._rung
            words[RING_WORD + rung % RING_ENTRIES] = kind << KIND_SHIFT | slot
            publish_fence()
            self._rung = rung = rung + 1
            words[RUNG_WORD] = rung
        full_fence()
        if self._status[STATUS_SLEEPS_WORD]:
            os.eventfd_write(self._poke, 1)

    @property
    def spin_hint(self) -> int:
        """Empty looks before a poller should yield, as the HCA sees it now."""
        return self._status[STATUS_SPIN_HINT_WORD]

    @property
    def device_is_dead(self) -> bool:
        """Tell whether the HCA has said that it is dead."""
        return self._status[STATUS_FATAL_WORD] != 0
