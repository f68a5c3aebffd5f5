"""Completion queues as the HCA holds them: post, arm, overrun, sweep, resize.

The consumer index lies in the owner's doorbell segment and is read only when the queue may be
full. An entry's VALID word is stored last. An overrun kills the queue, never the device.

Spec: IBA vol. 1, 11.2.8 and 11.5.2; shared/cqe_layout.py; PRM, CQ context.
"""

import struct
from collections.abc import Callable
from typing import Final

from kernel_proc.hca.cq_entries import move_entries, remove_entries
from kernel_proc.hca.doorbell_pages import DoorbellPage
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.queue_buffer import QueueBuffer
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi.event_entries import CQ_ACCESS_VIOLATION, CQ_OVERRUN
from shared.arm_words import asks_for_any
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_WORD
from shared.doorbell_layout import INDEX_MASK
from shared.live_words import publish_fence

_ENTRY_SHIFT: Final = CQE_SIZE.bit_length() - 1
_pack_entry: Final = CQE.pack_into
# The same with qpn, wqe_index, byte_len, src_qp, opcode, is_send and timestamp alone.
_pack_plain: Final = struct.Struct("<III4xIB2xB16xQ8x").pack_into

DISARMED: Final = 0
ARMED_SOLICITED: Final = 1
ARMED: Final = 2


class CompletionQueue:
    """One completion queue that the hardware owns."""

    __slots__ = (
        "_clock_ns",
        "_events",
        "armed",
        "arms",
        "buffer",
        "consumer",
        "context",
        "dead",
        "fired",
        "last_arm",
        "lost",
        "mask",
        "number",
        "page",
        "producer",
        "solicited",
        "users",
    )

    def __init__(
        self,
        context: abi.CqContext,
        buffer: QueueBuffer,
        page: DoorbellPage,
        events: EventTable,
        clock_ns: Callable[[], int],
    ) -> None:
        self.context = context
        self.number = context.cqn
        self.buffer = buffer
        self.page = page
        self.mask = (1 << (context.log_size_uar >> abi.LOG_SIZE_SHIFT)) - 1
        self.producer = 0
        self.consumer = 0  # as last read
        self.solicited = 0  # producer after the last solicited entry
        self.armed = DISARMED
        self.last_arm = page.index(context.arm_slot) or 0
        self.fired = False
        self.dead = 0  # the syndrome, once it is
        self.users = 0
        self.lost = 0
        self.arms = 0
        self._events = events
        self._clock_ns = clock_ns

    def post(
        self,
        qpn: int,
        wqe_index: int,
        status: int,
        *,
        is_send: int,
        opcode: int = 0,
        byte_len: int = 0,
        imm_data: int = 0,
        src_qp: int = 0,
        vendor_err: int = 0,
        wc_flags: int = 0,
        slid: int = 0,
        pkey_index: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
        srqn: int = 0,
        solicited: int = 0,
    ) -> bool:
        """Add an entry and raise the event if it was waited for; False: the entry is lost."""
        return self.add(
            qpn, wqe_index, byte_len, imm_data, src_qp, opcode, status, vendor_err, is_send,
            wc_flags, slid, pkey_index, sl, dlid_path_bits, srqn, solicited,
        )  # fmt: skip

    def add(
        self,
        qpn: int,
        wqe_index: int,
        byte_len: int,
        imm_data: int,
        src_qp: int,
        opcode: int,
        status: int,
        vendor_err: int,
        is_send: int,
        wc_flags: int,
        slid: int,
        pkey_index: int,
        sl: int,
        dlid_path_bits: int,
        srqn: int,
        solicited: int,
    ) -> bool:
        """Do what `post` does, with every field in its place: the engine's way."""
        producer = self.producer
        if self.dead or (producer - self.consumer >= self.mask and not self._has_room()):
            self.lost += 1
            return False
        buffer = self.buffer
        if not buffer.pages:
            self.die(CQ_ACCESS_VIOLATION)
            return False
        number, place = 0, (producer & self.mask) << _ENTRY_SHIFT
        if not buffer.single:
            number, place = buffer.locate(place)
        if status:
            solicited = 1
        _pack_entry(
            buffer.pages[number], place, qpn, wqe_index & 0xFFFFFFFF, byte_len, imm_data, src_qp,
            opcode, status, vendor_err, is_send, wc_flags, slid, pkey_index, sl, dlid_path_bits,
            srqn, solicited, self._clock_ns(),
        )  # fmt: skip
        producer += 1
        publish_fence()
        buffer.words[number][(place >> 3) + CQE_VALID_WORD] = producer
        self.producer = producer
        if solicited:
            self.solicited = producer
        if self.armed and (solicited or self.armed == ARMED):
            self._fire()
        return True

    def add_plain(
        self, qpn: int, wqe_index: int, byte_len: int, src_qp: int, opcode: int, is_send: int
    ) -> bool:
        """Do what `add` does where all else is 0: a request that ended well, as most do."""
        producer = self.producer
        if self.dead or (producer - self.consumer >= self.mask and not self._has_room()):
            self.lost += 1
            return False
        buffer = self.buffer
        if not buffer.pages:
            self.die(CQ_ACCESS_VIOLATION)
            return False
        number, place = 0, (producer & self.mask) << _ENTRY_SHIFT
        if not buffer.single:
            number, place = buffer.locate(place)
        _pack_plain(
            buffer.pages[number], place, qpn, wqe_index & 0xFFFFFFFF, byte_len, src_qp, opcode,
            is_send, self._clock_ns(),
        )  # fmt: skip
        producer += 1
        publish_fence()
        buffer.words[number][(place >> 3) + CQE_VALID_WORD] = producer
        self.producer = producer
        if self.armed == ARMED:
            self._fire()
        return True

    def rung(self) -> None:
        """Arm the queue as its arm word says; the event may be due at once."""
        word = self.page.index(self.context.arm_slot)
        if word is None or word == self.last_arm or self.dead:
            return
        wanted = ARMED if asks_for_any(word, self.last_arm) else ARMED_SOLICITED
        self.armed = max(self.armed, wanted)
        self.last_arm = word
        self.arms += 1
        newest = self.producer if self.armed == ARMED else self.solicited
        if newest > word & INDEX_MASK:
            # Of what had been stored by then, that may be which its owner polled since.
            self._read_consumer()
            if newest > self.consumer:
                self._fire()

    def die(self, syndrome: int) -> None:
        """Stop the queue for good and tell its owner; once."""
        if not self.dead:
            self.dead = syndrome
            self.armed = DISARMED
            self._events.cq_error(self.number, syndrome)

    def unpolled(self) -> range | None:
        """Return the positions that may not be polled yet; None if the owner's word is wrong."""
        self._read_consumer()
        if not 0 <= self.producer - self.consumer <= self.mask + 1:
            return None
        return range(self.consumer, self.producer)

    def sweep(self, qpn: int) -> int:
        """Remove a QP's entries: each stays in its place and names no QP any more."""
        positions = self.unpolled()
        if positions is None:
            positions = range(max(0, self.producer - self.mask - 1), self.producer)
        return remove_entries(self.buffer, self.mask, positions, qpn)

    def resize(self, context: abi.CqContext, buffer: QueueBuffer) -> bool:
        """Move what is not polled into another buffer, in order; False if it does not fit.

        Entries keep their positions, so an owner that still polls the old buffer finds there what
        was posted before, and the rest in the new one.
        """
        mask = (1 << (context.log_size_uar >> abi.LOG_SIZE_SHIFT)) - 1
        positions = self.unpolled()
        if positions is None or len(positions) > mask:
            return False
        move_entries(self.buffer, self.mask, buffer, mask, positions)
        self.buffer.close()
        self.buffer = buffer
        self.mask = mask
        self.context = self.context._replace(
            start=context.start,
            log_size_uar=context.log_size_uar & ~abi.UAR_MASK
            | self.context.log_size_uar & abi.UAR_MASK,
            lkey=context.lkey,
            pd=context.pd,
        )
        return True

    def live_context(self) -> abi.CqContext:
        """Return the context with its live fields, as QUERY_CQ shows it."""
        self._read_consumer()
        state = (0, abi.CQ_STATE_ARMED_SOLICITED, abi.CQ_STATE_ARMED)[self.armed]
        if self.fired and not state:
            state = abi.CQ_STATE_FIRED
        status = 0
        if self.dead:
            overrun = self.dead == CQ_OVERRUN
            status = abi.CQ_STATUS_OVERFLOW if overrun else abi.CQ_STATUS_WRITE_FAILURE
        return self.context._replace(
            flags=self.context.flags & abi.CQ_FLAG_IGNORE_OVERRUN | status | state,
            solicit_producer=self.solicited & 0xFFFFFFFF,
            consumer=self.consumer & 0xFFFFFFFF,
            producer=self.producer & 0xFFFFFFFF,
        )

    def inspect(self) -> dict[str, object]:
        """Return size, indices and state."""
        return {
            "size": self.mask + 1,
            "producer": self.producer,
            "consumer": self.consumer,
            "armed": ("no", "solicited", "any")[self.armed],
            "arms": self.arms,
            "dead": self.dead,
            "lost": self.lost,
            "users": self.users,
        }

    def _read_consumer(self) -> None:
        word = self.page.index(self.context.consumer_slot)
        if word is not None:
            self.consumer = word

    def _has_room(self) -> bool:
        if self.context.flags & abi.CQ_FLAG_IGNORE_OVERRUN:
            return True
        self._read_consumer()
        if self.producer - self.consumer < self.mask:
            return True
        self.die(CQ_OVERRUN)
        return False

    def _fire(self) -> None:
        self.armed = DISARMED
        self.fired = True
        self._events.completion(self.context.completion_eq, self.number)
