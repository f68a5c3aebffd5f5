"""What goes from a requester to a responder and back: records that need nothing but themselves.

A request is a run of packets of one message: FIRST and LAST say which. It counts as
max(1, ceil(bytes / MTU)) packets and takes as many PSNs. `data` holds views of the sender's
memory, since on this machine the responder copies from there directly; the byte form holds the
bytes. An answer is ACK, a NAK, an RNR NAK, NOTHING when nobody answers, or IN_HAND when the answer
will come later, since the responder needs somebody's private memory for it.

Rules: views in `data` live as long as the call they are given to.
Spec: IBA vol. 1, ch. 9 (BTH, DETH, RETH, AtomicETH, AETH); 8.3 (GRH).
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

FIRST: Final = 1
LAST: Final = 2
WHOLE: Final = FIRST | LAST
SOLICITED: Final = 4

NO_DATA: Final = memoryview(b"")
GRH_SIZE: Final = 40
_GRH: Final = struct.Struct(">IHBB16s16s")
_GRH_NEXT_IBA: Final = 0x1B
_IP_VERSION: Final = 6
_DATAGRAM_OVERHEAD: Final = 12 + 8 + 4  # BTH, DETH, ICRC

Data = memoryview | list[memoryview]


class PacketError(ValueError):
    """Bytes that are no request or answer."""


class Path(NamedTuple):
    """The headers that stay the same from message to message; `grh` is empty or 40 bytes."""

    slid: int
    dlid: int
    sl: int
    pkey: int
    mtu_shift: int
    grh: bytes = b""


def make_grh(
    sgid: bytes, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int, length: int
) -> bytes:
    """Lay out a global route header for a packet with so much payload."""
    head = _IP_VERSION << 28 | (traffic_class & 0xFF) << 20 | flow_label & 0xFFFFF
    return _GRH.pack(head, padded_length(length), _GRH_NEXT_IBA, hop_limit, sgid, dgid)


def padded_length(payload: int) -> int:
    """Return what a global route header says of a datagram's length: all that follows it."""
    return (payload + 3 & ~3) + _DATAGRAM_OVERHEAD & 0xFFFF


def grh_destination(grh: bytes) -> bytes:
    """Return the GID a global route header names as destination."""
    return grh[24:40]


class Request:
    """A run of packets of one message; `length` is the whole message's, `offset` where it goes on.

    `imm_data` is in network order, or the key to invalidate. `address` is that of the message's
    first byte.
    """

    __slots__ = (
        "address",
        "compare_add",
        "data",
        "destination_qpn",
        "flags",
        "imm_data",
        "length",
        "offset",
        "opcode",
        "packets",
        "path",
        "psn",
        "qkey",
        "rkey",
        "source_qpn",
        "srqn",
        "swap",
        "transport",
    )

    def __init__(self, path: Path, transport: int, source_qpn: int, destination_qpn: int) -> None:
        self.path = path
        self.transport = transport
        self.source_qpn = source_qpn
        self.destination_qpn = destination_qpn
        self.opcode = 0
        self.flags = WHOLE
        self.psn = 0
        self.packets = 1
        self.length = 0
        self.offset = 0
        self.address = 0
        self.rkey = 0
        self.imm_data = 0
        self.compare_add = 0
        self.swap = 0
        self.qkey = 0
        self.srqn = 0
        self.data: Data = NO_DATA

    def copied(self) -> "Request":
        """Return another record with all of it but the data."""
        made = Request(self.path, self.transport, self.source_qpn, self.destination_qpn)
        for name in _KEPT:
            setattr(made, name, getattr(self, name))
        return made

    def payload(self) -> bytes:
        """Return the bytes of `data`."""
        return _join(self.data)

    def encode(self) -> bytes:
        """Return the byte form."""
        path = self.path
        head = _REQUEST.pack(
            self.opcode, self.flags, self.transport, path.sl, path.slid, path.dlid, path.pkey,
            path.mtu_shift, len(path.grh), self.source_qpn, self.destination_qpn, self.psn,
            self.packets, self.length, self.offset, self.address, self.rkey, self.imm_data,
            self.compare_add, self.swap, self.qkey, self.srqn, path.grh,
        )  # fmt: skip
        return head + self.payload()

    @classmethod
    def decode(cls, data: bytes) -> "Request":
        """Make a request of its byte form."""
        if len(data) < _REQUEST.size:
            raise PacketError("a request that was cut")
        (
            opcode, flags, transport, sl, slid, dlid, pkey, mtu_shift, grh_size, source,
            destination, psn, packets, length, offset, address, rkey, imm_data, compare_add, swap,
            qkey, srqn, grh,
        ) = _REQUEST.unpack_from(data)  # fmt: skip
        if grh_size not in (0, GRH_SIZE):
            raise PacketError("a request with half a global route header")
        path = Path(slid, dlid, sl, pkey, mtu_shift, grh[:grh_size])
        made = cls(path, transport, source, destination)
        made.opcode, made.flags, made.psn, made.packets = opcode, flags, psn, packets
        made.length, made.offset, made.address, made.rkey = length, offset, address, rkey
        made.imm_data, made.compare_add, made.swap = imm_data, compare_add, swap
        made.qkey, made.srqn = qkey, srqn
        made.data = memoryview(data)[_REQUEST.size :]
        return made


_KEPT: Final = tuple(name for name in Request.__slots__ if name != "data")
_REQUEST: Final = struct.Struct("<BBBBHHHBBIIIIIIQIIQQII40s")

ACKNOWLEDGE: Final = 0
NAK_SEQUENCE: Final = 1
NAK_INVALID_REQUEST: Final = 2
NAK_REMOTE_ACCESS: Final = 3
NAK_REMOTE_OPERATION: Final = 4
NAK_NOT_READY: Final = 5
SILENCE: Final = 6
WAIT: Final = 7
_ANSWER: Final = struct.Struct("<B7xQ")


class Answer:
    """What a responder answers; `value` is an atomic's original, or the code of an RNR delay."""

    __slots__ = ("data", "kind", "value")

    def __init__(self, kind: int, value: int = 0, data: Data = NO_DATA) -> None:
        self.kind = kind
        self.value = value
        self.data = data

    def encode(self) -> bytes:
        """Return the byte form."""
        return _ANSWER.pack(self.kind, self.value) + _join(self.data)

    @classmethod
    def decode(cls, data: bytes) -> "Answer":
        """Make an answer of its byte form."""
        if len(data) < _ANSWER.size:
            raise PacketError("an answer that was cut")
        kind, value = _ANSWER.unpack_from(data)
        if kind > WAIT:
            raise PacketError(f"an answer of kind {kind}")
        return cls(kind, value, memoryview(data)[_ANSWER.size :])


ACK: Final = Answer(ACKNOWLEDGE)
SEQUENCE_ERROR: Final = Answer(NAK_SEQUENCE)
INVALID_REQUEST: Final = Answer(NAK_INVALID_REQUEST)
REMOTE_ACCESS_ERROR: Final = Answer(NAK_REMOTE_ACCESS)
REMOTE_OPERATION_ERROR: Final = Answer(NAK_REMOTE_OPERATION)
NOT_READY: Final = tuple(Answer(NAK_NOT_READY, code) for code in range(32))
NOTHING: Final = Answer(SILENCE)
IN_HAND: Final = Answer(WAIT)


def _join(data: Data) -> bytes:
    parts: Iterable[memoryview] = data if isinstance(data, list) else (data,)
    return b"".join(parts)
