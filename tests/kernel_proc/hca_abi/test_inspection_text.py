"""What an HCA tells, as lines: there and back, and bytes that are no line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.hca_abi.inspection_text import Part, line_of, part_of, put, tree_of

KEYS = st.lists(st.text(max_size=8), min_size=1, max_size=4).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(KEYS, VALUES)
def test_a_part_comes_back_as_it_was(keys: tuple[str, ...], value: Any):
    line = line_of((keys, value))
    assert line.splitlines() == [line[:-1]]
    assert part_of(line) == (keys, value)


@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_part_or_a_value_error(line: bytes):
    try:
        keys, _ = part_of(line)
    except ValueError:
        return
    assert keys
    assert all(isinstance(key, str) for key in keys)


def test_parts_are_put_where_they_belong():
    parts: list[Part] = [(("qps",), {}), (("qps", "7"), {"state": "RTS"}), (("dead",), False)]
    assert tree_of(parts) == {"qps": {"7": {"state": "RTS"}}, "dead": False}


def test_a_part_below_a_value_is_refused():
    tree: dict[str, Any] = {"dead": False}
    with pytest.raises(ValueError, match="nothing below 'dead'"):
        put(tree, (("dead", "really"), True))
