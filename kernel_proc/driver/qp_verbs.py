"""Queue pairs: create, modify, query, destroy.

The driver knows the state it moved a QP to. The HCA moves one too, not always with an event: when
it refuses a transition, or an event has made the state doubtful, it is asked, and the call is
judged once more by the answer.

Rules: PASSIVE_LEVEL, in the caller's thread, which waits for commands.
Spec: IBA vol. 1, 11.2.5; Linux mthca_qp.c; docs/verbs-in-the-driver.md.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from kernel_proc.driver import qp_attributes
from kernel_proc.driver.cq_verbs import Cq
from kernel_proc.driver.event_latch import OF_QP
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.qp_checks import Step, Values, check_step, check_values
from kernel_proc.driver.qp_plan import WITHOUT_RECEIVE_QUEUE, check_request, plan_queues
from kernel_proc.driver.qp_resource import Qp, is_bad_state
from kernel_proc.driver.queue_resource import (
    LOCAL_READ,
    MemoryNeed,
    QueueMemory,
    UserMemory,
    refuse,
)
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.srq_verbs import Srq
from kernel_proc.driver.verb import Verb
from kernel_proc.driver.xrcd_verbs import Xrcd
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi.contexts import QPC_HAS_SRQ, QpContext
from shared import verb_codes as codes
from shared.verb_messages import CreateQp, Destroyed, ModifyQp, Object, QpAttributes, QpCreated
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.resources import Resource
    from kernel_proc.io_manager.irp import Irp

_WITHOUT_MAILBOX: Final = (op.TOERR_QPEE, op.RTS2SQD_QPEE)


# Creation


class _Parts(NamedTuple):
    """What a QP is made of."""

    pd: Pd | None
    send_cq: Cq | None
    receive_cq: Cq | None
    srq: Srq | None
    xrcd: Xrcd | None

    @property
    def present(self) -> "list[Resource]":
        return [part for part in self if part is not None]


def _find_parts(context: "Context", request: CreateQp) -> _Parts:
    """Find what the type of QP needs; what it has no use for is not looked at."""
    if request.qp_type == table.XRC_RECV:
        return _Parts(None, None, None, None, context.find(Xrcd, request.xrcd))
    pd = context.find(Pd, request.pd)
    send_cq = context.find(Cq, request.send_cq)
    if request.qp_type in WITHOUT_RECEIVE_QUEUE:
        return _Parts(pd, send_cq, None, None, None)
    srq = context.find(Srq, request.srq) if request.srq else None
    if srq is not None and srq.is_xrc:
        refuse(VerbReason.NOT_FOR_THIS_TYPE, request.srq, request.qp_type)
    return _Parts(pd, send_cq, context.find(Cq, request.receive_cq), srq, None)


def _first_context(qp: Qp, request: CreateQp, parts: _Parts) -> QpContext:
    plan = qp.plan
    return QpContext(
        state=table.RESET,
        transport=qp_attributes.TRANSPORTS[qp.qp_type],
        flags=qp.flags(request) | (QPC_HAS_SRQ if parts.srq is not None else 0),
        local_qpn=qp.number,
        pd=parts.pd.pdn if parts.pd is not None else 0,
        uar=qp.context.uar,
        wqe_lkey=qp.lkey,
        send_offset=plan.send_offset,
        send_entries=plan.send_entries,
        send_stride=plan.send_stride,
        receive_entries=plan.receive_entries,
        receive_stride=plan.receive_stride,
        send_slot=qp.slots[0],
        receive_slot=qp.slots[1],
        send_cqn=parts.send_cq.number if parts.send_cq is not None else 0,
        receive_cqn=parts.receive_cq.number if parts.receive_cq is not None else 0,
        srqn=parts.srq.number if parts.srq is not None else 0,
        xrcd=parts.xrcd.number if parts.xrcd is not None else 0,
    )


def make_qp(driver: "HcaDriver", context: "Context", request: CreateQp, memory: QueueMemory) -> Qp:
    """Create a QP, in RESET, in any kind of memory; the HCA learns of it with RST2INIT."""
    check_request(request)
    plan = plan_queues(request, driver.limits)
    parts = _find_parts(context, request)
    pdn = parts.pd.pdn if parts.pd is not None else driver.pdn
    with context.holding(*parts.present):
        qp = Qp(context, memory, request, plan)
        qp.acquire(driver, 2, MemoryNeed(plan.length, plan.alignment, LOCAL_READ, pdn))
        notification = notification_of(driver)
        qp.latch = notification.make_latch(qp, OF_QP)
        notification.qps[qp.number] = qp.latch
        qp.base = qp.hca = _first_context(qp, request, parts)
        try:
            context.add(qp, *parts.present)
        except VerbRefused:
            qp.destroy(driver)
            raise
        return qp


def create_qp(
    driver: "HcaDriver", context: "Context", request: CreateQp, irp: "Irp | None"
) -> QpCreated:
    """Create a QP in the user's memory."""
    memory = UserMemory(request.buffer, request.buffer_length)
    return created(make_qp(driver, context, request, memory))


def created(qp: Qp) -> QpCreated:
    """Return what was granted, and where the rings lie."""
    plan = qp.plan
    return QpCreated(
        handle=qp.handle,
        qpn=qp.number,
        max_send_wr=plan.send_entries,
        max_recv_wr=plan.receive_entries,
        max_send_sge=plan.max_send_sge,
        max_recv_sge=plan.max_recv_sge,
        max_inline_data=plan.max_inline,
        send_offset=plan.send_offset,
        send_stride=plan.send_stride,
        receive_stride=plan.receive_stride,
        send_slot=qp.slots[0],
        receive_slot=qp.slots[1],
    )


# Transitions


def _check(driver: "HcaDriver", qp: Qp, request: ModifyQp) -> Step:
    step = check_step(qp.qp_type, qp.state, request)
    check_values(Values(request, driver.limits, step, qp.hca.port))
    if step.mask & table.AV and request.ah_is_global:
        gids = notification_of(driver).gids
        gids.require(driver, request.ah_port_num, request.ah_sgid_index)
    return step


def _perform(driver: "HcaDriver", qp: Qp, request: ModifyQp, step: Step) -> None:
    """Have the HCA make one transition, and follow it."""
    opcode = step.row.opcode
    if not opcode:
        return
    if step.new == table.RESET:
        qp.reset(driver)
        return
    after = qp_attributes.changed(qp.hca, request, step)
    bare = opcode in _WITHOUT_MAILBOX
    inbox = None if bare else qp_attributes.mailbox(after, step.mask)
    wanted = step.mask & table.SQD_NOTIFY and request.en_sqd_async_notify
    modifier = qp.number | (op.RTS2SQD_NOTIFY if wanted else 0)
    try:
        driver.channel.run(opcode, modifier=modifier, inbox=inbox)
    except VerbRefused as refusal:
        if refusal.unanswered:
            qp.unconfirmed = after
        raise
    qp.hca = after


def modify_qp(
    driver: "HcaDriver", context: "Context", request: ModifyQp, irp: "Irp | None"
) -> None:
    """Change attributes and state: all that is asked or nothing."""
    qp = context.find(Qp, request.handle)
    with context.locked(qp):
        if qp.doubtful:
            qp.fetch(driver)
        step = _check(driver, qp, request)
        try:
            _perform(driver, qp, request, step)
        except VerbRefused as refusal:
            qp.doubtful |= refusal.unanswered
            if not is_bad_state(refusal):
                raise
            known = qp.state
            qp.fetch(driver)
            if qp.state == known or request.mask & table.CUR_STATE:
                raise
            _perform(driver, qp, request, _check(driver, qp, request))


def query_qp(
    driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None"
) -> QpAttributes:
    """Return every attribute as it is now; a QP in RESET needs no command."""
    qp = context.find(Qp, request.handle)
    with context.locked(qp):
        # The access rights are those the user gave, not what is left without reads.
        live = qp.fetch(driver)._replace(access=qp.hca.access)
        plan = qp.plan
        return QpAttributes(
            **qp_attributes.answer(live),
            qp_type=qp.qp_type,
            sq_sig_all=int(qp.signal_all),
            max_send_wr=plan.send_entries,
            max_recv_wr=plan.receive_entries,
            max_send_sge=plan.max_send_sge,
            max_recv_sge=plan.max_recv_sge,
            max_inline_data=plan.max_inline,
        )


def destroy_qp(
    driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None"
) -> Destroyed:
    """Destroy a QP of no multicast group; tell how many of its events were delivered."""
    return Destroyed(0, context.destroy(Qp, request.handle).latch.async_events)


VERBS: Final = {
    codes.IOCTL_CREATE_QP: Verb(create_qp, CreateQp),
    codes.IOCTL_MODIFY_QP: Verb(modify_qp, ModifyQp),
    codes.IOCTL_QUERY_QP: Verb(query_qp, Object),
    codes.IOCTL_DESTROY_QP: Verb(destroy_qp, Object),
}
