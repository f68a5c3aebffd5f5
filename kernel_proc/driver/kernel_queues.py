"""The queues of one kernel client: posting, polling and arming by direct call.

A queue is found by its handle. Once it is being destroyed its handle is invalid, though the HCA
may complete what was posted before.

Rules: <= DISPATCH_LEVEL, else bug check 0x0A; nothing waits, wakes anybody or lowers the IRQL, so
that a call is never interrupted and needs no lock.
Spec: WinOF inc/iba/ib_ci.h (post_send, post_recv, post_srq_recv, poll_cq, peek_cq,
enable_cq_notify); docs/kernel-verbs.md.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.work_requests import (
    PollAnswer,
    PostAnswer,
    ReceiveRequest,
    SendRequest,
)
from kernel_proc.driver.ah_verbs import AddressHandle
from kernel_proc.driver.kernel_cq_ring import KernelCqRing
from kernel_proc.driver.kernel_rings import Bell, OrderedRing, Pieces, SharedRing, WorkRing
from kernel_proc.driver.kernel_work import SendLimits, judge_send, pack_receive, pack_send
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi.qp_transitions import INIT, RESET, RTR, UD
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.doorbell_layout import RING_RECEIVE, RING_SEND

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.cq_verbs import Cq
    from kernel_proc.driver.qp_resource import Qp
    from kernel_proc.driver.queue_resource import KernelMemory, QueueResource
    from kernel_proc.driver.srq_verbs import Srq

_BEFORE_SENDING: Final = (RESET, INIT, RTR)
_NOTHING: Final = PollAnswer(IbStatus.NOT_FOUND, ())
_SUCCESS: Final = IbStatus.SUCCESS


class _Receives:
    """A receive queue as `post_recv` sees it."""

    __slots__ = ("max_segments", "owner", "ring")

    def __init__(self, owner: "QueueResource", ring: WorkRing, max_segments: int) -> None:
        self.owner = owner
        self.ring = ring
        self.max_segments = max_segments


class KernelQp:
    """The rings of a QP, either of which it may not have, and the CQs where they complete."""

    __slots__ = ("cqs", "limits", "qp", "receives", "send")

    def __init__(self, bell: Bell, qp: "Qp", memory: Pieces) -> None:
        plan = qp.plan
        self.qp = qp
        self.cqs: list[KernelCqRing] = []
        self.limits = SendLimits(qp.qp_type, plan.max_send_sge, plan.max_inline)
        self.send: OrderedRing | None = None
        self.receives: _Receives | None = None
        if plan.send_entries:
            place = plan.send_offset, plan.send_stride, plan.send_entries
            self.send = OrderedRing(bell, RING_SEND, qp.slots[0], memory, place)
        if plan.receive_entries:
            place = 0, plan.receive_stride, plan.receive_entries
            ring = OrderedRing(bell, RING_RECEIVE, qp.slots[1], memory, place)
            self.receives = _Receives(qp, ring, plan.max_recv_sge)

    def reset(self) -> None:
        """Be empty: the QP is in RESET, and nothing of it completes any more."""
        for cq in self.cqs:
            cq.sweep(self.qp.number)
        if self.send is not None:
            self.send.reset()
        if self.receives is not None:
            ring = self.receives.ring
            assert isinstance(ring, OrderedRing)
            ring.reset()


class KernelQueues:
    """The rings of one kernel client, by handle, and by number for what completes."""

    def __init__(self, context: "Context", bell: Bell) -> None:
        self._context = context
        self._processor = context.driver.processor
        self._bell = bell
        self._qps: dict[int, KernelQp] = {}
        self._cqs: dict[int, KernelCqRing] = {}
        self._srqs: dict[int, _Receives] = {}
        self._by_number: dict[int, KernelQp] = {}
        self._shared: dict[int, SharedRing] = {}

    # Control verbs tell what there is

    def add_cq(self, cq: "Cq", memory: "KernelMemory") -> None:
        """Have a new CQ."""
        self._cqs[cq.handle] = KernelCqRing(self._bell, self._complete, cq, memory)

    def cq_ring(self, handle: int) -> KernelCqRing | None:
        """Return the ring of a CQ that is not being destroyed."""
        ring = self._cqs.get(handle)
        return None if ring is None or ring.cq.dying else ring

    def add_srq(self, srq: "Srq", memory: "KernelMemory") -> None:
        """Have a new shared receive queue."""
        assert memory.buffer is not None
        pieces = Pieces(memory.buffer.views())
        ring = SharedRing(self._bell, srq.slots[0], pieces, srq.stride, srq.entries)
        self._srqs[srq.handle] = _Receives(srq, ring, srq.max_sge)
        self._shared[srq.number] = ring

    def add_qp(self, qp: "Qp", memory: "KernelMemory", cqs: Sequence[int]) -> None:
        """Have a new QP, that completes in the CQs of these handles."""
        pieces = Pieces(memory.buffer.views() if memory.buffer is not None else ())
        rings = KernelQp(self._bell, qp, pieces)
        rings.cqs = [self._cqs[handle] for handle in dict.fromkeys(cqs) if handle in self._cqs]
        self._qps[qp.handle] = self._by_number[qp.number] = rings

    def was_reset(self, handle: int) -> None:
        """Empty the rings of a QP that is in RESET now."""
        rings = self._qps.get(handle)
        if rings is not None:
            rings.reset()

    def forget(self, handle: int) -> None:
        """Know a queue no more that was destroyed; what is left of a QP is passed over."""
        self._cqs.pop(handle, None)
        shared = self._srqs.pop(handle, None)
        if shared is not None:
            self._shared.pop(shared.owner.number, None)
        rings = self._qps.pop(handle, None)
        if rings is not None:
            self._by_number.pop(rings.qp.number, None)
            for cq in rings.cqs:
                cq.sweep(rings.qp.number)

    def close(self) -> None:
        """Know no queue any more: the client's file is closed, and every handle is invalid."""
        for known in (self._qps, self._cqs, self._srqs, self._by_number, self._shared):
            known.clear()
        self._bell.release()

    # Posting

    def post_send(self, handle: int, requests: Sequence[SendRequest]) -> PostAnswer:
        """Post to a QP's send queue; the first request that cannot be taken ends it."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("post_send")
        rings = self._qps.get(handle)
        if rings is None or rings.qp.dying or rings.send is None:
            return PostAnswer(IbStatus.INVALID_QP_HANDLE, 0)
        if rings.qp.hca.state in _BEFORE_SENDING:
            return PostAnswer(IbStatus.INVALID_QP_STATE, 0)
        ring, limits = rings.send, rings.limits
        status, posted = _SUCCESS, 0
        for request in requests:
            handled = request.ah
            if request.packed_for is not limits or handled:
                status = self._pack_send(limits, request)
                if status:
                    break
            if ring.is_full:
                status = IbStatus.INSUFFICIENT_RESOURCES
                break
            ring.put(request.wr_id, request.packed)
            posted += 1
        if posted:
            ring.publish()
        return PostAnswer(status, posted)

    def _pack_send(self, limits: SendLimits, request: SendRequest) -> IbStatus:
        """Judge a request and keep its entry; of a datagram the address handle must be there."""
        handle: AddressHandle | None = None
        if limits.qp_type == UD:
            try:
                handle = self._context.find(AddressHandle, request.ah)
            except VerbRefused:
                return IbStatus.INVALID_AV_HANDLE
        if request.packed_for is limits:
            return _SUCCESS
        status = judge_send(limits, request)
        if not status:
            try:
                request.packed = pack_send(request, handle)
            except struct.error:
                return IbStatus.INVALID_PARAMETER
            request.packed_for = limits
        return status

    def post_recv(self, handle: int, requests: Sequence[ReceiveRequest]) -> PostAnswer:
        """Post to a QP's receive queue; the first request that cannot be taken ends it."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("post_recv")
        rings = self._qps.get(handle)
        if rings is None or rings.qp.dying or rings.receives is None:
            return PostAnswer(IbStatus.INVALID_QP_HANDLE, 0)
        if rings.qp.hca.state == RESET:
            return PostAnswer(IbStatus.INVALID_QP_STATE, 0)
        return _post_receives(rings.receives, requests)

    def post_srq_recv(self, handle: int, requests: Sequence[ReceiveRequest]) -> PostAnswer:
        """Post to a shared receive queue; the first request that cannot be taken ends it."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("post_srq_recv")
        queue = self._srqs.get(handle)
        if queue is None or queue.owner.dying:
            return PostAnswer(IbStatus.INVALID_SRQ_HANDLE, 0)
        return _post_receives(queue, requests)

    # Completions

    def poll_cq(self, handle: int, most: int) -> PollAnswer:
        """Take at most so many completions of a CQ."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("poll_cq")
        ring = self.cq_ring(handle)
        if ring is None:
            return PollAnswer(IbStatus.INVALID_CQ_HANDLE, ())
        found = ring.poll(most)
        return PollAnswer(_SUCCESS, found) if found else _NOTHING

    def peek_cq(self, handle: int) -> tuple[IbStatus, int]:
        """Tell how many completions could be polled of a CQ."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("peek_cq")
        ring = self.cq_ring(handle)
        return (IbStatus.INVALID_CQ_HANDLE, 0) if ring is None else (_SUCCESS, ring.count())

    def req_notify_cq(self, handle: int, solicited_only: bool) -> IbStatus:
        """Arm a CQ for the next completion, or the next solicited one."""
        if self._processor.irql > DISPATCH_LEVEL:
            self._too_high("req_notify_cq")
        ring = self.cq_ring(handle)
        if ring is None:
            return IbStatus.INVALID_CQ_HANDLE
        ring.arm(solicited_only)
        return _SUCCESS

    def _complete(self, qpn: int, position: int, is_send: int, srqn: int) -> int | None:
        """Free what a completion names; return its wr_id, None if it names nothing of ours."""
        if srqn and not is_send:
            shared = self._shared.get(srqn)
            return None if shared is None else shared.complete(position)
        rings = self._by_number.get(qpn)
        if rings is None:
            return None
        if is_send:
            return None if rings.send is None else rings.send.complete(position)
        return None if rings.receives is None else rings.receives.ring.complete(position)

    def _too_high(self, routine: str) -> None:
        self._processor.irql_violation(DISPATCH_LEVEL, routine)


def _post_receives(queue: _Receives, requests: Sequence[ReceiveRequest]) -> PostAnswer:
    ring = queue.ring
    status, posted = _SUCCESS, 0
    for request in requests:
        if request.packed_for is not queue:
            if len(request.segments) > queue.max_segments:
                status = IbStatus.INVALID_MAX_SGE
                break
            try:
                request.packed = pack_receive(request)
            except struct.error:
                status = IbStatus.INVALID_PARAMETER
                break
            request.packed_for = queue
        if ring.is_full:
            status = IbStatus.INSUFFICIENT_RESOURCES
            break
        ring.put(request.wr_id, request.packed)
        posted += 1
    if posted:
        ring.publish()
    return PostAnswer(status, posted)
