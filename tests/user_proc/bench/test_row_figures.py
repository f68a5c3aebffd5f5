"""Bootstrap figures against rows whose differences are known."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.user_proc.bench.synthetic import BLOCKS_PER_ROUND, ROUNDS, row, wobble
from user_proc.bench.full_plan import BASE, kernel_row
from user_proc.bench.row_figures import (
    Figure,
    Resampler,
    RowBook,
    crossing,
    difference,
    difference_each,
    interval_of,
    ratio,
)
from user_proc.bench.sample_statistics import median

NEITHER = replace(BASE, method="neither")


def book(*rows: dict[str, object]) -> RowBook:
    return RowBook(rows, BLOCKS_PER_ROUND)


def test_an_interval_holds_the_middle_of_the_draws():
    figure = interval_of(50.0, range(100))
    assert (figure.low, figure.high) == (2, 97)
    assert figure.shown
    assert not Figure(1.0, -0.5, 2.5).shown
    assert figure.as_dict() == {"value": 50.0, "low": 2, "high": 97}


def test_a_difference_is_that_of_the_medians_and_its_interval_holds_it():
    found = book(row(BASE, 100.0, 2.0), row(NEITHER, 90.0, 2.0)).pair(BASE, NEITHER)
    assert found is not None
    figure = difference(*found)
    assert figure.value == pytest.approx(10.0)
    assert 6.0 <= figure.low < 10.0 < figure.high <= 14.0
    times = ratio(*found)
    assert times.low < 100 / 90 < times.high


def test_a_larger_spread_widens_the_interval_until_nothing_is_shown():
    widths = []
    for spread in (0.1, 3.0, 30.0):
        found = book(row(BASE, 100.0, spread), row(NEITHER, 98.0, spread)).pair(BASE, NEITHER)
        assert found is not None
        figure = difference(*found)
        widths.append(figure.high - figure.low)
        assert figure.shown is (spread == 0.1)
    assert widths == sorted(widths)


def test_rounds_that_differ_widen_it_more_than_blocks_that_do():
    by_round = [100.0 + 10 * (index // BLOCKS_PER_ROUND) for index in range(15)]
    by_block = [100.0 + 10 * (index % 5) for index in range(15)]
    assert sorted(by_round) == sorted(by_block)
    spreads = []
    for blocks in (by_block, by_round):
        draws = Resampler(BLOCKS_PER_ROUND).draw(blocks, median)
        figure = interval_of(120.0, draws)
        spreads.append(sum(abs(value - 120.0) for value in draws) / len(draws))
        assert figure.low >= 100.0
    assert spreads[1] > spreads[0]


def test_the_same_document_gives_the_same_figures():
    rows = [row(BASE, 100.0, 5.0), row(NEITHER, 90.0, 5.0)]
    figures = [difference(*found) for _ in range(2) if (found := book(*rows).pair(BASE, NEITHER))]
    assert figures[0] == figures[1]


def test_draws_are_of_the_blocks_given_and_as_many():
    drawn: list[list[float]] = []
    Resampler(BLOCKS_PER_ROUND).draw(
        wobble(5.0, 1.0), lambda values: float(not drawn.append(list(values)))
    )
    assert all(len(values) == ROUNDS * BLOCKS_PER_ROUND for values in drawn)
    assert {value for values in drawn for value in values} == set(wobble(5.0, 1.0))


def test_the_time_of_each_is_not_that_of_a_request_when_many_are_in_flight():
    row_of_many = replace(kernel_row("irp"), depth=16)
    found = book(row(row_of_many, 26.0, each=3.0), row(kernel_row("irp"), 4.0)).pair(
        row_of_many, kernel_row("irp")
    )
    assert found is not None
    assert difference_each(*found).value == pytest.approx(-1.0)
    assert found[0].each.value == 3.0
    assert found[0].p50.value == 26.0


def test_rows_not_taken_and_rows_overloaded_are_not_found():
    found = book(row(BASE, 100.0), row(NEITHER, 90.0, marks=["overloaded"]))
    assert found.find(BASE) is not None
    assert found.find(NEITHER) is None
    assert found.pair(BASE, NEITHER) is None


SIZES = (64, 4096, 65536, 1 << 20)


def crossing_of(gaps: tuple[float, ...], spread: float = 0.001) -> Figure:
    rows = []
    pairs = []
    for size, gap in zip(SIZES, gaps, strict=True):
        one, other = replace(BASE, payload=size), replace(NEITHER, payload=size)
        rows += [row(one, 100.0 + gap, spread), row(other, 100.0, spread)]
        pairs.append((one, other))
    found = [book(*rows).pair(*pair) for pair in pairs]
    return crossing(SIZES, [pair for pair in found if pair is not None])


def test_a_crossing_lies_where_the_straight_line_is_zero():
    figure = crossing_of((-10.0, 30.0, 100.0, 500.0))
    assert figure.value == pytest.approx(64 + (4096 - 64) / 4)
    assert figure.low <= figure.value <= figure.high


def test_a_crossing_below_and_beyond_what_was_measured():
    assert crossing_of((5.0, 30.0, 100.0, 500.0)) == Figure(0.0, 0.0, 0.0)
    beyond = crossing_of((-5.0, -30.0, -100.0, -500.0))
    assert beyond.low == beyond.value == float("inf")


def test_a_smaller_size_that_wins_by_chance_does_not_count():
    figure = crossing_of((5.0, -10.0, 100.0, 500.0))
    assert 4096 < figure.value < 65536


def test_an_uncertain_difference_makes_an_uncertain_crossing():
    sure, unsure = (
        crossing_of((-10.0, 10.0, 99.0, 500.0)),
        crossing_of((-10.0, 10.0, 99.0, 500.0), spread=15.0),
    )
    assert unsure.high - unsure.low > sure.high - sure.low
    assert unsure.low == 0.0


@settings(max_examples=25)
@given(st.integers(0, 1000), st.floats(0.5, 20.0))
def test_a_row_against_itself_shows_nothing(seed: int, spread: float):
    rng = random.Random(seed)
    blocks = [rng.gauss(100.0, spread) for _ in range(15)]
    other = [rng.gauss(100.0, spread) for _ in range(15)]
    one = row(BASE, median(blocks)) | {"block_p50_us": blocks}
    two = row(NEITHER, median(other)) | {"block_p50_us": other}
    found = book(one, two).pair(BASE, NEITHER)
    assert found is not None
    figure = difference(*found)
    assert figure.low <= figure.high
    assert abs(figure.value) < 5 * spread
