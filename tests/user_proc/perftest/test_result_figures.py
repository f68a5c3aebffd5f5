"""The figures, against perftest's definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.perftest.measured_window import Window
from user_proc.perftest.result_figures import Bandwidth, latency_of, peak_of, rate_of, samples_of


def test_samples_are_differences_and_half_of_them_for_turns():
    assert samples_of([0, 1000, 4000], halve=False) == [1.0, 3.0]
    assert samples_of([0, 1000, 4000], halve=True) == [0.5, 1.5]


def test_the_two_largest_samples_are_dropped():
    row = latency_of(2, [5.0, 1.0, 9.0, 7.0, 3.0])  # 6 iterations: three are kept
    assert (row.iterations, row.least, row.most, row.typical, row.average) == (6, 1, 7, 3, 3)
    assert row.deviation == pytest.approx((8 / 3) ** 0.5)
    assert row.percentile_99 == row.percentile_999 == row.most


def test_percentiles_of_many():
    row = latency_of(2, [float(number) for number in range(1002)])
    assert (row.percentile_99, row.percentile_999, row.most) == (990, 999, 1000)


@given(st.lists(st.floats(0.1, 1e6), min_size=4, max_size=60))
def test_the_order_of_the_figures(samples: list[float]):
    row = latency_of(2, samples)
    assert row.least <= row.typical <= row.percentile_99 <= row.percentile_999 <= row.most
    assert row.least * (1 - 1e-9) <= row.average <= row.most * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=40),
    st.integers(1, 4),
)
def test_the_peak_is_the_best_of_all_pairs(steps: list[tuple[int, int]], each: int):
    posts, completed, now = [], [], 0
    for gap, took in steps:
        for _ in range(each):
            posts.append(now)
            now += gap
        now += took
        completed.append((len(posts), now))
    best = max(
        (count - first) / (when - posts[first])
        for count, when in completed
        for first in range(count)
    )
    assert peak_of(posts, completed) == pytest.approx(best * 1e9)


def test_units():
    row = Bandwidth(1 << 20, 10, None, 100.0)
    assert row.rate(row.average, gigabits=False) == 100
    assert row.rate(row.average, gigabits=True) == pytest.approx(0.8388608)
    assert rate_of(5, 10**9) == 5


def test_a_window_leaves_the_margins_out():
    window = Window(0, 10, 2)
    for second in range(11):
        window.note(second * 10**9, 1)
    assert (window.count, window.length, window.stop) == (6, 6 * 10**9, 10 * 10**9)
