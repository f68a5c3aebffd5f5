"""Who is cut, in which order, and who is found to have held what came back."""

import pytest

from kernel_proc.server.unfinished_messages import Suspects

MIB = 1 << 20
OWNERS = {10: 3, 11: 3, 12: 2, 13: 3, 14: 1}  # processes by connection, in the order they came


def cut(suspects: Suspects, owners: dict[int, int], used: int, long_ones: int = 0) -> int | None:
    return suspects.next(owners, [], used, long_ones)


def test_each_process_is_cut_once_and_the_latest_first():
    suspects = Suspects()
    assert [cut(suspects, OWNERS, 100 * MIB) for _ in range(4)] == [1, 3, 2, None]
    assert cut(suspects, {**OWNERS, 15: 4}, 100 * MIB) == 4


def test_who_is_seen_sending_is_cut_first():
    suspects = Suspects()
    order = [suspects.next(OWNERS, [2, 2], 100 * MIB, 0) for _ in range(4)]
    assert order == [2, 1, 3, None]


def test_who_gave_much_back_held_it():
    suspects = Suspects()
    assert not suspects.has_been_cut
    cut(suspects, {10: 1}, 1000 * MIB)
    assert suspects.has_been_cut
    assert suspects.holder(900 * MIB, 0) == 1
    assert not suspects.has_been_cut


def test_who_gave_little_back_held_nothing():
    suspects = Suspects()
    cut(suspects, {10: 1}, 1000 * MIB)
    assert suspects.holder(990 * MIB, 0) is None
    cut(suspects, {10: 2}, 20 * MIB)
    assert suspects.holder(17 * MIB, 0) is None  # a large part, but of little
    cut(suspects, {10: 3}, 1000 * MIB)
    assert suspects.holder(1100 * MIB, 0) is None


@pytest.mark.parametrize(
    ("ended", "holder"), [([], 1), ([20], 1), ([99], 1), ([10], None), ([20, 11], None)]
)
def test_what_another_may_have_given_back_is_nobodys(ended: list[int], holder: int | None):
    """Its own connections end, too, and those that came since cannot have held it."""
    suspects = Suspects()
    assert cut(suspects, {10: 2, 11: 2, 20: 1}, 1000 * MIB) == 1
    for descriptor in ended:
        suspects.ended(descriptor)
    assert suspects.holder(100 * MIB, 0) == holder


@pytest.mark.parametrize(
    ("before", "after", "holder"), [(2, 2, 1), (2, 3, None), (2, 4, None), (3, 3, None)]
)
def test_a_long_message_that_was_finished_meanwhile_may_have_held_it(
    before: int, after: int, holder: int | None
):
    suspects = Suspects()
    assert cut(suspects, {20: 1}, 1000 * MIB, before) == 1
    assert suspects.holder(100 * MIB, after) == holder


def test_all_are_tried_again_when_it_has_become_much_more_or_after_it_was_little():
    suspects = Suspects()
    assert cut(suspects, {10: 1}, 100 * MIB) == 1
    assert cut(suspects, {10: 1}, 110 * MIB) is None
    assert cut(suspects, {10: 1}, 200 * MIB) is None
    assert cut(suspects, {10: 1}, 200 * MIB) == 1
    suspects.clear()
    assert not suspects.has_been_cut
    assert cut(suspects, {10: 1}, 200 * MIB) == 1
