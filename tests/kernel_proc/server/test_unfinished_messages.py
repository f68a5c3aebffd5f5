"""Who is cut, in which order, and who is found to have held what came back."""

from kernel_proc.server.unfinished_messages import Suspects

MIB = 1 << 20


def test_each_process_is_cut_once():
    suspects = Suspects()
    assert [suspects.next([3, 3, 2, 3, 1], 100 * MIB) for _ in range(4)] == [3, 2, 1, None]
    assert suspects.next([4, 3], 100 * MIB) == 4


def test_who_gave_much_back_held_it():
    suspects = Suspects()
    assert not suspects.has_been_cut
    suspects.next([1], 1000 * MIB)
    assert suspects.has_been_cut
    assert suspects.holder(900 * MIB) == 1
    assert not suspects.has_been_cut


def test_who_gave_little_back_held_nothing():
    suspects = Suspects()
    suspects.next([1], 1000 * MIB)
    assert suspects.holder(990 * MIB) is None
    suspects.next([2], 20 * MIB)
    assert suspects.holder(17 * MIB) is None  # a large part, but of little
    suspects.next([3], 1000 * MIB)
    assert suspects.holder(1100 * MIB) is None


def test_all_are_tried_again_when_it_has_become_much_more_or_after_it_was_little():
    suspects = Suspects()
    assert suspects.next([1], 100 * MIB) == 1
    assert suspects.next([1], 110 * MIB) is None
    assert suspects.next([1], 200 * MIB) is None
    assert suspects.next([1], 200 * MIB) == 1
    suspects.clear()
    assert not suspects.has_been_cut
    assert suspects.next([1], 200 * MIB) == 1
