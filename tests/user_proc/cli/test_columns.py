"""Columns of plain text: complete, aligned, harmless."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from user_proc.cli.columns import Column, labelled, lines_of, text_of

COLUMNS = (Column("one", "ONE"), Column("two", "TWO", may_go=True))


def test_numbers_stand_right_and_words_left():
    rows: list[dict[str, Any]] = [{"one": 1, "two": "a"}, {"one": 1000, "two": "bcd"}]
    assert list(lines_of(COLUMNS, rows)) == [" ONE  TWO", "   1  a", "1000  bcd"]


def test_a_column_without_any_text_may_go():
    assert list(lines_of(COLUMNS, [{"one": 1, "two": None}])) == ["ONE", "  1"]
    assert list(lines_of((Column("one", "ONE"),), [{"one": None}])) == ["ONE", ""]


def test_counts_of_things_stand_right():
    columns = (Column("one", "ONE", lambda things: str(len(things))),)
    assert list(lines_of(columns, [{"one": []}, {"one": [1] * 10}])) == ["ONE", "  0", " 10"]


def test_columns_that_a_width_has_no_room_for_stand_below_beside_the_first():
    columns = [Column(name, name.upper()) for name in ("a", "b", "c", "d")]
    rows = [{"a": 1, "b": 2, "c": "xxxxxx", "d": "yyyyyy"}]
    whole = ["A  B  C       D", "1  2  xxxxxx  yyyyyy"]
    assert list(lines_of(columns, rows)) == list(lines_of(columns, rows, 20)) == whole
    two = ["A  B  C", "1  2  xxxxxx", "", "A  B  D", "1  2  yyyyyy"]
    assert list(lines_of(columns, rows, 19)) == list(lines_of(columns, rows, 1)) == two


def test_labels_stand_above_each_other():
    pairs = [("a:", 1), ("long:", True), ("", "more")]
    assert list(labelled(pairs, 2)) == ["  a:     1", "  long:  yes", "         more"]


@given(st.lists(st.fixed_dictionaries({"one": st.integers(), "two": st.text()}), max_size=20))
def test_every_row_is_one_line_that_holds_its_values(rows: list[dict[str, Any]]):
    lines = list(lines_of(COLUMNS, rows))
    assert len(lines) == 1 + len(rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.isprintable()
        assert line.split()[0] == str(row["one"])
        assert text_of(row["two"]).rstrip() in line


@given(st.text())
def test_what_a_terminal_would_obey_is_not_shown(text: str):
    shown = text_of(f"\x1b[2J{text}\n")
    assert shown.isprintable()
    assert len(shown) == len(text) + 5
