"""Messages: bytes, object, bytes; golden bytes; any other bytes are a MessageError."""

import contextlib
from typing import Any, get_args, get_type_hints

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import messages as m
from shared.message_codec import MAX_MESSAGE, MessageError, decode, decode_as, encode

GOLDEN: list[tuple[Any, str]] = [
    (m.Hello(1, 2, "ping"), "95 01 01 01 02 a4 70696e67"),
    (m.Welcome(3, 1 << 63, 77, 1, 1 << 20, 64, 128, 1 << 28),
     "9a 02 01 03 cf8000000000000000 4d 01 ce00100000 40 cc80 ce10000000"),
    (m.Refused(0xC00000CE, "full"), "94 03 01 cec00000ce a4 66756c6c"),
    (m.AllocateArena(1, 4096), "94 04 01 01 cd1000"),
    (m.ArenaGranted(1, 9, 4096), "95 05 01 01 09 cd1000"),
    (m.ArenaMapped(2, 9, 0x7F0000000000), "95 06 01 02 09 cf00007f0000000000"),
    (m.FreeArena(3, 9), "94 07 01 03 09"),
    (m.Done(3, 0, ""), "95 08 01 03 00 a0"),
    (m.OpenDoorbells(4), "93 09 01 04"),
    (m.DoorbellsGranted(4, 2, 1 << 20, 4096), "96 0a 01 04 02 ce00100000 cd1000"),
    (m.BenchmarkRun("irp", 1, 64, 1000, 10), "98 14 01 a3 697270 01 40 cd03e8 0a 01"),
    (m.VerbsRun(b"ab", b"c", 5, 6, 1 << 40),
     "97 16 01 c402 6162 c401 63 05 06 cf0000010000000000"),
    (m.Counters(1, 2, 3, 4, 5, 6, 7, 8), "9a 15 01 01 02 03 04 05 06 07 08"),
    (m.TransferRun("msg_rate", 64, 1000, 5, 64, 16, 1, 0),
     "9a 17 01 a8 6d73675f72617465 40 cd03e8 05 40 10 01 00"),
]  # fmt: skip


def test_golden_list_covers_every_message():
    assert {type(message) for message, _ in GOLDEN} == set(get_args(m.Message))


@pytest.mark.parametrize(("message", "text"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: Any, text: str):
    data = bytes.fromhex(text)
    assert encode(message) == data
    assert decode(data) == message
    assert encode(decode(memoryview(data))) == data
    assert decode_as(type(message), data) == message


def _values(cls: type[Any]) -> st.SearchStrategy[Any]:
    def of(annotation: Any) -> st.SearchStrategy[Any]:
        kind, measure = get_args(annotation)
        if kind is int:
            return st.integers(0, (1 << measure) - 1)
        if kind is bytes:
            return st.binary(max_size=measure)
        return st.text(st.characters(exclude_categories=("Cs",)), max_size=measure)

    return st.builds(cls, *map(of, get_type_hints(cls, include_extras=True).values()))


@given(st.one_of([_values(cls) for cls in get_args(m.Message)]))
def test_object_bytes_object(message: Any):
    data = encode(message)
    assert len(data) <= MAX_MESSAGE
    assert decode(data) == message


@given(st.binary(max_size=600))
@example(b"")
@example(b"\x91" * 40000)  # nesting
@example(b"\xdd\xff\xff\xff\xff")  # an array that claims four thousand million members
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x92\x81\x93\x01\x02\x03\x01\x01")  # a list as a map's key
@example(b"\x92\xd6\xff\xff\xff\xff\xff\x01")  # a timestamp
@example(b"\x92\xa1\xff\x01")  # bad UTF-8
def test_fuzz_raw_bytes(data: bytes):
    with contextlib.suppress(MessageError):
        decode(data)


_PACKABLE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(_PACKABLE, max_size=12) | _PACKABLE, st.integers(0, 25))
def test_fuzz_well_formed_msgpack(value: Any, tag: int):
    arrays = [value]
    if isinstance(value, list):
        arrays.append([tag, 1, *value])
    for array in arrays:
        try:
            data = msgpack.packb(array)
        except (ValueError, UnicodeEncodeError):
            continue
        with contextlib.suppress(MessageError):
            assert type(decode(data)) in get_args(m.Message)


@given(st.sampled_from([encode(message) for message, _ in GOLDEN]), st.data())
def test_fuzz_one_byte_changed_or_cut(data: bytes, draw: st.DataObject):
    position = draw.draw(st.integers(0, len(data) - 1))
    value = draw.draw(st.integers(0, 255))
    for changed in (data[:position], data[:position] + bytes([value]) + data[position + 1 :]):
        with contextlib.suppress(MessageError):
            decode(changed)


def test_trailing_fields_are_tolerated_and_missing_ones_are_not():
    assert decode(msgpack.packb([7, 1, 3, 9, "later", {}])) == m.FreeArena(3, 9)
    with pytest.raises(MessageError, match="FreeArena has 1 fields, 2 are needed"):
        decode(msgpack.packb([7, 1, 3]))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ([], "an array of a tag"),
        ({"a": 1}, "an array of a tag"),
        ([True, 1, 3, 9], "integers"),
        ([7, 1.0, 3, 9], "integers"),
        ([99, 1], "unknown message tag 99"),
        ([7, 2, 3, 9], "FreeArena has version 2"),
        ([7, 1, True, 9], "FreeArena.request is bool, not int"),
        ([7, 1, -1, 9], "FreeArena.request = -1 is out of range"),
        ([7, 1, 1 << 32, 9], "out of range"),
        ([7, 1, "3", 9], "is str, not int"),
        ([1, 1, 1, 1, b"x"], "Hello.process_name is bytes, not str"),
        ([1, 1, 1, 1, "x" * 1025], "longer than 1024"),
    ],
)
def test_reasons(array: Any, reason: str):
    with pytest.raises(MessageError, match=reason):
        decode(msgpack.packb(array))


def test_size_limit_is_checked_before_unpacking():
    with pytest.raises(MessageError, match="at most 65536 bytes"):
        decode(b"\xc1" * (MAX_MESSAGE + 1))


def test_trailing_bytes_are_refused():
    with pytest.raises(MessageError, match="not msgpack"):
        decode(encode(m.FreeArena(1, 1)) + b"\0")


def test_encode_refuses_what_does_not_fit():
    for bad in (
        m.FreeArena(-1, 1),
        m.FreeArena(1 << 32, 1),
        m.FreeArena(True, 1),
        m.Hello(1, 1, "\ud800"),
        m.Hello(1, 1, "x")._replace(process_name=b"x"),  # type: ignore[arg-type]  # on purpose
        "no message",
    ):
        with pytest.raises(MessageError):
            encode(bad)  # type: ignore[arg-type]  # on purpose


def test_decode_as_refuses_another_class():
    with pytest.raises(MessageError, match="FreeArena where Hello is due"):
        decode_as(m.Hello, encode(m.FreeArena(1, 1)))


def test_counters_at_their_largest_fit_the_room_told():
    largest = m.Counters(*[(1 << 64) - 1] * len(m.Counters._fields))
    assert len(encode(largest)) <= m.COUNTERS_MAX_LENGTH
