"""Several arms of which the HCA sees the last one only: together they ask for the widest."""

from itertools import product

from kernel_proc.hca.cq_table import ARMED, ARMED_SOLICITED, _wanted
from shared.doorbell_layout import (
    ARM_ANY_AGE_MASK,
    ARM_ANY_AGE_SHIFT,
    ARM_SEQUENCE_MASK,
    ARM_SEQUENCE_SHIFT,
    ARM_SOLICITED,
)


def words_of(kinds: tuple[bool, ...], first: int) -> list[int]:
    """The arm words a user stores one after the other; True is solicited only."""
    words, age, sequence = [], 0, first
    for solicited in kinds:
        sequence = sequence % ARM_SEQUENCE_MASK + 1
        word = sequence << ARM_SEQUENCE_SHIFT | 12345
        if solicited:
            word |= ARM_SOLICITED | age << ARM_ANY_AGE_SHIFT
            age = min(age + 1, ARM_ANY_AGE_MASK) if age else 0
        else:
            age = 1
        words.append(word)
    return words


def test_whatever_the_hca_has_seen_before_it_arms_for_the_widest_it_has_not():
    cases = 0
    for first in (0, 5, ARM_SEQUENCE_MASK - 3, ARM_SEQUENCE_MASK):
        for kinds in product((False, True), repeat=6):
            words = [first << ARM_SEQUENCE_SHIFT, *words_of(kinds, first)]
            for seen in range(len(words) - 1):
                unseen = kinds[seen:]
                expected = ARMED_SOLICITED if all(unseen) else ARMED
                assert _wanted(words[-1], words[seen]) == expected, (first, kinds, seen)
                cases += 1
    assert cases == 4 * 64 * 6


def test_arms_beyond_what_the_word_can_tell_are_never_too_narrow():
    for before in range(ARM_ANY_AGE_MASK * 3):
        kinds = (False, *[True] * before, True)
        words = [0, *words_of(kinds, 0)]
        assert _wanted(words[-1], words[0]) == ARMED  # the arm for any entry was not seen
        # Seen one by one, each is what it says.
        assert _wanted(words[-1], words[-2]) == ARMED_SOLICITED
