"""Several arms of which the HCA sees the last one only: together they ask for the widest."""

from itertools import product

from shared.arm_words import ArmWords, asks_for_any
from shared.doorbell_layout import ARM_ANY_AGE_MASK, ARM_SEQUENCE_MASK, ARM_SEQUENCE_SHIFT


def words_of(kinds: tuple[bool, ...], first: int) -> list[int]:
    """What the slot held, and the arm words stored one after the other; True: solicited only."""
    held = first << ARM_SEQUENCE_SHIFT
    words = ArmWords(held)
    return [held, *(words.next(12345, solicited) for solicited in kinds)]


def test_whatever_the_hca_has_seen_before_it_arms_for_the_widest_it_has_not():
    cases = 0
    for first in (0, 5, ARM_SEQUENCE_MASK - 3, ARM_SEQUENCE_MASK):
        for kinds in product((False, True), repeat=6):
            words = words_of(kinds, first)
            for seen in range(len(words) - 1):
                expected = not all(kinds[seen:])
                assert asks_for_any(words[-1], words[seen]) == expected, (first, kinds, seen)
                cases += 1
    assert cases == 4 * 64 * 6


def test_arms_beyond_what_the_word_can_tell_are_never_too_narrow():
    for before in range(ARM_ANY_AGE_MASK * 3):
        words = words_of((False, *[True] * before, True), 0)
        assert asks_for_any(words[-1], words[0])  # the arm for any entry was not seen
        assert not asks_for_any(words[-1], words[-2])  # seen one by one, each is what it says
