"""Tables of experiments: within a page, nothing lost, what is the same said once."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from user_proc.cli.experiment_table import experiment_lines, table_lines

Row = dict[str, Any]


def test_a_table_has_plain_values_and_no_column_for_the_rest():
    rows: list[Row] = [
        {"way": "a", "time_us": 1.25, "steps": ["x"]},
        {"way": "b", "outcome": "stopped"},
    ]
    found = {"name": "one", "question": "Which?", "verdict": "This one.", "rows": rows}
    lines = list(experiment_lines(found))
    assert lines[:2] == ["one: Which?", "How to read it: docs/experiments-one.md"]
    assert lines[3:-2] == ["     time", "way    us  outcome", "a    1.25", "b          stopped"]
    assert lines[-1] == "Verdict: This one."


def test_what_is_the_same_in_all_rows_is_said_above():
    rows = [{"way": way, "model": "none", "bytes": 64} for way in "ab"]
    assert list(table_lines(rows)) == ["model none, bytes 64", "way", "a", "b"]


def test_a_bug_check_is_shown_by_its_code_and_named_once():
    stop = {"code": 0xE6, "name": "DRIVER_VERIFIER_DMA_VIOLATION", "parameters": [0x13, 0, 0, 0]}
    rows: list[Row] = [{"way": way, "outcome": "bug check", "bug_check": stop} for way in "ab"]
    rows.append({"way": "c", "outcome": "done"})
    lines = list(table_lines(rows))
    assert lines[1:4] == ["a    bug check 0xe6/0x13", "b    bug check 0xe6/0x13", "c    done"]
    assert lines[-1] == "Bug checks: 0xe6 DRIVER_VERIFIER_DMA_VIOLATION."


def test_a_wide_table_is_cut_by_its_first_column():
    wide = "x" * 60
    rows = [
        {"lock": lock, "what": f"{number} {wide}", "outcome": f"{number} {wide[:30]}"}
        for lock in ("one", "other")
        for number in range(5)
    ]
    lines = list(table_lines(rows))
    assert [line for line in lines if line.startswith("lock")] == ["lock one", "lock other"]
    assert max(map(len, lines)) <= 100


def test_blocks_repeat_what_tells_rows_apart_and_leave_out_what_says_nothing():
    rows: list[Row] = [{"way": way, "load": load} for load in ("none", "burst") for way in "ab"]
    for number, row in enumerate(rows[:3]):
        row |= {"cancel": "c" * 50 + str(number), "death": f"{'d' * 40} {row['way']}"}
    rows[1]["death"] = ""
    lines = list(table_lines(rows))
    assert sum(line.startswith("way  load") for line in lines) == 2
    assert sum(line.startswith("b    none") for line in lines) == 1
    assert sum(line.startswith("b    burst") for line in lines) == 1  # it has its labels to tell
    assert max(map(len, lines)) <= 100


TEXTS = st.text(st.characters(min_codepoint=97, max_codepoint=122), max_size=18)
VALUES = st.one_of(TEXTS, st.integers(0, 10**9), st.booleans(), st.none())
KEYS = [f"key_{letter * 3}" for letter in "abcdefghij"]
ROWS = st.lists(st.fixed_dictionaries({key: VALUES for key in KEYS}), min_size=1, max_size=12)


@given(ROWS)
def test_no_table_is_wider_than_a_page_and_none_loses_a_value(rows: list[Row]):
    lines = list(table_lines(rows))
    assert max(map(len, lines), default=0) <= 100
    shown = " ".join(lines)
    for row in rows:
        for value in row.values():
            if isinstance(value, str):
                assert value in shown
            elif isinstance(value, int) and not isinstance(value, bool):
                assert f"{value:,}" in shown
