"""The packets by which the kernel hands the HCA its memory: a SOCK_SEQPACKET socket, one way.

    START            + 4 descriptors: register page, status page, the eventfd the kernel pokes the
                     HCA with, the eventfd the HCA raises its line with; the settings as JSON follow
                     the head. The first packet, once.
    ADD_SEGMENT      + 1 descriptor: memory of `length` bytes (SHARED), or the /proc/self/mem of one
                     user process (PRIVATE), whose offsets are that process's addresses
    REMOVE_SEGMENT
    ADD_DOORBELLS    + 2 descriptors: the doorbell segment (UAR) `number` of `length` bytes, and the
                     eventfd its users poke the HCA with
    REMOVE_DOORBELLS
    INSPECT          + 2 descriptors: a file to tell its state in, as inspection_text.py says, in
                     `length` bytes at most, and an eventfd to write when it is told; `number` is a
                     queue pair's for what it was posted, 0 for everything else
    SET_FAULT        `number` names the fault; the message that describes it follows the head
    CLEAR_FAULT      the fault `number`; 0 for all
    STOP             end in order

Both sides count every packet, START included; the kernel stores its count in SENT_OFFSET once a
packet is in the socket, the HCA its own in SERVED_OFFSET once a packet is served. The HCA answers
nothing else; the end of the socket is the end of the kernel.

The eventfd of doorbells is also its users', who can change its flags and empty it: it is watched
edge-triggered and never read.

Spec: unix(7), SCM_RIGHTS; shared/doorbell_layout.py; shared/fault_messages.py;
kernel_proc/hca_abi/registers.py.
"""

import struct
from typing import Final, NamedTuple

START: Final = 1
ADD_SEGMENT: Final = 2
REMOVE_SEGMENT: Final = 3
ADD_DOORBELLS: Final = 4
REMOVE_DOORBELLS: Final = 5
STOP: Final = 6
INSPECT: Final = 7
SET_FAULT: Final = 8
CLEAR_FAULT: Final = 9

SHARED: Final = 1
PRIVATE: Final = 2

#: How many descriptors come with each kind of packet.
DESCRIPTORS: Final[dict[int, int]] = {
    START: 4,
    ADD_SEGMENT: 1,
    REMOVE_SEGMENT: 0,
    ADD_DOORBELLS: 2,
    REMOVE_DOORBELLS: 0,
    STOP: 0,
    INSPECT: 2,
    SET_FAULT: 0,
    CLEAR_FAULT: 0,
}
_WITH_BODY: Final = frozenset({START, SET_FAULT})
MOST_DESCRIPTORS: Final = max(DESCRIPTORS.values())
MOST_PACKET: Final = 1 << 16

# kind, number, length, memory (SHARED, PRIVATE, or 0)
_HEAD: Final = struct.Struct("<IIQI4x")


class DevicePacketError(ValueError):
    """Bytes that are no packet."""


class DevicePacket(NamedTuple):
    """One packet; a field its kind does not have is 0 or empty."""

    kind: int
    number: int = 0
    length: int = 0
    memory: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEAD.pack(self.kind, self.number, self.length, self.memory) + self.body


def decode_packet(data: bytes, descriptors: int) -> DevicePacket:
    """Read a packet that came with so many descriptors; DevicePacketError says what is wrong."""
    if len(data) < _HEAD.size:
        raise DevicePacketError(f"a packet of {len(data)} bytes")
    kind, number, length, memory = _HEAD.unpack_from(data)
    wanted = DESCRIPTORS.get(kind)
    if wanted is None:
        raise DevicePacketError(f"a packet of the unknown kind {kind}")
    if descriptors != wanted:
        raise DevicePacketError(f"a packet of kind {kind} with {descriptors} descriptors")
    body = data[_HEAD.size :]
    if body and kind not in _WITH_BODY:
        raise DevicePacketError(f"a packet of kind {kind} with {len(body)} bytes too many")
    return DevicePacket(kind, number, length, memory, body)
