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
    interval_of,
    paired_difference,
)
from user_proc.bench.sample_statistics import median

NEITHER = replace(BASE, method="neither")
CHECKED = replace(BASE, verifier=True)


def book(*rows: dict[str, object]) -> RowBook:
    return RowBook(rows, BLOCKS_PER_ROUND)


def test_an_interval_holds_the_middle_of_the_draws():
    figure = interval_of(50.0, range(100))
    assert (figure.low, figure.high) == (2, 97)
    assert figure.shown
    assert not Figure(1.0, -0.5, 2.5).shown
    assert figure.as_dict() == {"value": 50.0, "low": 2, "high": 97}


def test_a_difference_across_families_is_that_of_the_medians():
    found = book(row(CHECKED, 100.0, 2.0), row(BASE, 90.0, 2.0))
    figure = found.difference(CHECKED, BASE).figure
    assert figure.value == pytest.approx(10.0)
    assert 6.0 <= figure.low < 10.0 < figure.high <= 14.0
    assert found.ratio(CHECKED, BASE).figure.value == pytest.approx(100 / 90)


def test_rows_of_a_family_are_compared_block_by_block():
    # Both rows move together, by far more than they differ.
    blocks = [100.0 + 40.0 * (index % 3) for index in range(15)]
    rows = [
        row(spec, median(blocks) + more) | {"block_p50_us": [value + more for value in blocks]}
        for spec, more in ((BASE, 5.0), (NEITHER, 0.0))
    ]
    figure = book(*rows).difference(BASE, NEITHER).figure
    assert (figure.value, figure.low, figure.high) == (5.0, 5.0, 5.0)
    apart = [values | {"block_p50_us": values["block_p50_us"][::way]}
             for values, way in zip(rows, (1, -1), strict=True)]  # fmt: skip
    assert not book(*apart).difference(BASE, NEITHER).figure.shown


def test_a_larger_spread_widens_the_interval_until_nothing_is_shown():
    widths = []
    for spread in (0.1, 3.0, 30.0):
        found = book(row(CHECKED, 100.0, spread), row(BASE, 98.0, spread))
        figure = found.difference(CHECKED, BASE).figure
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
        spreads.append(sum(abs(value - 120.0) for value in draws) / len(draws))
    assert spreads[1] > spreads[0]


def test_the_same_document_gives_the_same_figures():
    rows = [row(CHECKED, 100.0, 5.0), row(BASE, 90.0, 5.0)]
    assert book(*rows).difference(CHECKED, BASE) == book(*rows).difference(CHECKED, BASE)


def test_draws_are_of_the_blocks_given_and_as_many():
    drawn: list[list[float]] = []
    Resampler(BLOCKS_PER_ROUND).draw(
        wobble(5.0, 1.0), lambda values: float(not drawn.append(list(values)))
    )
    assert all(len(values) == ROUNDS * BLOCKS_PER_ROUND for values in drawn)
    assert {value for values in drawn for value in values} == set(wobble(5.0, 1.0))


def test_the_time_of_each_is_not_that_of_a_request_when_many_are_in_flight():
    many = replace(kernel_row("irp"), depth=16)
    found = book(row(many, 26.0, each=3.0), row(kernel_row("irp"), 4.0))
    assert found.difference_each(many, kernel_row("irp")).figure.value == pytest.approx(-1.0)
    assert found.each(many).value == 3.0
    assert found.p50(many).value == found.p50_us(many) == 26.0


def test_rows_not_taken_and_rows_overloaded_are_not_there():
    found = book(row(BASE, 100.0), row(NEITHER, 90.0, marks=["overloaded"]))
    assert found.has(BASE)
    assert not found.has(NEITHER)
    assert not found.has(BASE, NEITHER)


def test_rows_of_different_families_are_set_right_by_their_floors():
    # Each row is slower by what its floors are, in blocks of its own.
    slow = [[40.0 if (index + shift) % 3 else 0.0 for index in range(15)] for shift in (0, 1)]
    rows = []
    for spec, p50, extra in ((CHECKED, 105.0, slow[0]), (BASE, 100.0, slow[1])):
        blocks = [p50 + more for more in extra]
        floors = [50.0 + more for more in extra]
        rows.append(
            row(spec, median(blocks)) | {"block_p50_us": blocks, "floor_block_p50_us": floors}
        )
    figure = book(*rows).difference(CHECKED, BASE).figure
    assert (figure.value, figure.low, figure.high) == (5.0, 5.0, 5.0)


def test_kernel_rows_are_left_as_they_are():
    direct, checked = kernel_row("direct"), replace(kernel_row("direct"), verifier=True)
    moving = {"floor_block_p50_us": [50.0 + index for index in range(15)]}
    found = book(row(direct, 2.0, 0.0) | moving, row(checked, 3.0, 0.0))
    assert set(found.difference(checked, direct).draws) == {1.0}


def test_the_cost_of_what_alternates_is_judged_block_by_block():
    without = [100.0 + 30 * (index % 4) for index in range(15)]
    figure = paired_difference([value + 7 for value in without], without, BLOCKS_PER_ROUND)
    assert (figure.value, figure.low, figure.high) == (7.0, 7.0, 7.0)


SIZES = (64, 4096, 65536, 1 << 20)


def crossing_of(gaps: tuple[float, ...], spread: float = 0.001) -> Figure:
    rows = []
    for size, gap in zip(SIZES, gaps, strict=True):
        one, other = replace(BASE, payload=size), replace(NEITHER, payload=size)
        rows += [row(one, 100.0 + gap, spread), row(other, 100.0, 0.0)]
    found = book(*rows)
    return crossing(
        SIZES,
        [
            found.difference(replace(BASE, payload=size), replace(NEITHER, payload=size))
            for size in SIZES
        ],
    )


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
        crossing_of((-10.0, 10.0, 99.0, 500.0), spread=40.0),
    )
    assert unsure.high - unsure.low > sure.high - sure.low
    assert unsure.low == 0.0


@settings(max_examples=25)
@given(st.integers(0, 1000), st.floats(0.5, 20.0))
def test_a_row_against_itself_shows_nothing_large(seed: int, spread: float):
    rng = random.Random(seed)
    rows = []
    for spec in (BASE, NEITHER):
        blocks = [rng.gauss(100.0, spread) for _ in range(15)]
        rows.append(row(spec, median(blocks)) | {"block_p50_us": blocks})
    figure = book(*rows).difference(BASE, NEITHER).figure
    assert figure.low <= figure.value <= figure.high
    assert abs(figure.value) < 5 * spread
