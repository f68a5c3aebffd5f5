"""The index words of one session's doorbell segment: which queue has which.

The files of one process share its segment, so they share this. A freed word is reused oldest
first; who frees one has destroyed the queue, so the HCA reads it no more.

Rules: any IRQL; does not wait.
Spec: shared/doorbell_layout.py.
"""

import errno
from collections import deque

from kernel_proc.driver.refusal import VerbRefused
from shared.doorbell_layout import SLOTS
from shared.verb_reasons import VerbReason


class DoorbellSlots:
    """Gives out slot numbers from 0; `contexts` counts who shares it."""

    __slots__ = ("_free", "_next", "contexts")

    def __init__(self) -> None:
        self._next = 0
        self._free: deque[int] = deque()
        self.contexts = 0

    @property
    def used(self) -> int:
        """How many slots are given out."""
        return self._next - len(self._free)

    def allocate(self) -> int:
        """Return a slot nobody has, or refuse with ENOMEM."""
        if self._next < SLOTS:
            self._next += 1
            return self._next - 1
        if not self._free:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_DOORBELLS, 0, SLOTS)
        return self._free.popleft()

    def free(self, slot: int) -> None:
        """Take a slot back."""
        self._free.append(slot)
