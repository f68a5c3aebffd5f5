"""Figures in words."""

import pytest

from user_proc.bench.row_figures import Figure
from user_proc.bench.wording import (
    about_size,
    microseconds,
    more_or_less,
    payload_text,
    share,
    span,
)


@pytest.mark.parametrize(
    ("payload", "text"),
    [(0, "0 B"), (64, "64 B"), (1000, "1000 B"), (4096, "4 KiB"), (65536, "64 KiB"),
     (1 << 20, "1 MiB"), (1536, "1536 B")],
)  # fmt: skip
def test_sizes_are_never_mixed_units(payload: int, text: str):
    assert payload_text(payload) == text


@pytest.mark.parametrize(
    ("size", "text"), [(77.4, "77 B"), (2.5, "2.5 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB")]
)
def test_computed_sizes_have_two_digits(size: float, text: str):
    assert about_size(size) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (-4.5, "-4.50"), (12.34, "12.3"), (12345.6, "12,346")]
)
def test_microseconds_have_about_three_digits(value: float, text: str):
    assert microseconds(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(2.5, 1_000, "0.25 %"), (2.5, 1_000_000, "0.00025 %"), (25, 30, "83 %"), (60, 30, "200 %"),
     (0, 1, "0 %"), (0.1, 1, "10 %")],
)  # fmt: skip
def test_shares_have_two_digits(part: float, whole: float, text: str):
    assert share(part, whole) == text


def test_a_difference_is_told_with_its_interval_or_not_at_all():
    assert more_or_less(Figure(2.5, 2.0, 3.0)) == "2.50 us more (95 % interval 2.00 to 3.00 us)"
    assert more_or_less(Figure(-2.5, -3.0, -2.0)) == "2.50 us less (95 % interval 2.00 to 3.00 us)"
    for low, high in ((-0.1, 5.0), (-5.0, 0.1), (0.0, 5.0)):
        assert more_or_less(Figure(2.5, low, high)).startswith("no difference shown (")


def test_a_span_without_unit_has_none():
    assert span(Figure(1, 1, 2), str, "") == "95 % interval 1 to 2"
