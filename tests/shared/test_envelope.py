"""The header: size, alignment, golden bytes, and that both views of it agree."""

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import envelope
from shared.envelope import ANSWER, HEADER, MAGIC, Header, make_header, parse_header

_SIZES = {"H": 2, "I": 4, "Q": 8}


def _codes(fmt: str) -> list[str]:
    """Expand a struct format into one code per field or pad byte."""
    expanded = []
    for count, code in re.findall(r"(\d*)([HIQx])", fmt):
        expanded += [code] * int(count or 1)
    return expanded


def test_size_and_byte_order():
    assert HEADER.format.startswith("<")
    assert HEADER.size == 104
    assert HEADER.size <= 128
    assert HEADER.size % 8 == 0
    assert ANSWER.size == HEADER.size


def test_every_field_is_naturally_aligned():
    offset = 0
    for code in _codes(HEADER.format):
        if code != "x":
            assert offset % _SIZES[code] == 0, f"field at {offset}"
        offset += _SIZES.get(code, 1)
    assert offset == HEADER.size
    assert struct.calcsize("@" + HEADER.format[1:]) == HEADER.size  # a C compiler adds nothing


def test_field_widths_follow_the_field_names():
    widths = {
        **dict.fromkeys(Header._fields, "I"),
        **dict.fromkeys(("version", "kind"), "H"),
        **dict.fromkeys(
            ("epoch", "request_id", "input_address", "output_address", "apc_context"), "Q"
        ),
        "information": "Q",
    }
    codes = [code for code in _codes(HEADER.format) if code != "x"]
    assert codes == [widths[name] for name in Header._fields]


GOLDEN = bytes.fromhex(
    "53484341 0100 0400 03000000 07000000"  # magic, version, kind, flags, session
    "efcdab8967452301 02000000 05000000"  # epoch, thread, file handle
    "0100000002000000 00200180 09000000"  # request id, control code, event handle
    "0010000000000000 0020000000000000"  # input address, output address
    "40000000 80000000 eeffc00000000000"  # input length, output length, ApcContext
    "030100c0 0b000000 4000000000000000"  # status, sequence, information
    "220000c0 00000000"  # IOSB status, padding
)

GOLDEN_FIELDS = Header(
    magic=MAGIC,
    version=1,
    kind=envelope.KIND_DEVICE_CONTROL,
    flags=envelope.FLAG_INPUT_INLINE | envelope.FLAG_OUTPUT_INLINE,
    session=7,
    epoch=0x0123456789ABCDEF,
    thread=2,
    file_handle=5,
    request_id=2 << 32 | 1,
    control_code=0x80012000,
    event_handle=9,
    input_address=0x1000,
    output_address=0x2000,
    input_length=64,
    output_length=128,
    apc_context=0xC0FFEE,
    status=0xC0000103,
    sequence=11,
    information=64,
    iosb_status=0xC0000022,
)


def test_golden_bytes():
    assert HEADER.pack(*GOLDEN_FIELDS) == GOLDEN
    assert parse_header(GOLDEN) == GOLDEN_FIELDS
    keywords = GOLDEN_FIELDS._asdict()
    del keywords["magic"], keywords["version"]
    assert make_header(**keywords) == GOLDEN


def test_answer_view_reads_the_same_fields():
    f = GOLDEN_FIELDS
    assert ANSWER.unpack(GOLDEN) == (
        f.magic,
        f.kind,
        f.flags,
        f.file_handle,
        f.request_id,
        f.apc_context,
        f.status,
        f.sequence,
        f.information,
        f.iosb_status,
    )


def test_kinds_and_flags_are_distinct():
    kinds = [value for name, value in vars(envelope).items() if name.startswith("KIND_")]
    flags = [value for name, value in vars(envelope).items() if name.startswith("FLAG_")]
    assert len(set(kinds)) == len(kinds)
    assert all(0 < kind < 1 << 16 for kind in kinds)
    assert all(value.bit_count() == 1 for value in flags)
    assert len(set(flags)) == len(flags)


_FIELDS = st.tuples(
    *(st.integers(0, (1 << 8 * _SIZES[code]) - 1) for code in _codes(HEADER.format) if code != "x")
)


@given(_FIELDS)
def test_bytes_object_bytes(values: tuple[int, ...]):
    header = Header(MAGIC, *values[1:])
    data = HEADER.pack(*header)
    assert parse_header(data) == header
    assert HEADER.pack(*parse_header(memoryview(data))) == data


@given(st.binary(max_size=256))
def test_garbage_is_a_value_error(data: bytes):
    with pytest.raises(ValueError):
        parse_header(data if data[:4] != GOLDEN[:4] else b"")


def test_cut_long_and_foreign_frames_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="this frame has 103"):
        parse_header(GOLDEN[:-1])
    with pytest.raises(ValueError, match="this frame has 105"):
        parse_header(GOLDEN + b"\0")
    with pytest.raises(ValueError, match="magic 0x"):
        parse_header(b"\0" + GOLDEN[1:])
