"""The door of the IPoIB interfaces: control codes, and what lies in their buffers.

There is a device for each port of the HCA. All codes are METHOD_BUFFERED; structures are
little-endian and packed, addresses in network order.

    IOCTL_IPOIB_QUERY        output: IPOIB_IDENTITY, then IPOIB_STATISTICS
    IOCTL_IPOIB_SET_ADDRESS  input: the interface's IPv4 address; it is announced
    IOCTL_IPOIB_SEND         input: IPOIB_SEND_HEAD, then the packet. Success says that it was
                             accepted; it is not sent yet
    IOCTL_IPOIB_RECEIVE      output: IPOIB_RECEIVED, then the packet; pended until there is one

Spec: RFC 4391, sections 6 and 9; docs/ipoib.md.
"""

import struct
from typing import Final

from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_BUFFERED, ctl_code

IPOIB_DEVICES: Final = ("ipoib0", "ipoib1")  # by port, from port 1 on
IPOIB_DEVICE_TYPE: Final = 0x8004


def _code(function: int) -> int:
    return ctl_code(IPOIB_DEVICE_TYPE, 0x800 + function, METHOD_BUFFERED, FILE_ANY_ACCESS)


IOCTL_IPOIB_QUERY: Final = _code(0)
IOCTL_IPOIB_SET_ADDRESS: Final = _code(1)
IOCTL_IPOIB_SEND: Final = _code(2)
IOCTL_IPOIB_RECEIVE: Final = _code(3)

IPOIB_MTU: Final = 2044  # of a packet: a link MTU of 2048 less the encapsulation
ADDRESS_LENGTH: Final = 4
LIMITED_BROADCAST: Final = b"\xff" * ADDRESS_LENGTH  # as a next hop: the broadcast group
ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_ARP: Final = 0x0806

#: Hardware address, IPv4 address, port, MTU, 1 if it is up.
IPOIB_IDENTITY: Final = struct.Struct("<20s4sIII")
#: The next hop's IPv4 address, the ethertype.
IPOIB_SEND_HEAD: Final = struct.Struct("<4sH2x")
#: QP number and LID of the sender, the ethertype, 1 for what came by a multicast group.
IPOIB_RECEIVED: Final = struct.Struct("<IHHI")

IPOIB_COUNTERS: Final = (
    "tx_packets",
    "tx_bytes",
    "tx_errors",
    "tx_dropped",  # no room, or nobody answered for the next hop
    "rx_packets",
    "rx_bytes",
    "rx_errors",
    "rx_dropped",  # nobody took it in time
    "rx_malformed",  # no encapsulation, or an ARP packet that cannot be
    "rx_multicast",
    "arp_requests_sent",
    "arp_requests_received",
    "arp_replies_sent",
    "arp_replies_received",
    "unresolved",  # next hops that did not answer
)
IPOIB_STATISTICS: Final = struct.Struct(f"<{len(IPOIB_COUNTERS)}Q")
