"""The shortest program: nothing can be left out of it, and it finds the same."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from user_proc.stress.reducer import Reducer
from user_proc.stress.step_table import Step

LONG_ENOUGH = 60.0


@given(st.integers(1, 120), st.sets(st.integers(0, 119), min_size=1, max_size=5))
def test_only_what_is_needed_is_left(count: int, needed: set[int]):
    needed = {number % count for number in needed}
    steps: list[Step] = [["pd", number] for number in range(count)]

    def still_fails(some: Sequence[Step]) -> bool:
        return needed <= {step[1] for step in some}

    left = Reducer(still_fails, LONG_ENOUGH).reduce(steps)
    assert left == [["pd", number] for number in sorted(needed)]


def test_requests_of_a_burst_are_left_out_too():
    steps: list[Step] = [["pd", "a"], ["burst", "c", 0, [[number] for number in range(20)]]]

    def still_fails(some: Sequence[Step]) -> bool:
        return any(step[0] == "burst" and [13] in step[-1] for step in some)

    assert Reducer(still_fails, LONG_ENOUGH).reduce(steps) == [["burst", "c", 0, [[13]]]]


def test_one_that_does_not_fail_again_is_not_reduced():
    reducer = Reducer(lambda some: False, LONG_ENOUGH)
    assert reducer.reduce([["pd", "a"]]) is None
    assert reducer.tried == 3


def test_it_ends_when_its_time_is_over():
    reducer = Reducer(lambda some: True, 0.0)
    assert reducer.reduce([["pd", "a"], ["pd", "b"]]) is None
    assert reducer.tried == 0
