"""Messages know themselves: any change of a byte is seen, and told."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.stress.findings import CORRUPT, Finding
from user_proc.stress.payloads import check, payload, store

STREAMS = st.integers(0, (1 << 32) - 1)
SEQUENCES = st.integers(0, (1 << 48))


@given(STREAMS, SEQUENCES, st.integers(0, 3000))
def test_what_was_stored_is_found(stream: int, sequence: int, length: int):
    memory = ctypes.create_string_buffer(length + 1)
    store(ctypes.addressof(memory), stream, sequence, length)
    check(ctypes.addressof(memory), stream, sequence, length, "here")
    assert memory.raw[length] == 0


@given(STREAMS, SEQUENCES, st.integers(1, 3000), st.data())
def test_a_changed_byte_is_found(stream: int, sequence: int, length: int, data: st.DataObject):
    memory = ctypes.create_string_buffer(payload(stream, sequence, length), length)
    place = data.draw(st.integers(0, length - 1))
    memory[place] = bytes([memory.raw[place] ^ data.draw(st.integers(1, 255))])
    with pytest.raises(Finding) as caught:
        check(ctypes.addressof(memory), stream, sequence, length, "here")
    assert caught.value.kind == CORRUPT


def test_it_says_whose_bytes_they_are_instead():
    memory = ctypes.create_string_buffer(payload(7, 40, 100), 100)
    with pytest.raises(Finding, match="is the whole message 40 of stream 7, 100 bytes"):
        check(ctypes.addressof(memory), 7, 42, 100, "here")
    memory[99] = bytes([memory.raw[99] ^ 1])
    with pytest.raises(Finding, match="is a damaged or cut message 40 of stream 7"):
        check(ctypes.addressof(memory), 7, 40, 100, "here")
    memory[0] = b"?"
    with pytest.raises(Finding, match="is none: 3f"):
        check(ctypes.addressof(memory), 7, 40, 100, "here")
