"""What the two sides tell each other of where they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.perftest.address import Address
from user_proc.perftest.tool_errors import ToolFailed

GOOD = Address(
    1, "fe80:0000:0000:0000:02c9:0003:0011:00a5", ((0x400, 5), (0x401, 6)), 0x1400, 1 << 46
)

VALUES = st.one_of(
    st.none(), st.integers(), st.text(max_size=40), st.lists(st.lists(st.integers(), max_size=3))
)


def test_there_and_back():
    fields: dict[str, Any] = GOOD.fields() | {"qps": [list(pair) for pair in GOOD.qps]}
    assert Address.of(fields, 2) == GOOD
    with pytest.raises(ToolFailed, match="has 2 queue pairs, this one 3"):
        Address.of(fields, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lid", 1 << 16),
        ("rkey", -1),
        ("base", 1 << 64),
        ("qps", [[1 << 24, 0], [1, 1]]),
        ("qps", [[1], [2]]),
        ("gid", "fe80:"),
    ],
)
def test_what_no_address_can_be(name: str, value: object):
    fields = GOOD.fields() | {"qps": [list(pair) for pair in GOOD.qps]} | {name: value}
    with pytest.raises(ToolFailed, match="addresses cannot be understood"):
        Address.of(fields, 2)


@given(st.dictionaries(st.sampled_from(sorted(GOOD.fields())), VALUES))
def test_anything_is_an_address_or_refused_in_one_sentence(message: dict[str, Any]):
    fields = GOOD.fields() | {"qps": [list(pair) for pair in GOOD.qps]} | message
    said = ""
    try:
        assert len(Address.of(fields, 2).qps) == 2
    except ToolFailed as error:
        said = str(error)
    assert "\n" not in said
