"""Completion queues: create, resize, destroy.

Rules: PASSIVE_LEVEL, in the caller's thread, which waits for commands.
Spec: IBA vol. 1, 11.2.8; Linux mthca_cq.c (mthca_init_cq, mthca_free_cq).
"""

import errno
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_proc.driver.event_latch import OF_CQ
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.queue_resource import (
    LOCAL_WRITE,
    MemoryNeed,
    QueueMemory,
    QueueResource,
    UserMemory,
    refuse,
)
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.verb import Verb
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import (
    CQ_CONTEXT,
    CQ_FLAG_IGNORE_OVERRUN,
    LOG_SIZE_SHIFT,
    NO_EQ,
    CqContext,
)
from kernel_proc.hca_abi.registers import ASYNC_EQ, COMPLETION_EQ
from kernel_proc.scheduling.dpc_flush import flush_queued_dpcs
from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import CqCreated, CreateCq, Destroyed, Object, ResizeCq
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_create_cq_attr_flags

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.pinned_memory import Region
    from kernel_proc.io_manager.irp import Irp

COMPLETION_VECTORS: Final = 1
_SINGLE_THREADED: Final = int(ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
_IGNORE_OVERRUN: Final = int(ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)
_FLAGS: Final = _SINGLE_THREADED | _IGNORE_OVERRUN


class Candidate(NamedTuple):
    """Memory a CQ is to be moved to."""

    region: "Region"
    memory: QueueMemory
    entries: int


class Cq(QueueResource):
    """A CQ; `size` counts its entries, one of which is kept back.

    `candidate` is the memory of a move that the HCA may have made or not.
    """

    kind = "CQ"
    tables = ("cqc",)

    __slots__ = ("candidate", "flags", "has_channel", "size")

    def __init__(self, context: "Context", memory: QueueMemory, request: CreateCq) -> None:
        super().__init__(context, context.driver.numbers.cq, memory)
        self.size = entries_of(request.cqe)
        self.has_channel = bool(request.has_channel)
        self.flags = request.flags
        self.candidate: Candidate | None = None

    @property
    def consumer_slot(self) -> int:
        """Return the index word that says how many entries were polled."""
        return self.slots[0]

    @property
    def arm_slot(self) -> int:
        """Return the word that arms the queue."""
        return self.slots[1]

    def hca_context(self, pdn: int) -> CqContext:
        """Return what SW2HW_CQ and RESIZE_CQ carry."""
        return CqContext(
            flags=CQ_FLAG_IGNORE_OVERRUN if self.flags & _IGNORE_OVERRUN else 0,
            start=0,
            log_size_uar=_log_size(self.size) | self.context.uar,
            error_eq=ASYNC_EQ,
            completion_eq=COMPLETION_EQ if self.has_channel else NO_EQ,
            pd=pdn,
            lkey=self.lkey,
            last_notified=0,
            solicit_producer=0,
            consumer=0,
            producer=0,
            cqn=self.number,
            consumer_slot=self.consumer_slot,
            arm_slot=self.arm_slot,
        )

    def destroy(self, driver: "HcaDriver") -> None:
        """Take the queue back; no event of it is under way afterwards."""
        self.take_back(driver, op.HW2SW_CQ)
        if self.candidate is not None:  # whichever it was in, it is in neither now
            self.spares.append((self.candidate.region, self.candidate.memory))
            self.candidate = None
        notification = notification_of(driver)
        notification.cqs.pop(self.number, None)
        flush_queued_dpcs(driver.processor)
        notification.close_latch(self.latch)
        self.give_back(driver)

    def lose(self, driver: "HcaDriver") -> None:
        """Keep also what it may have been moved to."""
        super().lose(driver)
        if self.candidate is not None:
            self.candidate.memory.lose(driver)

    def settle(self, driver: "HcaDriver") -> bool:
        """Ask the HCA whether it has made a move it did not answer; tell whether it has.

        A refusal leaves it open.
        """
        candidate = self.candidate
        assert candidate is not None
        answer = driver.channel.run(
            op.QUERY_CQ, modifier=self.number, outbox_length=CQ_CONTEXT.size
        )
        moved = CqContext(*CQ_CONTEXT.unpack(answer.outbox)).lkey == candidate.region.lkey
        self.candidate = None
        if moved:
            self.size = candidate.entries
            self.move_to(driver, candidate.region, candidate.memory)
        else:
            self.give_up(driver, candidate.region, candidate.memory)
        return moved

    def attributes(self) -> dict[str, Any]:
        """Return number, size and events."""
        return {**super().attributes(), "entries": self.size, "channel": self.has_channel}


def entries_of(cqe: int) -> int:
    """Return how many entries a queue for `cqe` has: the next power of two above."""
    return 1 << cqe.bit_length()


def _log_size(entries: int) -> int:
    return (entries.bit_length() - 1) << LOG_SIZE_SHIFT


def _require_cqe(driver: "HcaDriver", cqe: int) -> None:
    most = driver.limits.max_cqe
    if not 1 <= cqe <= most:
        refuse(VerbReason.BAD_CQE, cqe, most)


def _need(driver: "HcaDriver", entries: int) -> MemoryNeed:
    return MemoryNeed(entries * CQE_SIZE, CQE_SIZE, LOCAL_WRITE, driver.pdn)


def make_cq(
    driver: "HcaDriver",
    context: "Context",
    request: CreateCq,
    memory: QueueMemory,
    on_completion: "Callable[[], object] | None" = None,
) -> Cq:
    """Create a CQ in any kind of memory."""
    _require_cqe(driver, request.cqe)
    if request.comp_vector >= COMPLETION_VECTORS:
        refuse(VerbReason.BAD_COMP_VECTOR, request.comp_vector, COMPLETION_VECTORS)
    if request.flags & ~_FLAGS:
        bits = request.flags & ~_FLAGS
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.CREATE_FLAGS_NOT_SUPPORTED, 0, bits)
    cq = Cq(context, memory, request)
    cq.acquire(driver, 2, _need(driver, cq.size))
    notification = notification_of(driver)
    cq.latch = notification.make_latch(cq, OF_CQ, on_completion)
    notification.cqs[cq.number] = cq.latch
    try:
        inbox = CQ_CONTEXT.pack(*cq.hca_context(driver.pdn))
        driver.channel.run(op.SW2HW_CQ, modifier=cq.number, inbox=inbox)
        cq.in_hardware = True
        context.add(cq)
    except VerbRefused as refusal:
        cq.abandon(driver, refusal)
        raise
    return cq


def created(cq: Cq) -> CqCreated:
    """Return what was granted; one entry is kept back."""
    return CqCreated(cq.handle, cq.number, cq.size - 1, cq.consumer_slot, cq.arm_slot)


def create_cq(
    driver: "HcaDriver", context: "Context", request: CreateCq, irp: "Irp | None"
) -> CqCreated:
    """Create a CQ in the user's memory."""
    memory = UserMemory(request.buffer, request.buffer_length)
    return created(make_cq(driver, context, request, memory))


def change_size(
    driver: "HcaDriver", context: "Context", handle: int, cqe: int, memory: QueueMemory
) -> Cq:
    """Have the HCA move a CQ into other memory, with what waits there to be polled.

    The memory the HCA uses stays registered, whatever happens. When it does not say which that is
    (RESIZE_UNCERTAIN) both do, until it is known or the queue destroyed.
    """
    cq = context.find(Cq, handle)
    with context.locked(cq):
        _require_cqe(driver, cqe)
        if cq.candidate is not None:
            _settle(driver, cq)
        entries = entries_of(cqe)
        region = memory.register(driver, context, _need(driver, entries))
        inbox = CQ_CONTEXT.pack(
            *cq.hca_context(driver.pdn)._replace(
                lkey=region.lkey, log_size_uar=_log_size(entries) | context.uar
            )
        )
        try:
            _resize(driver, cq, cqe, inbox)
        except VerbRefused as refusal:
            if not refusal.unanswered:
                cq.give_up(driver, region, memory)
                raise
            cq.candidate = Candidate(region, memory, entries)
            if not _settle(driver, cq):
                raise
            return cq
        cq.size = entries
        cq.move_to(driver, region, memory)
        return cq


def _settle(driver: "HcaDriver", cq: Cq) -> bool:
    try:
        return cq.settle(driver)
    except VerbRefused as refusal:
        if refusal.reason is VerbReason.DEVICE_FATAL:
            raise
        raise VerbRefused(
            errno.EBUSY, VerbReason.RESIZE_UNCERTAIN, cq.handle, op.RESIZE_CQ
        ) from refusal


def _resize(driver: "HcaDriver", cq: Cq, cqe: int, inbox: bytes) -> None:
    try:
        driver.channel.run(op.RESIZE_CQ, modifier=cq.number, opmod=op.RESIZE_CQ_OPMOD, inbox=inbox)
    except VerbRefused as refusal:
        if refusal.is_status(op.RESIZE_CQ, op.CMD_STAT_BAD_SIZE):
            refuse(VerbReason.CQ_HOLDS_MORE, cqe)
        raise


def resize_cq(
    driver: "HcaDriver", context: "Context", request: ResizeCq, irp: "Irp | None"
) -> CqCreated:
    """Move a CQ into another buffer of the user's."""
    memory = UserMemory(request.buffer, request.buffer_length)
    return created(change_size(driver, context, request.handle, request.cqe, memory))


def destroy_cq(
    driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None"
) -> Destroyed:
    """Destroy a CQ nothing uses; tell how many of its events were delivered."""
    latch = context.destroy(Cq, request.handle).latch
    return Destroyed(latch.completion_events, latch.async_events)


VERBS: Final = {
    codes.IOCTL_CREATE_CQ: Verb(create_cq, CreateCq),
    codes.IOCTL_RESIZE_CQ: Verb(resize_cq, ResizeCq),
    codes.IOCTL_DESTROY_CQ: Verb(destroy_cq, Object),
}
