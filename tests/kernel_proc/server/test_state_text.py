"""The state as text: what json.dumps gives, in pieces that are short."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.server.state_text import state_text

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=6)
    ),
    max_leaves=40,
)


@given(PLAIN)
def test_it_is_what_json_makes_of_it(state: Any) -> None:
    assert json.loads(state_text(state, lambda: None)) == json.loads(json.dumps(state))


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1000])
def test_many_objects_come_in_pieces(count: int) -> None:
    objects = [{"kind": "MR", "handle": n, "parents": [["PD", 1]]} for n in range(count)]
    contexts = [{"context": n, "objects": objects} for n in range(3)]
    state = {"hca": {"contexts": contexts, "tables": {1: 2}}, "empty": [], "none": {}}
    pauses: list[int] = []
    assert json.loads(state_text(state, lambda: pauses.append(1))) == json.loads(json.dumps(state))
    assert len(pauses) == (3 * -(-count // 256) if count > 256 else 0)
