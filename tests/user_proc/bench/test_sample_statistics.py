"""Figures from samples, against data whose answers are known."""

import random
from array import array

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from user_proc.bench.sample_statistics import (
    BlockSamples,
    median,
    median_absolute_deviation,
    median_interval,
    moved_by,
    percentile,
)

samples_lists = st.lists(st.integers(0, 10**9), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("values", "middle"), [([3], 3), ([1, 2], 1.5), ([5, 1, 3], 3), ([1, 100, 2, 3], 2.5)]
)
def test_median(values: list[float], middle: float):
    assert median(values) == middle


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_percentiles_by_nearest_rank():
    ordered = list(range(1, 1001))
    assert percentile(ordered, 50.0) == 500
    assert percentile(ordered, 90.0) == 900
    assert percentile(ordered, 99.0) == 990


@pytest.mark.parametrize(
    ("percent", "enough"), [(90.0, 100), (99.0, 1_000), (99.9, 10_000), (99.99, 100_000)]
)
def test_a_percentile_needs_ten_samples_beyond_it(percent: float, enough: int):
    assert percentile(range(enough - 1), percent) is None
    assert percentile(range(enough), percent) == round(enough * percent / 100) - 1


@given(samples_lists, st.floats(1.0, 99.0))
def test_a_percentile_is_a_sample_with_its_share_below(values: list[int], percent: float):
    ordered = sorted(values)
    found = percentile(ordered, percent)
    if found is not None:
        assert found in values
        assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6


def test_median_absolute_deviation_ignores_one_outlier():
    assert median_absolute_deviation([10, 11, 9, 10, 1_000_000]) == 1
    assert median_absolute_deviation([7, 7, 7]) == 0


def test_interval_ranks_are_those_of_the_tables():
    # Tables of the sign test: 95 % for 15 values is the 4th to the 12th, for 20 the 6th to 15th.
    assert median_interval(list(range(1, 16))) == (4, 12)
    assert median_interval(list(range(1, 21))) == (6, 15)
    assert median_interval([5.0]) == (5.0, 5.0)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    chance = random.Random(7)
    held = 0
    for _ in range(2_000):
        low, high = median_interval([chance.random() for _ in range(15)])
        held += low <= 0.5 <= high
    assert 0.94 <= held / 2_000 <= 0.99


def test_moved_by():
    assert moved_by([10, 10, 10, 10]) == 0
    assert moved_by([10, 10, 99, 12, 12]) == pytest.approx(0.2)
    assert moved_by([5]) == 0
    assert moved_by([0, 3]) == 0


def blocks(*values: list[int]) -> BlockSamples:
    return BlockSamples(tuple(array("Q", block) for block in values))


def test_the_judged_figure_is_the_median_of_block_medians():
    samples = blocks([1, 2, 3], [10, 20, 30], [4, 5, 600])
    assert samples.block_medians() == [2, 20, 5]
    assert samples.judged_ns() == 5
    assert samples.count == 9
    assert samples.total_ns == 675
    assert list(samples.ordered()) == [1, 2, 3, 4, 5, 10, 20, 30, 600]


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=8, max_size=8), min_size=15, max_size=15))
def test_the_judged_figure_never_passes_the_upper_quartile(values: list[list[int]]):
    samples = blocks(*values)
    ordered = samples.ordered()
    judged = samples.judged_ns()
    assert sum(sample >= judged for sample in ordered) >= len(ordered) / 4 - 1
    p90 = percentile(ordered, 90.0)
    assert p90 is not None
    assert judged <= p90


def test_the_histogram_holds_every_sample_and_counts_what_it_cannot():
    samples = blocks([1_000] * 99, [0, 50_000, 10**12])
    encoded, dropped = samples.histogram()
    histogram = HdrHistogram.decode(encoded.encode())
    assert dropped == 1
    assert histogram.get_total_count() == 101
    assert histogram.get_value_at_percentile(50) == pytest.approx(1_000, rel=0.001)
    assert histogram.get_max_value() == pytest.approx(50_000, rel=0.001)
