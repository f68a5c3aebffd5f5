"""What IPoIB puts on the wire: the encapsulation, hardware addresses, ARP, the broadcast group.

Rules: any IRQL. What comes from the wire may hold anything: a parser returns None for what cannot
be.
Spec: RFC 4391, sections 4 (broadcast group), 6 (frame), 9 (hardware address, ARP); RFC 826.
"""

import struct
from typing import Final, NamedTuple

from shared.ipoib_layout import ADDRESS_LENGTH, ETHERTYPE_IPV4

ENCAPSULATION: Final = struct.Struct(">HH")  # ethertype, reserved: sent as 0 and not looked at
HARDWARE_TYPE: Final = 32
HARDWARE_LENGTH: Final = 20
REQUEST: Final = 1
REPLY: Final = 2
_ARP: Final = struct.Struct(">HHBBH20s4s20s4s")
_QPN_MASK: Final = 0xFF_FFFF
_FULL_MEMBER: Final = 0x8000
UNKNOWN_HARDWARE: Final = bytes(HARDWARE_LENGTH)


class HardwareAddress(NamedTuple):
    """Where an interface is: its QP and its port's GID. The first byte on the wire is reserved."""

    qpn: int
    gid: bytes

    def packed(self) -> bytes:
        """Return the 20 bytes."""
        return self.qpn.to_bytes(4, "big") + self.gid


class Arp(NamedTuple):
    """An ARP packet for IPv4."""

    operation: int
    sender: bytes
    sender_ip: bytes
    target: bytes
    target_ip: bytes

    @property
    def sender_qpn(self) -> int:
        """Return the QP the sender says it has."""
        return int.from_bytes(self.sender[:4], "big") & _QPN_MASK

    def packed(self) -> bytes:
        """Return the packet."""
        return _ARP.pack(HARDWARE_TYPE, ETHERTYPE_IPV4, HARDWARE_LENGTH, ADDRESS_LENGTH, *self)


def broadcast_gid(pkey: int) -> bytes:
    """Return the GID of the IPv4 broadcast group of a partition, of link-local scope."""
    member = pkey | _FULL_MEMBER
    return bytes.fromhex("ff12401b") + member.to_bytes(2, "big") + bytes(6) + b"\xff" * 4


def parse_arp(packet: bytes) -> Arp | None:
    """Return an ARP packet, None for what is none of IPoIB and IPv4."""
    if len(packet) < _ARP.size:
        return None
    hardware, protocol, hardware_length, length, *rest = _ARP.unpack_from(packet)
    kinds = hardware, protocol, hardware_length, length
    if kinds != (HARDWARE_TYPE, ETHERTYPE_IPV4, HARDWARE_LENGTH, ADDRESS_LENGTH):
        return None
    arp = Arp(*rest)
    return arp if arp.operation in (REQUEST, REPLY) else None
