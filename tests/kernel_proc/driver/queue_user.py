"""A user of queues without a library: it makes them, rings, posts receives and polls by hand."""

import mmap
from typing import Any

from kernel_proc.driver.verb import Handler
from shared import verb_codes as codes
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_WORD, Cqe
from shared.doorbell_layout import (
    ARM_SEQUENCE_MASK,
    ARM_SEQUENCE_SHIFT,
    ARM_SOLICITED,
    FIRST_SLOT_WORD,
    KIND_SHIFT,
    RING_CQ_ARM,
    RING_ENTRIES,
    RING_RECEIVE,
    RING_SRQ,
    RING_WORD,
    RUNG_WORD,
    SEGMENT_LENGTH,
)
from shared.live_words import words64
from shared.verb_messages import (
    CqCreated,
    CreateCq,
    CreateQp,
    CreateSrq,
    ModifyQp,
    Object,
    QpCreated,
    SrqCreated,
)
from shared.wqe_layout import RECEIVE_HEAD
from tests.kernel_proc.driver.hca_box import Answer, HcaBox, HcaSession, good, verb

RC, UC, UD, RAW_PACKET, XRC_SEND, XRC_RECV, DRIVER = 2, 3, 4, 8, 9, 10, 255
TYPES = (RC, UC, UD, XRC_SEND, XRC_RECV)
RESET, INIT, RTR, RTS, SQD, SQE, ERR = range(7)

_BUFFER = 1 << 20


class Doorbells:
    """A doorbell segment as its user sees it."""

    def __init__(self, view: Any) -> None:
        self.words = words64(memoryview(view))

    def store(self, slot: int, value: int) -> None:
        self.words[FIRST_SLOT_WORD + slot] = value

    def ring(self, kind: int, slot: int) -> None:
        rung = self.words[RUNG_WORD]
        self.words[RING_WORD + rung % RING_ENTRIES] = kind << KIND_SHIFT | slot
        self.words[RUNG_WORD] = rung + 1


class CqUser:
    """A CQ in its user's hands."""

    def __init__(self, doorbells: Doorbells, created: CqCreated, memory: Any) -> None:
        self.doorbells = doorbells
        self.handle = created.handle
        self.number = created.cqn
        self.created = created
        self.consumer = 0
        self._sequence = 0
        self.use(created, memory)
        doorbells.store(created.consumer_slot, 0)
        doorbells.store(created.arm_slot, 0)

    def use(self, created: CqCreated, memory: Any) -> None:
        self.created = created
        self._memory = memoryview(memory)
        self._words = words64(self._memory)

    def poll(self) -> Cqe | None:
        place = (self.consumer % (self.created.cqe + 1)) * CQE_SIZE
        if self._words[place // 8 + CQE_VALID_WORD] != self.consumer + 1:
            return None
        entry = Cqe(*CQE.unpack_from(self._memory, place))
        self.consumer += 1
        self.doorbells.store(self.created.consumer_slot, self.consumer)
        return entry

    def poll_all(self) -> list[Cqe]:
        entries = []
        while (entry := self.poll()) is not None:
            entries.append(entry)
        return entries

    def arm(self, *, solicited: bool = False) -> None:
        self._sequence = self._sequence % ARM_SEQUENCE_MASK + 1
        word = self._sequence << ARM_SEQUENCE_SHIFT | self.consumer
        self.doorbells.store(self.created.arm_slot, word | (ARM_SOLICITED if solicited else 0))
        self.doorbells.ring(RING_CQ_ARM, self.created.arm_slot)


class ReceiveUser:
    """The receive ring of a QP or SRQ in its user's hands."""

    def __init__(
        self, doorbells: Doorbells, kind: int, slot: int, entries: int, stride: int, memory: Any
    ) -> None:
        self.doorbells = doorbells
        self.kind = kind
        self.slot = slot
        self.entries = entries
        self.stride = stride
        self.posted = 0
        self._memory = memoryview(memory)
        doorbells.store(slot, 0)

    def post(self) -> None:
        """Post a receive entry without any element."""
        RECEIVE_HEAD.pack_into(self._memory, self.posted % self.entries * self.stride, 0)
        self.posted += 1
        self.doorbells.store(self.slot, self.posted)
        self.doorbells.ring(self.kind, self.slot)


class QpUser:
    """A QP in its user's hands."""

    def __init__(self, user: "QueueUser", created: QpCreated, memory: Any) -> None:
        self.created = created
        self.handle = created.handle
        self.number = created.qpn
        self.receive = (
            ReceiveUser(
                user.doorbells, RING_RECEIVE, created.receive_slot, created.max_recv_wr,
                created.receive_stride, memory,
            )
            if created.max_recv_wr
            else None
        )  # fmt: skip
        user.doorbells.store(created.send_slot, 0)


class QueueUser:
    """One process that makes queues; every call is a verb through the I/O manager."""

    def __init__(self, box: HcaBox, session: HcaSession | None = None) -> None:
        self.box = box
        self.session = session or box.session()
        segment = self.session.process.doorbells.segment
        self.doorbells = Doorbells(mmap.mmap(segment, SEGMENT_LENGTH))
        self._arena = self.session.arena(_BUFFER)
        self._used = 0
        self._pd: int | None = None

    # Memory

    def memory(self, length: int) -> int:
        """Return page-aligned arena memory."""
        length = -(-length // 4096) * 4096
        if self._used + length > _BUFFER:
            self._arena, self._used = self.session.arena(max(_BUFFER, length)), 0
        address = self._arena + self._used
        self._used += length
        return address

    def view(self, address: int, length: int) -> memoryview:
        view = self.session.space.arena_view(address, length)
        assert view is not None
        return view

    # Verbs

    def ask(self, code: int, message: Any = None) -> Answer:
        return verb(self.session, code, message)

    def good(self, code: int, message: Any = None) -> Any:
        return good(self.session, code, message)

    def direct(self, handler: Handler, request: Any) -> Any:
        """Call a verb's handler as the dispatch routine would, without an IRP around it."""
        context = self.session.context
        return self.box.processor.run_thread(handler, context.driver, context, request, None)

    @property
    def pd(self) -> int:
        """A protection domain, made at first use."""
        if self._pd is None:
            self._pd = self.good(codes.IOCTL_ALLOC_PD).handle
        assert self._pd is not None
        return self._pd

    def cq_request(self, cqe: int = 15, **changes: Any) -> CreateCq:
        length = CQE_SIZE << cqe.bit_length()
        values: dict[str, Any] = {
            "cqe": cqe,
            "comp_vector": 0,
            "has_channel": 1,
            "flags": 0,
            "buffer": self.memory(length),
            "buffer_length": length,
        }
        return CreateCq(**values | changes)

    def cq(self, cqe: int = 15, **changes: Any) -> CqUser:
        request = self.cq_request(cqe, **changes)
        created = self.good(codes.IOCTL_CREATE_CQ, request)
        memory = self.view(request.buffer, (created.cqe + 1) * CQE_SIZE)
        return CqUser(self.doorbells, created, memory)

    def srq_request(self, **changes: Any) -> CreateSrq:
        values: dict[str, Any] = {
            "pd": self.pd,
            "srq_type": 0,
            "max_wr": 8,
            "max_sge": 1,
            "xrcd": 0,
            "cq": 0,
            "buffer": self.memory(8192),
            "buffer_length": 8192,
        }
        return CreateSrq(**values | changes)

    def srq(self, **changes: Any) -> SrqCreated:
        created = self.good(codes.IOCTL_CREATE_SRQ, self.srq_request(**changes))
        assert isinstance(created, SrqCreated)
        self.doorbells.store(created.slot, 0)
        return created

    def srq_ring(self, created: SrqCreated, request: CreateSrq) -> ReceiveUser:
        memory = self.view(request.buffer, request.buffer_length)
        return ReceiveUser(self.doorbells, RING_SRQ, created.slot, created.max_wr, 64, memory)

    def qp_request(self, qp_type: int = RC, **changes: Any) -> CreateQp:
        values: dict[str, Any] = {
            "qp_type": qp_type,
            "pd": self.pd if qp_type != XRC_RECV else 0,
            "send_cq": 0,
            "receive_cq": 0,
            "srq": 0,
            "xrcd": 0,
            "max_send_wr": 4,
            "max_recv_wr": 4,
            "max_send_sge": 1,
            "max_recv_sge": 1,
            "max_inline_data": 0,
            "sq_sig_all": 0,
            "create_flags": 0,
            "send_ops_flags": 0,
            "buffer": self.memory(4096),
            "buffer_length": 4096,
        }
        return CreateQp(**values | changes)

    def qp(self, cq: CqUser, qp_type: int = RC, **changes: Any) -> QpUser:
        parts = {"send_cq": cq.handle, "receive_cq": cq.handle}
        request = self.qp_request(qp_type, **parts | changes)
        created = self.good(codes.IOCTL_CREATE_QP, request)
        return QpUser(self, created, self.view(request.buffer, request.buffer_length))

    def modify(self, qp: int, mask: int, **values: Any) -> Answer:
        return self.ask(codes.IOCTL_MODIFY_QP, attributes(qp, mask, **values))

    def destroy(self, code: int, handle: int) -> Any:
        return self.good(code, Object(handle))

    def settle(self) -> None:
        """Let the HCA and the DPCs do what there is to do."""
        while self.box.hca.run_once():
            pass
        self.box.processor.run_thread(lambda: None)


#: A value for every attribute that each transition accepts.
GOOD_VALUES: dict[str, Any] = {
    "qp_state": 0,
    "cur_qp_state": 0,
    "path_mtu": 3,
    "path_mig_state": 0,
    "qkey": 0x11,
    "rq_psn": 5,
    "sq_psn": 6,
    "dest_qp_num": 0x1234,
    "qp_access_flags": 6,
    "pkey_index": 0,
    "alt_pkey_index": 0,
    "en_sqd_async_notify": 0,
    "max_rd_atomic": 1,
    "max_dest_rd_atomic": 1,
    "min_rnr_timer": 12,
    "port_num": 1,
    "timeout": 14,
    "retry_cnt": 7,
    "rnr_retry": 7,
    "alt_port_num": 1,
    "alt_timeout": 14,
    "rate_limit": 0,
    "ah_port_num": 1,
    "ah_dlid": 1,
    "ah_sl": 0,
    "ah_src_path_bits": 0,
    "ah_static_rate": 0,
    "ah_is_global": 0,
    "ah_dgid": bytes(16),
    "ah_flow_label": 0,
    "ah_sgid_index": 0,
    "ah_hop_limit": 0,
    "ah_traffic_class": 0,
}


def attributes(handle: int, mask: int, **values: Any) -> ModifyQp:
    """Make the message of a modify."""
    return ModifyQp(handle, mask, **GOOD_VALUES | values)
