"""Frames and messages between a rank and its launcher: there and back, and whatever else comes."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from user_proc.groups.rank_wire import (
    MAX_FIGURES,
    MAX_FRAME,
    MAX_TEXT,
    MAX_VALUE,
    MAX_WAIT_MS,
    Answer,
    Barrier,
    FrameError,
    FrameReader,
    Hello,
    Lookup,
    Message,
    Publish,
    Reach,
    Report,
    decode,
    encode,
)

text = st.text(max_size=MAX_TEXT).filter(lambda one: one.isprintable())
u16 = st.integers(0, (1 << 16) - 1)
wait = st.integers(0, MAX_WAIT_MS)
value = st.binary(max_size=200)
number = st.floats(allow_nan=False, allow_infinity=False)
figures = st.dictionaries(text.filter(bool), number, max_size=MAX_FIGURES)
messages = st.one_of(
    st.builds(Hello, u16, text, u16, text),
    st.builds(Publish, text, value),
    st.builds(Lookup, text, u16, text, wait),
    st.builds(Barrier, text, wait),
    st.builds(Report, figures),
    st.builds(Reach, text),
    st.builds(Answer, u16, value, text),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(messages, max_size=5), st.integers(1, 40))
def test_messages_come_back_however_the_stream_is_cut(sent: list[Message], piece: int):
    stream = b"".join(map(encode, sent))
    reader = FrameReader()
    found: list[Message] = []
    for start in range(0, len(stream), piece):
        found += map(decode, reader.feed(stream[start : start + piece]))
    assert found == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes):
    reader = FrameReader()
    try:
        bodies = reader.feed(data)
    except FrameError:
        return
    for body in bodies:
        assert 0 < len(body) <= MAX_FRAME


@settings(max_examples=50)
@given(plain | st.lists(st.integers(0, 9) | plain, max_size=6))
def test_any_value_is_a_message_or_a_frame_error(array: Any):
    try:
        body = msgpack.packb(array)
    except (ValueError, OverflowError):
        return
    try:
        message = decode(body)
    except FrameError:
        return
    assert decode(encode(message)[4:]) == message


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_frame_error(body: bytes):
    try:
        message = decode(body)
    except FrameError:
        return
    assert isinstance(message, tuple)


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 0xFFFF_FFFF])
def test_a_false_length_is_refused_before_anything_is_kept(length: int):
    with pytest.raises(FrameError, match="1 to 65536 bytes"):
        FrameReader().feed(struct.pack("<I", length))


@pytest.mark.parametrize(
    "message",
    [
        Publish("k", b"x" * (MAX_VALUE + 1)),
        Publish("k" * (MAX_TEXT + 1), b""),
        Hello(-1, "g", 0, "t"),
        Hello(1, "g", 1 << 16, "t"),
        Hello(True, "g", 0, "t"),
        Lookup("g", 0, "k", MAX_WAIT_MS + 1),
        Report({f"f{n}": 1.0 for n in range(MAX_FIGURES + 1)}),
        Report({"nan": float("nan")}),
        Report({"": 1.0}),
        Reach("\ud800"),
    ],
)
def test_what_does_not_fit_is_not_sent(message: Message):
    with pytest.raises(FrameError):
        encode(message)


def test_fields_after_those_known_are_ignored():
    assert decode(msgpack.packb([6, "there", "a later field"])) == Reach("there")
