"""The verbs for kernel clients: the handlers of users, with kernel memory and callbacks.

Rules: the rules of the table (channel_interface/verbs_table.py).
Spec: docs/kernel-verbs.md; "[RFC v2] Kernel Async Verbs".
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.verbs_table import (
    IOCTL_INTERNAL_QUERY_VERBS,
    CompletionRoutine,
    EventRoutine,
    VerbAnswer,
    VerbsTable,
)
from kernel_proc.driver import cq_verbs, dispatch, qp_verbs, srq_verbs
from kernel_proc.driver.event_latch import KIND_OF_REQUEST
from kernel_proc.driver.ib_statuses import status_of
from kernel_proc.driver.kernel_buffers import KernelMr, MovedMemory
from kernel_proc.driver.kernel_doorbells import DoorbellUse
from kernel_proc.driver.kernel_queues import KernelQueues
from kernel_proc.driver.kernel_rings import Bell
from kernel_proc.driver.mr_verbs import Mr, check_access
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.queue_resource import KernelMemory, MemoryNeed, QueueResource
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi.qp_transitions import RESET, STATE
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.work_item import WorkItem
from shared import verb_codes as codes
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_SUCCESS
from shared.verb_messages import CreateCq, CreateQp, CreateSrq, ResizeCq
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.context import Context
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.memory.mdl import Mdl

_DESTROYERS: Final = (codes.IOCTL_DESTROY_CQ, codes.IOCTL_DESTROY_SRQ, codes.IOCTL_DESTROY_QP)

#: Those that work on kernel memory as they are.
_PLAIN_VERBS: Final = {
    code: verb
    for code, verb in dispatch.VERBS.items()
    if code
    not in (
        codes.IOCTL_CREATE_CQ,
        codes.IOCTL_RESIZE_CQ,
        codes.IOCTL_CREATE_SRQ,
        codes.IOCTL_CREATE_QP,
        codes.IOCTL_REG_MR,
        codes.IOCTL_REREG_MR,
        *KIND_OF_REQUEST,
    )
    # Contexts are shared by descriptors of processes, which the kernel has none of.
    and not codes.VERB_NAMES.get(code, "").startswith(("export_", "import_"))
}


class KernelClient:
    """One kernel client: its context, its queues, and how it is called back."""

    def __init__(self, context: "Context") -> None:
        self._context = context
        self._driver = context.driver
        self._events = notification_of(context.driver).events_of(context)
        self._use = DoorbellUse(context)
        context.add(self._use)
        self._bell = Bell(self._use.doorbells.view, context.driver.link.poke)
        self._queues = KernelQueues(context, self._bell)
        self._use.on_end = self._queues.close
        self._item = WorkItem(context.driver.processor, self._tell)
        self._routine: EventRoutine | None = None

    def table(self) -> VerbsTable:
        """Return what the client is given."""
        queues = self._queues
        return VerbsTable(
            call=self.call,
            register_memory=self.register_memory,
            register_mdl=self.register_mdl,
            set_event_routine=self.set_event_routine,
            post_send=queues.post_send,
            post_recv=queues.post_recv,
            post_srq_recv=queues.post_srq_recv,
            poll_cq=queues.poll_cq,
            peek_cq=queues.peek_cq,
            req_notify_cq=queues.req_notify_cq,
            doorbells=self._use.doorbells.view,
            poke=self._driver.link.poke,
        )

    # Verbs

    def call(
        self, code: int, request: Any = None, on_completion: CompletionRoutine | None = None
    ) -> VerbAnswer:
        """Carry out a verb."""
        return self._answer(lambda: self._carry_out(code, request, on_completion))

    def register_memory(self, pd: int, length: int, access: int) -> VerbAnswer:
        """Make memory and register it in a protection domain."""
        return self._answer(lambda: self._register(pd, length, access))

    def register_mdl(self, pd: int, mdl: "Mdl", access: int) -> VerbAnswer:
        """Register what an MDL describes in a protection domain."""
        return self._answer(lambda: self._register_mdl(pd, mdl, access))

    def _answer(self, carry_out: Callable[[], VerbAnswer]) -> VerbAnswer:
        driver = self._driver
        if driver.processor.irql > APC_LEVEL:
            return VerbAnswer(errno.EAGAIN, VerbReason.WOULD_WAIT, status=IbStatus.INVALID_STATE)
        thread = driver.processor.current_thread
        assert thread is not None, "a verb outside any thread"
        try:
            self._context.require_alive()
            driver.verbs += 1
            outer = driver.channel.verb_of.get(thread)
            driver.channel.verb_of[thread] = driver.verbs
            try:
                return carry_out()
            finally:
                del driver.channel.verb_of[thread]
                if outer is not None:
                    driver.channel.verb_of[thread] = outer
        except VerbRefused as refusal:
            return VerbAnswer(
                refusal.errno,
                refusal.reason,
                refusal.object,
                refusal.detail,
                status=status_of(refusal.errno, refusal.reason),
            )

    def _carry_out(
        self, code: int, request: Any, on_completion: CompletionRoutine | None
    ) -> VerbAnswer:
        if code == codes.IOCTL_RESIZE_CQ and isinstance(request, ResizeCq):
            return self._resize(request)
        make = self._makers.get(code)
        if make is not None:
            return make(self, request, on_completion)
        verb = _PLAIN_VERBS.get(code)
        if verb is None:
            raise VerbRefused(errno.EINVAL, VerbReason.MALFORMED)
        _require_type(request, verb.request)
        irp: Any = None  # which no verb but notification looks at
        reply = verb.handler(self._driver, self._context, request, irp)
        if code in _DESTROYERS:
            self._queues.forget(request.handle)
        elif code == codes.IOCTL_MODIFY_QP and request.mask & STATE and request.qp_state == RESET:
            self._queues.was_reset(request.handle)
        return VerbAnswer(reply=reply)

    def _make_cq(self, request: Any, on_completion: CompletionRoutine | None) -> VerbAnswer:
        _require_type(request, CreateCq)
        memory = KernelMemory()
        cq = cq_verbs.make_cq(self._driver, self._context, request, memory, on_completion)
        self._queues.add_cq(cq, memory)
        return self._made(cq, cq_verbs.created(cq), memory)

    def _make_srq(self, request: Any, on_completion: CompletionRoutine | None) -> VerbAnswer:
        _require_type(request, CreateSrq)
        memory = KernelMemory()
        srq = srq_verbs.make_srq(self._driver, self._context, request, memory)
        self._queues.add_srq(srq, memory)
        return self._made(srq, srq_verbs.created(srq), memory)

    def _make_qp(self, request: Any, on_completion: CompletionRoutine | None) -> VerbAnswer:
        _require_type(request, CreateQp)
        memory = KernelMemory()
        qp = qp_verbs.make_qp(self._driver, self._context, request, memory)
        self._queues.add_qp(qp, memory, (request.send_cq, request.receive_cq))
        return self._made(qp, qp_verbs.created(qp), memory)

    def _made(self, queue: QueueResource, reply: Any, memory: KernelMemory) -> VerbAnswer:
        queue.hold_parents((*queue.parents, self._use))
        return VerbAnswer(reply=reply, memory=_pieces(memory.buffer))

    def _resize(self, request: ResizeCq) -> VerbAnswer:
        ring = self._queues.cq_ring(request.handle)
        if ring is None:
            raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_OBJECT, request.handle)
        memory = MovedMemory(ring, request.cqe)
        try:
            cq = cq_verbs.change_size(
                self._driver, self._context, request.handle, request.cqe, memory
            )
        finally:
            ring.settle()
        return VerbAnswer(reply=cq_verbs.created(cq), memory=_pieces(memory.buffer))

    def _register(self, pd_handle: int, length: int, access: int) -> VerbAnswer:
        check_access(access)
        if not length:
            raise VerbRefused(errno.EINVAL, VerbReason.LENGTH_ZERO)
        context, driver = self._context, self._driver
        pd = context.find(Pd, pd_handle)
        context.require_room()
        with context.holding(pd):
            memory = KernelMemory()
            region = memory.register(driver, context, MemoryNeed(length, 1, access, pd.pdn))
            mr = KernelMr(context, region, 0)
            assert memory.buffer is not None
            mr.buffer = memory.buffer
            try:
                context.add(mr, pd)
            except VerbRefused:
                mr.destroy(driver)
                raise
        return VerbAnswer(reply=mr.registered(), memory=_pieces(memory.buffer))

    def _register_mdl(self, pd_handle: int, mdl: "Mdl", access: int) -> VerbAnswer:
        check_access(access)
        context, driver = self._context, self._driver
        pd = context.find(Pd, pd_handle)
        context.require_room()
        with context.holding(pd):
            region = driver.regions.register_mdl(mdl, pd.pdn, access)
            mr = Mr(context, region, mdl.virtual_address)
            context.add(mr, pd)
        return VerbAnswer(reply=mr.registered())

    _makers: Final = {
        codes.IOCTL_CREATE_CQ: _make_cq,
        codes.IOCTL_CREATE_SRQ: _make_srq,
        codes.IOCTL_CREATE_QP: _make_qp,
    }

    # Events

    def set_event_routine(self, routine: EventRoutine, *, at_dispatch_level: bool = False) -> None:
        """Have asynchronous events told from now on, those that wait already too."""
        self._routine = routine
        tell = self._tell_at_once if at_dispatch_level else self._item.try_insert
        self._events.asynchronous = tell
        tell()

    def _tell(self, item: WorkItem, context: Any) -> None:
        if self._routine is not None:
            notification_of(self._driver).tell(self._events, self._routine)

    def _tell_at_once(self) -> None:
        """Tell at DISPATCH_LEVEL: no thread runs before the routine has returned."""
        processor = self._driver.processor
        old = processor.raise_irql(DISPATCH_LEVEL)
        self._tell(self._item, None)
        processor.lower_irql(old)


def _require_type(request: Any, kind: type[Any] | None) -> None:
    if request is not None if kind is None else not isinstance(request, kind):
        raise VerbRefused(errno.EINVAL, VerbReason.MALFORMED)


def _pieces(buffer: "QueueBuffer | None") -> tuple[memoryview, ...]:
    return () if buffer is None else tuple(buffer.views())


def internal_device_control(device: "DeviceObject", irp: "Irp") -> int:
    """Hand the table to a kernel client; every other request is a user's by another door."""
    location = irp.stack[irp.current_location]
    if location.io_control_code != IOCTL_INTERNAL_QUERY_VERBS:
        return dispatch.device_control(device, irp)
    assert location.file_object is not None
    status = STATUS_SUCCESS
    try:
        irp.user_buffer.append(KernelClient(location.file_object.fs_context).table())
    except VerbRefused:
        status = STATUS_INSUFFICIENT_RESOURCES
    irp.status = status
    irp.information = 0
    complete_request(irp)
    return status
