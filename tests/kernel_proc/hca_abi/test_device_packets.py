"""The packets to the HCA: there and back, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.hca_abi.device_packets import (
    ADD_SEGMENT,
    DESCRIPTORS,
    PRIVATE,
    SET_FAULT,
    START,
    DevicePacket,
    DevicePacketError,
    decode_packet,
)


@given(
    kind=st.sampled_from(sorted(DESCRIPTORS)),
    number=st.integers(0, (1 << 32) - 1),
    length=st.integers(0, (1 << 64) - 1),
    memory=st.integers(0, 2),
    body=st.binary(max_size=100),
)
def test_a_packet_comes_back_as_it_was(
    kind: int, number: int, length: int, memory: int, body: bytes
):
    packet = DevicePacket(kind, number, length, memory, body if kind in (START, SET_FAULT) else b"")
    assert decode_packet(packet.encode(), DESCRIPTORS[kind]) == packet


def test_golden_bytes():
    packet = DevicePacket(ADD_SEGMENT, 7, 0x1000, PRIVATE)
    assert packet.encode().hex() == "0200000007000000001000000000000002000000" + "00000000"


@pytest.mark.parametrize(
    ("data", "descriptors", "words"),
    [
        (b"", 0, "a packet of 0 bytes"),
        (DevicePacket(99).encode(), 0, "the unknown kind 99"),
        (DevicePacket(ADD_SEGMENT).encode(), 0, "kind 2 with 0 descriptors"),
        (DevicePacket(ADD_SEGMENT).encode() + b"x", 1, "1 bytes too many"),
    ],
)
def test_what_is_no_packet_is_refused(data: bytes, descriptors: int, words: str):
    with pytest.raises(DevicePacketError, match=words):
        decode_packet(data, descriptors)


@given(st.binary(max_size=64), st.integers(0, 5))
def test_any_bytes_are_a_packet_or_an_error(data: bytes, descriptors: int):
    try:
        packet = decode_packet(data, descriptors)
    except DevicePacketError:
        return
    assert DESCRIPTORS[packet.kind] == descriptors
