"""What IPoIB puts on the wire, and what it makes of anything that comes from there."""

from hypothesis import given
from hypothesis import strategies as some

from kernel_proc.clients.ipoib.frames import (
    REPLY,
    REQUEST,
    Arp,
    HardwareAddress,
    broadcast_gid,
    parse_arp,
)
from kernel_proc.clients.ipoib.neighbours import (
    MOST_NEIGHBOURS,
    NeighbourTable,
    Packet,
    Path,
    State,
)

GID = bytes.fromhex("fe800000000000000002c90200402f01")


def test_the_layouts_are_those_of_the_rfc():
    address = HardwareAddress(0x123456, GID).packed()
    assert address == bytes.fromhex("00123456") + GID
    packet = Arp(REQUEST, address, b"\x0a\0\0\1", bytes(20), b"\x0a\0\0\2").packed()
    assert packet[:8] == bytes.fromhex("0020080014040001")
    assert (len(packet), packet[8:28], packet[28:32]) == (56, address, b"\x0a\0\0\1")
    assert broadcast_gid(0x7FFF) == bytes.fromhex("ff12401bffff000000000000ffffffff")
    assert broadcast_gid(0x8001)[4:6] == b"\x80\x01"


@given(some.binary(max_size=80))
def test_any_bytes_are_an_arp_packet_or_none(data: bytes):
    arp = parse_arp(data)
    if arp is not None:
        assert data.startswith(arp.packed())
        assert arp.operation in (REQUEST, REPLY)


@given(
    some.sampled_from([REQUEST, REPLY]),
    some.tuples(*[some.binary(min_size=n, max_size=n) for n in (20, 4, 20, 4)]),
)
def test_what_is_packed_is_parsed(operation: int, parts: tuple[bytes, bytes, bytes, bytes]):
    arp = Arp(operation, *parts)
    assert parse_arp(arp.packed() + b"padding") == arp
    assert arp.sender_qpn == int.from_bytes(parts[0][1:4], "big")
    for place in (1, 3, 4, 5, 7):  # another kind of hardware, protocol, length, operation
        wrong = bytearray(arp.packed())
        wrong[place] ^= 0x40
        assert parse_arp(bytes(wrong)) is None


def test_the_table_is_bounded_and_forgets_who_was_heard_of_longest_ago():
    table = NeighbourTable()
    for number in range(MOST_NEIGHBOURS):
        neighbour, lost = table.add(number.to_bytes(4, "big"))
        assert lost == 0
    first = table.find(bytes(4))
    assert first is not None
    assert table.learn(first, Path(5, 6))
    first.handle, first.state = 77, State.REACHABLE
    assert not table.learn(first, Path(5, 6))  # nothing new
    second = table.find(b"\0\0\0\1")
    assert second is not None
    second.waiting.extend([Packet(1, b"x")] * 3)
    assert table.add(b"new1")[1] == 3
    assert (len(table), table.find(second.ip)) == (MOST_NEIGHBOURS, None)
    assert table.learn(first, Path(8, 6))
    assert table.retired == [77]
    assert (table.due(), len(table.asked())) == ([first], MOST_NEIGHBOURS - 1)
    assert neighbour in table.asked()
