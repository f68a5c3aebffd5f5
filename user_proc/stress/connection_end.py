"""One end of a connection: its region, its queues, and the accounts of its requests.

The region has words for atomics in its first page, then an area each to send from, to receive
into, and for the peer's writes; an area has a slot for every request that can be out.
"""

import ctypes
import mmap
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from shared.segment import PAGE_SIZE, round_to_pages
from user_proc.stress import payloads
from user_proc.stress.client_world import World
from user_proc.stress.completion_source import CompletionSource
from user_proc.stress.findings import CORRUPT, DOUBLED, Finding
from user_proc.stress.ledger import OK, Account, Posted
from user_proc.stress.shapes import (
    ALL_ACCESS,
    GRH,
    INLINE,
    SEND_TYPES,
    SENDS,
    SGES,
    WITH_IMM,
    Shape,
)
from user_proc.verbs.completion import WC
from user_proc.verbs.mr import MR
from user_proc.verbs.qp import QP, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR

AREA_SEND: Final = 0
AREA_RECEIVE: Final = 1
AREA_TARGET: Final = 2
_AREAS: Final = 3
_WORDS: Final = struct.Struct("=QQ")
_RECEIVED: Final = 128
_RECEIVED_IMM: Final = 129
_WITH_IMM_FLAG: Final = 2


@dataclass(frozen=True, slots=True)
class Message:
    """A message on its way to an end: what its receive completion and buffer must say."""

    opcode: int
    stream: int
    sequence: int
    length: int

    @property
    def imm(self) -> int:
        """The immediate it carries if its opcode has one."""
        return self.sequence & 0xFFFF_FFFF


class Region:
    """Registered memory in areas of slots; in an arena, or in memory of the process's own."""

    def __init__(self, world: World, shape: Shape) -> None:
        self._slot, self._depth = shape.slot, shape.depth
        length = round_to_pages(PAGE_SIZE + _AREAS * shape.depth * shape.slot)
        self._own: mmap.mmap | None = None
        address = None
        if shape.private:
            self._own = mmap.mmap(-1, length)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._own))
        made = world.call("reg_mr", lambda: MR(world.pd, length, ALL_ACCESS, address))
        assert made is not None
        self.mr: Final = made
        self.base: Final[int] = made.buf
        self.length: Final = length

    def at(self, area: int, slot: int) -> int:
        """Return a slot's address."""
        return self.base + PAGE_SIZE + (area * self._depth + slot) * self._slot

    def word(self, number: int) -> int:
        """Return the address of a word for atomics."""
        return self.base + 8 * number


def _nothing() -> None:
    """Take no note: the account has judged the status."""


class End:
    """A queue pair with what it needs; `receives` is of its SRQ if it has one."""

    def __init__(self, world: World, shape: Shape, source: CompletionSource, name: str) -> None:
        self.world: Final = world
        self.shape: Final = shape
        self.name: Final = name
        self.source: Final = source
        self.stream: Final = world.stream()
        self.region: Final = Region(world, shape)
        self.sends: Final = Account(world.ledger, f"send queue of {name}")
        self.receives: Final = Account(
            world.ledger,
            f"receive queue of {name}",
            in_order=not (shape.shared or shape.kind == "xrc"),
        )
        self.send_slots: deque[int] = deque(range(shape.depth))
        self.receive_slots: deque[int] = deque(range(shape.depth))
        self.inbound: deque[Message] = deque()
        self.receive_statuses = frozenset((OK,))
        #: Called for a send that did not succeed.
        self.note_failure: Callable[[], None] = _nothing
        self._messages = 0
        self._others = 0
        self.target_slot = 0  # of the peer, for the next write
        self.written: dict[int, tuple[int, int, int]] = {}  # what lies in one's own target slots
        self.words = [0, 0]  # what one's own words for atomics are
        self.srq = self._make_srq()
        self.qp: QP = self._make_qp()

    def _make_srq(self) -> SRQ | None:
        if not self.shape.shared:
            return None
        init = SrqInitAttr(SrqAttr(self.shape.depth, SGES))
        made = self.world.call("create_srq", lambda: SRQ(self.world.pd, init))
        assert made is not None
        return made

    def _make_qp(self) -> QP:
        shape = self.shape
        cap = QPCap(shape.depth + 2, 0 if self.srq else shape.depth, SGES, SGES, INLINE)
        init = QPInitAttr(
            SEND_TYPES[shape.kind], scq=self.source.cq, rcq=self.source.cq, srq=self.srq, cap=cap
        )
        made = self.world.call("create_qp", lambda: QP(self.world.pd, init))
        assert made is not None
        return made

    def next_sequence(self, takes_entry: bool) -> int:
        """Number a request: even what takes a receive entry, odd the others, each in order."""
        if takes_entry:
            self._messages += 1
            return 2 * self._messages
        self._others += 1
        return 2 * self._others + 1

    @property
    def sends_requests(self) -> bool:
        """Tell whether it has a send queue."""
        return True

    @property
    def srqn(self) -> int:
        """The number a peer puts into XRC requests; 0 of what is none."""
        return 0

    # Receiving

    @property
    def free_receives(self) -> int:
        """How many more messages would find a receive request."""
        return len(self.receives) - len(self.inbound)

    def post_receives(self, count: int) -> int:
        """Post as many receives as there are slots for, at most `count`; return how many."""
        count = min(count, len(self.receive_slots))
        for _ in range(count):
            slot = self.receive_slots.popleft()
            self.post_receive(slot, SGE(*self._receive_piece(slot)))
        return count

    def _receive_piece(self, slot: int) -> tuple[int, int, int]:
        return self.region.at(AREA_RECEIVE, slot), self.shape.slot, self.region.mr.lkey

    def post_receive(self, slot: int, piece: SGE) -> None:
        """Post one receive whose message is looked for in a slot."""
        posted = Posted("a receive", partial(self._received, slot), self.receive_statuses)
        number = self.receives.post(posted)
        target: Any = self.qp if self.srq is None else self.srq
        self.world.call("post_recv", lambda: target.post_recv(RecvWR(number, 1, [piece])))

    def _received(self, slot: int, wc: WC | None) -> None:
        """Compare what has come with the message that was sent, oldest first."""
        self.receive_slots.append(slot)
        if wc is None or wc.status != OK:
            return
        if not self.inbound:
            raise Finding(DOUBLED, f"{self.name}: a message came that nobody sent")
        message = self.inbound.popleft()
        self.judge(message, wc, slot)

    def judge(self, message: Message, wc: WC, slot: int) -> None:
        """Compare a receive completion and its buffer with a message."""
        ahead = GRH if self.shape.kind == "ud" else 0
        is_send = message.opcode in SENDS
        with_imm = message.opcode in WITH_IMM
        wanted = (
            _RECEIVED if is_send else _RECEIVED_IMM,
            message.length + ahead,
            message.imm if with_imm else 0,
        )
        imm = wc.imm_data if wc.wc_flags & _WITH_IMM_FLAG else 0
        found = wc.opcode, wc.byte_len, imm
        if found != wanted:
            raise Finding(
                CORRUPT,
                f"{self.name}: message {message.sequence} of stream {message.stream} came with "
                f"(opcode, bytes, immediate) {found} instead of {wanted}",
            )
        if is_send:
            address = self.region.at(AREA_RECEIVE, slot) + ahead
            payloads.check(address, message.stream, message.sequence, message.length, self.name)

    # The end

    def check_written(self) -> None:
        """Compare what peers have written here, all of which has come back to them."""
        for slot, (stream, sequence, length) in self.written.items():
            address = self.region.at(AREA_TARGET, slot)
            payloads.check(address, stream, sequence, length, f"written to {self.name}")

    def forget(self) -> None:
        """Strike out what is in the queue pair's queues: it was reset or destroyed.

        What lies in its memory is what it is: a request that was broken off may have been carried
        out.
        """
        self.sends.forget()
        self.send_slots = deque(range(self.shape.depth))
        self.inbound.clear()
        self.written.clear()
        self.words = list(_WORDS.unpack(ctypes.string_at(self.region.base, _WORDS.size)))
        if self.srq is None:
            self.receives.forget()
            self.receive_slots = deque(range(self.shape.depth))
        else:
            self.receives.allow((OK,), only=True)

    def close(self) -> None:
        """Destroy everything of it but the completion queue."""
        self.world.call("destroy_qp", self.qp.close)
        self.forget()
        if self.srq is not None:
            self.world.call("destroy_srq", self.srq.close)
            self.receives.forget()
        self.world.call("dereg_mr", self.region.mr.close)
