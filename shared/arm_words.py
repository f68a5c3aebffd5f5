"""The words that arm one completion queue: made in their order, and read by who may miss some.

Rules: one user at a time; the first word differs from what the queue's slot held before, so that
it is an arm.
Spec: shared/doorbell_layout.py (arm words).
"""

from shared.doorbell_layout import (
    ARM_ANY_AGE_MASK,
    ARM_ANY_AGE_SHIFT,
    ARM_SEQUENCE_MASK,
    ARM_SEQUENCE_SHIFT,
    ARM_SOLICITED,
    INDEX_MASK,
)


class ArmWords:
    """Makes a queue's arm words; `previous` is what its slot holds now."""

    __slots__ = ("_any_age", "_sequence")

    def __init__(self, previous: int) -> None:
        self._sequence = previous >> ARM_SEQUENCE_SHIFT & ARM_SEQUENCE_MASK
        self._any_age = 0  # arms since the last one for any entry, 0 if there was none

    def next(self, index: int, solicited_only: bool) -> int:
        """Return the word that arms the queue when so many entries were polled."""
        self._sequence = self._sequence % ARM_SEQUENCE_MASK + 1
        word = self._sequence << ARM_SEQUENCE_SHIFT | index & INDEX_MASK
        if not solicited_only:
            self._any_age = 1
            return word
        word |= ARM_SOLICITED | self._any_age << ARM_ANY_AGE_SHIFT
        if self._any_age:
            self._any_age = min(self._any_age + 1, ARM_ANY_AGE_MASK)
        return word


def asks_for_any(word: int, last_seen: int) -> bool:
    """Tell whether an arm, or one since the last one seen, is for any entry."""
    if not word & ARM_SOLICITED:
        return True
    age = word >> ARM_ANY_AGE_SHIFT & ARM_ANY_AGE_MASK
    now, before = (one >> ARM_SEQUENCE_SHIFT & ARM_SEQUENCE_MASK for one in (word, last_seen))
    unseen = (now - before) % ARM_SEQUENCE_MASK
    # An age at its most may be more; then rather an event too many than one too few.
    return bool(age and age < unseen)
