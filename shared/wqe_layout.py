"""Work queue entries, as they lie in a user's ring: strides, heads, scatter/gather elements.

Rings hold a power of two of entries of one stride, a power of two of bytes; the index word in the
doorbell segment publishes them. A queue pair has one buffer: receive ring, then send ring, each
starting at a multiple of its stride.
"""

import struct
from typing import Final, NamedTuple

SGE: Final = struct.Struct("<QII")  # address, length, lkey

RECEIVE_HEAD: Final = struct.Struct("<I12x")  # elements in use
SEND_HEAD_SIZE: Final = 128
_LEAST_STRIDE: Final = 64

RECEIVE_SGE_OFFSET: Final = RECEIVE_HEAD.size


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def receive_stride(max_sge: int) -> int:
    """Bytes of a receive entry with room for `max_sge` elements."""
    return max(_LEAST_STRIDE, _power_of_two(RECEIVE_SGE_OFFSET + SGE.size * max_sge))


def send_stride(max_sge: int, max_inline: int) -> int:
    """Bytes of a send entry with room for `max_sge` elements or `max_inline` bytes of data."""
    return _power_of_two(SEND_HEAD_SIZE + max(SGE.size * max_sge, max_inline))


def ring_entries(max_wr: int) -> int:
    """Entries of a ring that holds `max_wr` requests; 0 for none."""
    return _power_of_two(max_wr) if max_wr else 0


class SendHead(NamedTuple):
    """The head of a send entry; `flags` are ibv_send_flags.

    `elements` counts the scatter/gather elements behind the head; with IBV_SEND_INLINE there are
    `inline_length` bytes of data instead. `imm_data` is in network order as the program gave it, or
    the key to invalidate in host order. `swap` and `compare_add` are in host order.
    """

    opcode: int
    flags: int
    elements: int
    imm_data: int
    remote_address: int
    rkey: int
    srqn: int
    compare_add: int
    swap: int
    address_vector: bytes
    remote_qpn: int
    remote_qkey: int
    inline_length: int


SEND_HEAD: Final = struct.Struct("<IIIIQIIQQ48sIII20x")
SEND_SGE_OFFSET: Final = SEND_HEAD.size


class BindSegment(NamedTuple):
    """What a BIND_MW entry has in its head where a datagram has its address vector.

    `access` is ibv_access_flags. `new_rkey` names the window by all but its low 8 bits, which are
    those of its next key; a `length` of 0 unbinds.
    """

    access: int
    new_rkey: int
    lkey: int
    address: int
    length: int


BIND_SEGMENT: Final = struct.Struct("<I4xIIQQ")
BIND_OFFSET: Final = struct.calcsize("<IIIIQIIQQ")


def bind_segment(*, access: int, new_rkey: int, lkey: int, address: int, length: int) -> bytes:
    """Lay out a BindSegment, for the head's `address_vector`."""
    return BIND_SEGMENT.pack(access, new_rkey, lkey, address, length)


class AddressVector(NamedTuple):
    """Where a datagram goes: an address handle as it lies in a send entry's head.

    `is_global` is 0 or 1; without it the fields of the route after it are 0. `pd` is the HCA's
    number of the handle's domain, which must be the queue pair's.
    """

    port: int
    sl: int
    src_path_bits: int
    static_rate: int
    dlid: int
    is_global: int
    sgid_index: int
    flow_label: int
    hop_limit: int
    traffic_class: int
    dgid: bytes
    pd: int


ADDRESS_VECTOR: Final = struct.Struct("<BBBBHBBIBB2x16sI12x")
