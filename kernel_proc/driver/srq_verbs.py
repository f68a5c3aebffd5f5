"""Shared receive queues: create, modify (arm the limit), query, destroy.

Rules: PASSIVE_LEVEL, in the caller's thread, which waits for commands.
Spec: IBA vol. 1, 10.2.9 and 11.2.3; Linux mthca_srq.c.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.cq_verbs import Cq
from kernel_proc.driver.event_latch import OF_SRQ
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.queue_resource import (
    LOCAL_READ,
    MemoryNeed,
    QueueMemory,
    QueueResource,
    UserMemory,
    refuse,
)
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.verb import Verb
from kernel_proc.driver.xrcd_verbs import Xrcd
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import SRQ_CONTEXT, SRQ_IS_XRC, SrqContext
from kernel_proc.scheduling.dpc_flush import flush_queued_dpcs
from shared import verb_codes as codes
from shared.verb_messages import (
    CreateSrq,
    Destroyed,
    ModifySrq,
    Object,
    SrqAttributes,
    SrqCreated,
)
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_srq_attr_mask, ibv_srq_type
from shared.wqe_layout import RECEIVE_SGE_OFFSET, SGE, receive_stride, ring_entries

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.resources import Resource
    from kernel_proc.io_manager.irp import Irp

_BASIC: Final = int(ibv_srq_type.IBV_SRQT_BASIC)
_XRC: Final = int(ibv_srq_type.IBV_SRQT_XRC)
_MAX_WR: Final = int(ibv_srq_attr_mask.IBV_SRQ_MAX_WR)
_LIMIT: Final = int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)


class Srq(QueueResource):
    """An SRQ; `entries` and `max_sge` are what was granted."""

    kind = "SRQ"
    tables = ("srqc",)

    __slots__ = ("entries", "is_xrc", "max_sge", "pd", "stride")

    def __init__(
        self, context: "Context", memory: QueueMemory, request: CreateSrq, pd: Pd, most_sge: int
    ) -> None:
        super().__init__(context, context.driver.numbers.srq, memory)
        self.pd = pd
        self.is_xrc = request.srq_type == _XRC
        self.entries = ring_entries(request.max_wr)
        self.stride = receive_stride(request.max_sge)
        self.max_sge = min((self.stride - RECEIVE_SGE_OFFSET) // SGE.size, most_sge)

    def destroy(self, driver: "HcaDriver") -> None:
        """Take the queue back; what was posted to it is forgotten."""
        self.take_back(driver, op.HW2SW_SRQ)
        notification = notification_of(driver)
        notification.srqs.pop(self.number, None)
        flush_queued_dpcs(driver.processor)
        notification.close_latch(self.latch)
        self.give_back(driver)

    def attributes(self) -> dict[str, Any]:
        """Return number, size and events."""
        return {**super().attributes(), "entries": self.entries, "xrc": self.is_xrc}


def _check(driver: "HcaDriver", request: CreateSrq) -> None:
    device = driver.limits.device
    if request.srq_type not in (_BASIC, _XRC):
        unknown = request.srq_type not in list(ibv_srq_type)
        code = errno.EINVAL if unknown else errno.EOPNOTSUPP
        raise VerbRefused(code, VerbReason.SRQ_TYPE_NOT_SUPPORTED, 0, request.srq_type)
    if not 1 <= request.max_wr <= device.max_srq_wqes:
        refuse(VerbReason.BAD_MAX_WR, request.max_wr, device.max_srq_wqes)
    if request.max_sge > device.max_sges:
        refuse(VerbReason.BAD_MAX_SGE, request.max_sge, device.max_sges)
    if not request.pd:
        refuse(VerbReason.PD_NEEDED)
    if request.srq_type == _XRC:
        if not request.xrcd:
            refuse(VerbReason.XRCD_NEEDED)
        if not request.cq:
            refuse(VerbReason.XRC_CQ_NEEDED)


def make_srq(
    driver: "HcaDriver", context: "Context", request: CreateSrq, memory: QueueMemory
) -> Srq:
    """Create an SRQ in any kind of memory."""
    _check(driver, request)
    pd = context.find(Pd, request.pd)
    parents: list[Resource] = [pd]
    xrcd = cqn = 0
    if request.srq_type == _XRC:
        domain, cq = context.find(Xrcd, request.xrcd), context.find(Cq, request.cq)
        parents += [domain, cq]
        xrcd, cqn = domain.number, cq.number
    with context.holding(*parents):
        srq = Srq(context, memory, request, pd, driver.limits.device.max_sges)
        need = MemoryNeed(srq.entries * srq.stride, srq.stride, LOCAL_READ, pd.pdn)
        srq.acquire(driver, 1, need)
        notification = notification_of(driver)
        srq.latch = notification.make_latch(srq, OF_SRQ)
        notification.srqs[srq.number] = srq.latch
        try:
            hca = SrqContext(
                srqn=srq.number,
                pd=pd.pdn,
                uar=context.uar,
                wqe_lkey=srq.lkey,
                entries=srq.entries,
                stride=srq.stride,
                slot=srq.slots[0],
                limit=0,
                flags=SRQ_IS_XRC if srq.is_xrc else 0,
                xrcd=xrcd,
                cqn=cqn,
            )
            driver.channel.run(op.SW2HW_SRQ, modifier=srq.number, inbox=SRQ_CONTEXT.pack(*hca))
            srq.in_hardware = True
            context.add(srq, *parents)
        except VerbRefused as refusal:
            srq.abandon(driver, refusal)
            raise
        return srq


def create_srq(
    driver: "HcaDriver", context: "Context", request: CreateSrq, irp: "Irp | None"
) -> SrqCreated:
    """Create an SRQ in the user's memory."""
    memory = UserMemory(request.buffer, request.buffer_length)
    return created(make_srq(driver, context, request, memory))


def created(srq: Srq) -> SrqCreated:
    """Return what was granted."""
    return SrqCreated(srq.handle, srq.number, srq.entries, srq.max_sge, srq.slots[0])


def modify_srq(
    driver: "HcaDriver", context: "Context", request: ModifySrq, irp: "Irp | None"
) -> None:
    """Arm the limit event, or disarm it with 0; nothing is changed by a refusal."""
    srq = context.find(Srq, request.handle)
    with context.locked(srq):
        unknown = request.mask & ~(_MAX_WR | _LIMIT)
        if unknown:
            refuse(VerbReason.UNKNOWN_ATTRIBUTES, 0, unknown)
        if request.mask & _MAX_WR:
            raise VerbRefused(
                errno.EOPNOTSUPP, VerbReason.SRQ_RESIZE_NOT_SUPPORTED, 0, request.max_wr
            )
        if request.mask & _LIMIT:
            if request.srq_limit > srq.entries:
                refuse(VerbReason.SRQ_LIMIT_ABOVE_SIZE, request.srq_limit, srq.entries)
            driver.channel.run(op.ARM_SRQ, modifier=srq.number, in_param=request.srq_limit)


def query_srq(
    driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None"
) -> SrqAttributes:
    """Return size and limit; the limit is 0 after its event."""
    srq = context.find(Srq, request.handle)
    with context.locked(srq):
        result = driver.channel.run(
            op.QUERY_SRQ, modifier=srq.number, outbox_length=SRQ_CONTEXT.size
        )
        hca = SrqContext(*SRQ_CONTEXT.unpack_from(result.outbox))
        return SrqAttributes(srq.entries, srq.max_sge, hca.limit)


def destroy_srq(
    driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None"
) -> Destroyed:
    """Destroy an SRQ no QP is attached to; tell how many of its events were delivered."""
    return Destroyed(0, context.destroy(Srq, request.handle).latch.async_events)


VERBS: Final = {
    codes.IOCTL_CREATE_SRQ: Verb(create_srq, CreateSrq),
    codes.IOCTL_MODIFY_SRQ: Verb(modify_srq, ModifySrq),
    codes.IOCTL_QUERY_SRQ: Verb(query_srq, Object),
    codes.IOCTL_DESTROY_SRQ: Verb(destroy_srq, Object),
}
