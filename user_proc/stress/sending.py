"""Requests of every opcode from one end to another, each with what must come of it.

Rules: the caller has seen to it that there is a free slot, and a receive entry for a message that
needs one.
"""

import ctypes
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Protocol

from shared.verbs_enums import ibv_send_flags
from user_proc.stress import payloads
from user_proc.stress.connection_end import AREA_SEND, AREA_TARGET, End, Message
from user_proc.stress.findings import CORRUPT, Finding
from user_proc.stress.ledger import OK, RETRIES_EXCEEDED, Posted
from user_proc.stress.shapes import (
    ADD,
    ATOMICS,
    INLINE,
    QKEY,
    READ,
    SENDS,
    SGES,
    SWAP,
    TAKING_ENTRY,
    WRITES,
)
from user_proc.verbs.addr import AH
from user_proc.verbs.completion import WC
from user_proc.verbs.wr import SGE, SendWR

SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)
_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_SOLICITED: Final = int(ibv_send_flags.IBV_SEND_SOLICITED)
_FENCE: Final = int(ibv_send_flags.IBV_SEND_FENCE)
_SUCCESS: Final = frozenset((OK,))
_WORD: Final = struct.Struct("=Q")
_WORD_MASK: Final = (1 << 64) - 1


#: Changes a request that would succeed into one that must fail.
Spoil = Callable[[SendWR], None]
#: What is looked at when a request has succeeded; without a completion it gets None.
Finish = Callable[[WC | None], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a step says it; `pieces` is how many elements its data is gathered from."""

    opcode: int
    length: int = 0
    signaled: bool = True
    inline: bool = False
    pieces: int = 1
    solicited: bool = False
    fenced: bool = False
    invalidates: int = 0  # the peer's key that SEND WITH INV takes back

    def flags(self) -> int:
        """Return its send flags."""
        small = self.length <= INLINE and self.opcode in SENDS | WRITES
        return (
            SIGNALED * self.signaled
            | _INLINE * (self.inline and small)
            | _SOLICITED * self.solicited
            | _FENCE * self.fenced
        )


@dataclass(frozen=True, slots=True)
class Remote:
    """The memory of an end as its peer's requests name it, and who receives them."""

    base_word: int
    rkey: int
    qpn: int = 0
    srqn: int = 0
    ah: AH | None = None


def gather(address: int, length: int, lkey: int, pieces: int) -> list[SGE]:
    """Name a slot's first bytes by several elements, some of which may have no bytes."""
    pieces = max(1, min(pieces, SGES))
    each = length // pieces
    cuts = [each * number for number in range(pieces)] + [length]
    return [SGE(address + first, after - first, lkey) for first, after in pairwise(cuts)]


class Places(Protocol):
    """Where things lie in a region."""

    def at(self, area: int, slot: int) -> int:
        """Return a slot's address."""

    def word(self, number: int) -> int:
        """Return the address of a word for atomics."""


class Peer(Protocol):
    """What a sender knows of the end it sends to, and notes there of what is on its way."""

    inbound: deque[Message]
    written: dict[int, tuple[int, int, int]]
    words: list[int]

    @property
    def region(self) -> Places:
        """Its memory."""


class Sender:
    """The way from an end to its peer."""

    def __init__(self, near: End, far: Peer, remote: Remote) -> None:
        self._near = near
        self._far = far
        self._remote = remote
        self._last: tuple[int, int, int, int] | None = None  # slot and message written last

    def forget(self) -> None:
        """Have written nothing yet that can be read back."""
        self._last = None

    def post(self, request: Request) -> None:
        """Post a request that must succeed, and note what must come of it."""
        near = self._near
        slot = near.send_slots.popleft()
        sequence = near.next_sequence(request.opcode in TAKING_ENTRY)
        address = near.region.at(AREA_SEND, slot)
        wr, finish = self._make(request, address, sequence)
        what = f"request {sequence} (opcode {request.opcode}, {request.length} bytes)"
        wr.wr_id = near.sends.post(
            Posted(
                what, partial(_done, near, slot, finish), _SUCCESS, bool(request.flags() & SIGNALED)
            )
        )
        if request.opcode in TAKING_ENTRY:
            message = Message(request.opcode, near.stream, sequence, request.length)
            self._far.inbound.append(message)
        near.world.call("post_send", lambda: near.qp.post_send(wr))

    def post_refused(self, request: Request, status: int, spoil: Spoil | None = None) -> None:
        """Post a request that must end with a status and do nothing the peer sees.

        `spoil` makes it what it is; the peer's slot it would write to holds nothing known any more.
        """
        near, far = self._near, self._far
        slot = near.send_slots.popleft()
        address = near.region.at(AREA_SEND, slot)
        elements = [SGE(address, request.length, near.region.mr.lkey)]
        wr = SendWR(0, request.opcode, 1, 0, elements, SIGNALED)
        if request.opcode in ATOMICS:
            wr.set_wr_atomic(self._remote.rkey, far.region.word(0), 1, 1)
        elif request.opcode in WRITES or request.opcode == READ:
            wr.set_wr_rdma(self._remote.rkey, far.region.at(AREA_TARGET, near.target_slot))
            far.written.pop(near.target_slot, None)
            self._last = None
        if self._remote.ah is not None:
            wr.set_wr_ud(self._remote.ah, self._remote.qpn, QKEY)
        if self._remote.srqn:
            wr.set_qp_type_xrc(self._remote.srqn)
        if spoil is not None:
            spoil(wr)
        what = f"a request (opcode {request.opcode}) that must fail"
        allowed = {status, RETRIES_EXCEEDED} if near.world.faulty and status != OK else {status}
        posted = Posted(what, partial(_done, near, slot, None), frozenset(allowed))
        wr.wr_id = near.sends.post(posted)
        near.world.call("post_send", lambda: near.qp.post_send(wr))

    def _make(self, request: Request, address: int, sequence: int) -> tuple[SendWR, Finish | None]:
        """Return the request, and what is to be looked at when it has come back."""
        near, opcode = self._near, request.opcode
        lkey = near.region.mr.lkey
        length = 8 if opcode in ATOMICS else request.length
        if opcode in SENDS | WRITES:
            payloads.store(address, near.stream, sequence, length)
        wr = SendWR(
            0,
            opcode,
            max(1, request.pieces) if opcode not in ATOMICS else 1,
            request.invalidates or sequence & 0xFFFF_FFFF,
            gather(address, length, lkey, 1 if opcode in ATOMICS else request.pieces),
            request.flags(),
        )
        finish = None
        if opcode in WRITES:
            self._aim_write(wr, sequence, length)
        elif opcode == READ:
            finish = self._aim_read(wr, address, length)
        elif opcode in ATOMICS:
            finish = self._aim_atomic(wr, address, sequence)
        if self._remote.ah is not None:
            wr.set_wr_ud(self._remote.ah, self._remote.qpn, QKEY)
        if self._remote.srqn:
            wr.set_qp_type_xrc(self._remote.srqn)
        return wr, finish

    def _aim_write(self, wr: SendWR, sequence: int, length: int) -> None:
        far, near = self._far, self._near
        slot = near.target_slot
        near.target_slot = (slot + 1) % near.shape.depth
        far.written[slot] = near.stream, sequence, length
        self._last = slot, near.stream, sequence, length
        wr.set_wr_rdma(self._remote.rkey, far.region.at(AREA_TARGET, slot))

    def _aim_read(self, wr: SendWR, address: int, length: int) -> Finish:
        """Read back what was written last, or a word nobody changes if nothing was."""
        far = self._far
        if self._last is None:
            wr.set_wr_rdma(self._remote.rkey, far.region.at(AREA_TARGET, 0))
            return partial(_read_anything, length)
        slot, stream, sequence, written = self._last
        size = min(length, written)
        wr.sg_list = gather(address, size, self._near.region.mr.lkey, wr.num_sge)
        wr.set_wr_rdma(self._remote.rkey, far.region.at(AREA_TARGET, slot))
        whole = payloads.payload(stream, sequence, written)[:size]
        return partial(_read_back, self._near, address, whole)

    def _aim_atomic(self, wr: SendWR, address: int, sequence: int) -> Finish:
        far = self._far
        place = wr.opcode == SWAP
        before = far.words[place]
        if wr.opcode == ADD:
            operand = (sequence * 0x9E37_79B9_7F4A_7C15 + 1) & _WORD_MASK
            wr.set_wr_atomic(self._remote.rkey, far.region.word(place), operand)
            far.words[place] = (before + operand) & _WORD_MASK
        else:
            matches = sequence % 3 > 0
            compare = before if matches else before ^ 1
            wr.set_wr_atomic(self._remote.rkey, far.region.word(place), compare, sequence)
            far.words[place] = sequence if matches else before
        return partial(_fetched, self._near, address, before)


def _done(near: End, slot: int, finish: Finish | None, wc: WC | None) -> None:
    near.send_slots.append(slot)
    if wc is not None and wc.status != OK:
        near.note_failure()
    elif finish is not None:
        finish(wc)


def _read_anything(length: int, wc: WC | None) -> None:
    if wc is not None and wc.byte_len != length:
        raise Finding(CORRUPT, f"a read of {length} bytes says it read {wc.byte_len}")


def _read_back(near: End, address: int, wanted: bytes, wc: WC | None) -> None:
    found = ctypes.string_at(address, len(wanted)) if wanted else b""
    if found != wanted or (wc is not None and wc.byte_len != len(wanted)):
        raise Finding(
            CORRUPT,
            f"{near.name}: {len(wanted)} bytes that were written and read back differ: "
            f"{found[:32].hex()} instead of {wanted[:32].hex()}",
        )


def _fetched(near: End, address: int, wanted: int, wc: WC | None) -> None:
    (found,) = _WORD.unpack(ctypes.string_at(address, 8))
    if found != wanted:
        raise Finding(CORRUPT, f"{near.name}: an atomic fetched {found:#x} where {wanted:#x} lay")
