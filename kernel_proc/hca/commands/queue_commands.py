"""Commands on event queues, completion queues and shared receive queues.

Spec: Linux drivers/infiniband/hw/mthca (mthca_eq.c, mthca_cq.c, mthca_srq.c).
"""

from typing import Final

from kernel_proc.hca.command import (
    Command,
    CommandRefused,
    bad_index,
    bad_parameter,
    bad_resource_state,
)
from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.event_table import EventQueue
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca.work_queue import IndexWord
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi.event_entries import CQ_ACCESS_VIOLATION, EQE_SIZE
from kernel_proc.hca_abi.registers import EQ_COUNT
from shared.cqe_layout import CQE_SIZE
from shared.doorbell_layout import RING_CQ_ARM, RING_SRQ, SLOTS

_WRITTEN: Final = abi.MPT_FLAG_LOCAL_WRITE
_READ: Final = abi.MPT_FLAG_LOCAL_READ
_LOG_MOST_EQES: Final = 22
_LEAST_STRIDE: Final = 64
_MOST_STRIDE: Final = 8192
_EQ_ARMED: Final = abi.EQ_STATE_ALWAYS_ARMED

# Event queues


def _eqn(hca: HcaTables, number: int) -> int:
    if number >= min(EQ_COUNT, 1 << hca.bases.log_eqs):
        raise bad_index()
    return number


def sw2hw_eq(hca: HcaTables, command: Command) -> None:
    """Give an event queue to the hardware."""
    number = _eqn(hca, command.modifier)
    context = abi.EqContext(*command.unpack(abi.EQ_CONTEXT))
    hca.require_icm(hca.bases.eqc_base, number, abi.EQC_SIZE)
    if hca.events.queues[number] is not None:
        raise bad_resource_state()
    log_size = context.log_size >> abi.LOG_SIZE_SHIFT
    if log_size > _LOG_MOST_EQES:
        raise bad_parameter()
    buffer = hca.queue(
        context.lkey,
        context.pd,
        _WRITTEN,
        EQE_SIZE << log_size,
        address=context.start,
        alignment=EQE_SIZE,
    )
    hca.events.insert(EventQueue(number, context, buffer, log_size))


def _owned_eq(hca: HcaTables, command: Command) -> EventQueue:
    queue = hca.events.queues[_eqn(hca, command.modifier)]
    if queue is None:
        raise bad_resource_state()
    return queue


def _pack_eq(queue: EventQueue) -> bytes:
    live = queue.context._replace(
        flags=queue.context.flags & ~abi.CQ_STATE_MASK | _EQ_ARMED,
        producer=queue.producer & 0xFFFFFFFF,
    )
    return abi.EQ_CONTEXT.pack(*live)


def hw2sw_eq(hca: HcaTables, command: Command) -> None:
    """Take an event queue back; types that were mapped to it go nowhere."""
    queue = _owned_eq(hca, command)
    if command.out_param:
        command.outbox(_pack_eq(queue))
    hca.events.remove(queue.number)


def query_eq(hca: HcaTables, command: Command) -> None:
    """Answer an event queue's context."""
    command.outbox(_pack_eq(_owned_eq(hca, command)))


def map_eq(hca: HcaTables, command: Command) -> None:
    """Send the event types of a mask to a queue, or nowhere any more."""
    number = _eqn(hca, command.modifier & ~op.MAP_EQ_UNMAP)
    if command.modifier & op.MAP_EQ_UNMAP:
        hca.events.map_types(command.in_param, None)
        return
    if hca.events.queues[number] is None:
        raise bad_resource_state()
    hca.events.map_types(command.in_param, number)


# Completion queues


def sw2hw_cq(hca: HcaTables, command: Command) -> None:
    """Give a completion queue to the hardware."""
    number = command.modifier
    index = hca.cqs.require_free(number)
    context = abi.CqContext(*command.unpack(abi.CQ_CONTEXT))
    hca.require_icm(hca.bases.cqc_base, index, abi.CQC_SIZE)
    if context.cqn != number or max(context.consumer_slot, context.arm_slot) >= SLOTS:
        raise bad_parameter()
    page = hca.page(context.log_size_uar & abi.UAR_MASK)
    buffer = hca.queue(
        context.lkey, context.pd, _WRITTEN, _cq_length(hca, context), address=context.start,
        alignment=CQE_SIZE,
    )  # fmt: skip
    cq = CompletionQueue(context, buffer, page, hca.events, hca.clock_ns)
    if not hca.doorbells.claim(page, RING_CQ_ARM, context.arm_slot, cq):
        buffer.close()
        raise bad_parameter()
    hca.cqs.insert(cq)


def _cq_length(hca: HcaTables, context: abi.CqContext) -> int:
    log_size = context.log_size_uar >> abi.LOG_SIZE_SHIFT
    if log_size > hca.limits.log_max_cqes:
        raise CommandRefused(op.CMD_STAT_EXCEED_LIM)
    return CQE_SIZE << log_size


def hw2sw_cq(hca: HcaTables, command: Command) -> None:
    """Take a completion queue back; nothing is written into it any more."""
    cq = hca.cqs.require(command.modifier)
    if cq.users:
        raise CommandRefused(op.CMD_STAT_RESOURCE_BUSY)
    if command.out_param:
        command.outbox(abi.CQ_CONTEXT.pack(*cq.live_context()))
    hca.cqs.remove(cq)
    hca.doorbells.release(cq.page, RING_CQ_ARM, cq.context.arm_slot)
    cq.dead = cq.dead or CQ_ACCESS_VIOLATION  # for a doorbell that is still in hand
    cq.buffer.close()


def query_cq(hca: HcaTables, command: Command) -> None:
    """Answer a completion queue's context."""
    command.outbox(abi.CQ_CONTEXT.pack(*hca.cqs.require(command.modifier).live_context()))


def resize_cq(hca: HcaTables, command: Command) -> None:
    """Go on in another buffer; BAD_SIZE if what is not polled does not fit."""
    cq = hca.cqs.require(command.modifier)
    context = abi.CqContext(*command.unpack(abi.CQ_CONTEXT))
    if cq.dead or not cq.buffer.alive:
        raise bad_resource_state()
    buffer = hca.queue(
        context.lkey, context.pd, _WRITTEN, _cq_length(hca, context), address=context.start,
        alignment=CQE_SIZE,
    )  # fmt: skip
    if not cq.resize(context, buffer):
        buffer.close()
        raise CommandRefused(op.CMD_STAT_BAD_SIZE)


# Shared receive queues


def check_ring(entries: int, stride: int, most: int) -> None:
    """Refuse a work queue whose entries or stride cannot be."""
    if not 0 < entries <= most or entries & (entries - 1):
        raise bad_parameter()
    if not _LEAST_STRIDE <= stride <= _MOST_STRIDE or stride & (stride - 1):
        raise bad_parameter()


def sw2hw_srq(hca: HcaTables, command: Command) -> None:
    """Give a shared receive queue to the hardware."""
    number = command.modifier
    index = hca.srqs.require_free(number)
    context = abi.SrqContext(*command.unpack(abi.SRQ_CONTEXT))
    hca.require_icm(hca.bases.srqc_base, index, abi.SRQC_SIZE)
    if context.srqn != number or context.limit > context.entries:
        raise bad_parameter()
    check_ring(context.entries, context.stride, _ring_limit(hca.limits.max_srq_wqes))
    page = hca.page(context.uar)
    cq = hca.cqs.require(context.cqn) if context.flags & abi.SRQ_IS_XRC else None
    buffer = hca.queue(
        context.wqe_lkey, context.pd, _READ, context.entries * context.stride,
        alignment=_LEAST_STRIDE,
    )  # fmt: skip
    if context.slot >= SLOTS:
        buffer.close()
        raise bad_parameter()
    index_word = IndexWord(page, context.slot, context.entries)
    srq = SharedReceiveQueue(context, index_word, buffer, cq, hca.events)
    srq.when_broken = hca.qps.shared_queue_broken
    if not hca.doorbells.claim(page, RING_SRQ, context.slot, srq):
        buffer.close()
        raise bad_parameter()
    if cq is not None:
        cq.users += 1
    hca.srqs.insert(srq)


def _ring_limit(most: int) -> int:
    """Return the entries of a ring for `most` requests: a power of two."""
    return 1 << (most - 1).bit_length()


def hw2sw_srq(hca: HcaTables, command: Command) -> None:
    """Take a shared receive queue back."""
    srq = hca.srqs.require(command.modifier)
    if srq.users:
        raise CommandRefused(op.CMD_STAT_RESOURCE_BUSY)
    if command.out_param:
        command.outbox(abi.SRQ_CONTEXT.pack(*srq.live_context()))
    hca.srqs.remove(srq)
    hca.doorbells.release(srq.page, RING_SRQ, srq.slot)
    srq.error_told = True  # for a doorbell that is still in hand
    srq.close()
    if srq.cq is not None:
        hca.qps.shared_queue_gone(srq)
        srq.cq.users -= 1


def query_srq(hca: HcaTables, command: Command) -> None:
    """Answer a shared receive queue's context."""
    command.outbox(abi.SRQ_CONTEXT.pack(*hca.srqs.require(command.modifier).live_context()))


def arm_srq(hca: HcaTables, command: Command) -> None:
    """Set the limit below which the event is raised, once; 0 takes it away."""
    srq = hca.srqs.require(command.modifier)
    if command.in_param > srq.entries:
        raise bad_parameter()
    srq.limit = command.in_param


_READY: Final = FirmwareState.INITIALISED

HANDLERS: Final = {
    op.SW2HW_EQ: (sw2hw_eq, _READY),
    op.HW2SW_EQ: (hw2sw_eq, _READY),
    op.QUERY_EQ: (query_eq, _READY),
    op.MAP_EQ: (map_eq, _READY),
    op.SW2HW_CQ: (sw2hw_cq, _READY),
    op.HW2SW_CQ: (hw2sw_cq, _READY),
    op.QUERY_CQ: (query_cq, _READY),
    op.RESIZE_CQ: (resize_cq, _READY),
    op.SW2HW_SRQ: (sw2hw_srq, _READY),
    op.HW2SW_SRQ: (hw2sw_srq, _READY),
    op.QUERY_SRQ: (query_srq, _READY),
    op.ARM_SRQ: (arm_srq, _READY),
}
