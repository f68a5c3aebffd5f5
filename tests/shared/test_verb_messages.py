"""The verbs' messages: golden bytes and the order of fields, which is the wire's; any bytes."""

import contextlib
import zlib
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import verb_codes
from shared import verb_messages as v
from shared.ioctl_codes import METHOD_BUFFERED, method_of
from shared.message_codec import MessageError, decode, decode_as, encode

GID = bytes(range(16))
FIRMWARE = "5.3.0"
GID_BYTES = bytes.fromhex("c410") + GID
FIRMWARE_BYTES = bytes.fromhex("a5") + FIRMWARE.encode()

#: Class; array header, tag and version; checksum of the names of the fields in their order.
HEADS: list[tuple[Any, str, int]] = [
    (v.OpenContext, "98 28 01", 0xFA62A0E0),
    (v.QueryDevice, "dc0022 29 01", 0x8AFCAD72),
    (v.PortQuery, "94 2a 01", 0x5674941F),
    (v.QueryPort, "dc0017 2b 01", 0x30F68D78),
    (v.QueryGid, "93 2c 01", 0x4C397118),
    (v.QueryPkey, "93 2d 01", 0x3FAA0D3B),
    (v.ModifyPort, "96 2e 01", 0xFBDE39E0),
    (v.Object, "93 2f 01", 0x918020D9),
    (v.Destroyed, "94 30 01", 0xF86BA854),
    (v.RegMr, "97 31 01", 0xB880C757),
    (v.Registered, "95 32 01", 0xFF397CE5),
    (v.ReregMr, "98 33 01", 0x386B32C6),
    (v.CreateAh, "9e 34 01", 0xCAC99D44),
    (v.CreateCq, "98 35 01", 0x5EBEF063),
    (v.CqCreated, "97 36 01", 0x5EA91AF3),
    (v.ResizeCq, "96 37 01", 0x46D0A7B3),
    (v.CreateSrq, "9a 38 01", 0x967705AF),
    (v.SrqCreated, "97 39 01", 0x21CE92F6),
    (v.ModifySrq, "96 3a 01", 0xA89078BF),
    (v.SrqAttributes, "95 3b 01", 0x5789BAEB),
    (v.CreateQp, "dc0012 3c 01", 0xEC551F3E),
    (v.QpCreated, "9e 3d 01", 0xC6F4EFE2),
    (v.ModifyQp, "dc0025 3e 01", 0xB0A9099A),
    (v.QpAttributes, "dc0025 3f 01", 0x8CF423B7),
    (v.OpenXrcd, "94 40 01", 0xA1491A01),
    (v.Multicast, "95 41 01", 0xFCEA9805),
    (v.Event, "96 42 01", 0x26483398),
    (v.AllocMw, "94 43 01", 0x510A8A2C),
    (v.WindowMade, "94 44 01", 0xDB4C3D79),
    (v.QueryDeviceEx, "96 45 01", 0x2653C9FB),
    (v.DeviceClock, "94 46 01", 0x88551F28),
    (v.AllocDm, "94 47 01", 0xBDDA994D),
    (v.DmBytes, "95 48 01", 0xC94435BB),
    (v.DmRange, "95 49 01", 0x3A9BD297),
    (v.DmContents, "93 4a 01", 0xADF3F363),
    (v.RegDmMr, "97 4b 01", 0xBB54D1AF),
    (v.ImportByDescriptor, "93 4c 01", 0x38A17B9F),
    (v.ImportMr, "94 4d 01", 0xD4BBCDF8),
    (v.MrImported, "96 4e 01", 0x7A822B8B),
    (v.DmImported, "94 4f 01", 0xA823C674),
    (v.AhCreated, "94 50 01", 0xEB50CE5C),
]
CLASSES = [cls for cls, _, _ in HEADS]


def kinds_of(cls: type[Any]) -> list[tuple[type, int]]:
    hints = get_type_hints(cls, include_extras=True)
    return [get_args(hints[name]) for name in cls._fields]


def numbered(cls: type[Any]) -> tuple[Any, bytes]:
    """A message whose integers count from 1, one byte each, and the bytes of its fields."""
    values: list[Any] = []
    data = b""
    for number, (kind, _) in enumerate(kinds_of(cls), 1):
        value, piece = {
            int: (number, bytes([number])),
            str: (FIRMWARE, FIRMWARE_BYTES),
            bytes: (GID, GID_BYTES),
        }[kind]
        values.append(value)
        data += piece
    return cls(*values), data


def test_the_list_covers_every_verb_message():
    assert set(CLASSES) == set(get_args(v.VerbMessage))
    assert set(CLASSES) == set(v.VERB_MESSAGES)
    tags = sorted(tag for tag, _ in v.VERB_MESSAGES.values())
    assert tags == list(range(40, 40 + len(CLASSES)))


@pytest.mark.parametrize(("cls", "head", "names"), HEADS, ids=lambda value: str(value))
def test_golden_bytes(cls: type[Any], head: str, names: int):
    message, data = numbered(cls)
    golden = bytes.fromhex(head) + data
    assert encode(message) == golden
    assert decode(golden) == message
    assert decode_as(cls, memoryview(golden)) == message
    assert zlib.crc32(",".join(cls._fields).encode()) == names


def values_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    def of(kind: type, measure: int) -> st.SearchStrategy[Any]:
        if kind is int:
            return st.integers(0, (1 << measure) - 1)
        if kind is bytes:
            return st.binary(max_size=measure)
        return st.text(st.characters(exclude_categories=("Cs",)), max_size=20)

    return st.builds(cls, *(of(kind, measure) for kind, measure in kinds_of(cls)))


@given(st.one_of([values_of(cls) for cls in CLASSES]))
def test_object_bytes_object(message: Any):
    data = encode(message)
    assert decode(data) == message
    assert len(data) <= verb_codes.VERB_OUTPUT_LENGTH - verb_codes.VERB_RESULT.size


@given(st.sampled_from([encode(numbered(cls)[0]) for cls in CLASSES]), st.data())
def test_one_byte_changed_or_cut(data: bytes, draw: st.DataObject):
    position = draw.draw(st.integers(0, len(data) - 1))
    value = draw.draw(st.integers(0, 255))
    for changed in (data[:position], data[:position] + bytes([value]) + data[position + 1 :]):
        with contextlib.suppress(MessageError):
            decode(changed)


@pytest.mark.parametrize("gid", [bytes(17), "text", None])
def test_a_gid_that_is_none_is_refused(gid: Any):
    with pytest.raises(MessageError, match=r"Multicast\.gid"):
        encode(v.Multicast(1, GID, 2)._replace(gid=gid))


def test_every_verb_is_buffered_and_named():
    codes = {value for name, value in vars(verb_codes).items() if name.startswith("IOCTL_")}
    of_control = {
        verb_codes.IOCTL_RESET_HCA, verb_codes.IOCTL_INSPECT_QUEUE_PAIR, verb_codes.IOCTL_SET_PORT,
    }  # fmt: skip
    assert codes == {*verb_codes.VERB_NAMES} | of_control
    assert len(set(verb_codes.VERB_NAMES.values())) == len(codes) - len(of_control)
    assert {method_of(code) for code in codes} == {METHOD_BUFFERED}
