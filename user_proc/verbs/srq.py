"""Shared receive queues.

Rules: any thread.
Spec: rdma-core, pyverbs/srq.pyx; ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3).
"""

import errno
from typing import Any, ClassVar, Final

from shared.verb_codes import (
    IOCTL_CREATE_SRQ,
    IOCTL_DESTROY_SRQ,
    IOCTL_MODIFY_SRQ,
    IOCTL_QUERY_SRQ,
)
from shared.verb_messages import CreateSrq, ModifySrq, Object, SrqAttributes, SrqCreated
from shared.wqe_layout import receive_stride, ring_entries
from user_proc.provider.receive_ring import SharedReceiveRing
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.device import Context
from user_proc.verbs.libibverbs_enums import ibv_srq_init_attr_mask
from user_proc.verbs.parent_domain import RESOURCE_SRQ
from user_proc.verbs.pd import PD
from user_proc.verbs.posting import post_receives
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.queue_memory import QueueMemory
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.srq_attributes import SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal
from user_proc.verbs.wr import RecvWR

__all__ = ["SRQ", "SrqAttr", "SrqInitAttr", "SrqInitAttrEx"]

_POST_TEXT: Final = "Failed to post receive to SRQ."
_U32: Final = 0xFFFF_FFFF
_TYPE: Final = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_TYPE)
_PD: Final = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_PD)
_XRCD: Final = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_XRCD)
_CQ: Final = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_CQ)
_KNOWN: Final = _TYPE | _PD | _XRCD | _CQ


class SRQ(VerbObject):
    """A shared receive queue: `SRQ(pd, SrqInitAttr)` or `SRQ(context, SrqInitAttrEx)`."""

    KIND: ClassVar[str] = "SRQ"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP",)
    DESTROY_TEXT: ClassVar[str] = "Failed to destroy SRQ"

    def __init__(self, creator: Any, attr: Any) -> None:
        self._resource = None
        if creator is None:
            require("creator", creator, PD)
        if isinstance(creator, Context):
            require("attr", attr, SrqInitAttrEx)
            super().__init__(creator.session())
            self.context = creator
        elif isinstance(creator, PD):
            require("attr", attr, SrqInitAttr)
            super().__init__(creator._session)
            self.context = creator.context
        else:
            raise PyverbsRDMAError("Srq needs either Context or PD for creation")
        self.events: Final = ObjectEvents()
        try:
            request, parents = self._asked(creator, attr)
            made = self._create(request, parents)
        except VerbRefusal as refusal:
            raise PyverbsRDMAError(
                f"Failed to create SRQ (errno is {refusal.errno})",
                refusal.errno,
                reason=refusal.reason,
            ) from refusal
        attr.grant(made.max_wr, made.max_sge)
        for parent in parents:
            parent.adopt(self)
        self.logger.debug("SRQ Created")

    def _asked(
        self, creator: Context | PD, attr: SrqInitAttr | SrqInitAttrEx
    ) -> tuple[CreateSrq, list[Parent]]:
        """Give the request without its memory, and what the queue will be a child of."""
        if isinstance(attr, SrqInitAttrEx):
            return self._extended(attr)
        assert isinstance(creator, PD)
        return CreateSrq(creator.handle, 0, attr.max_wr, attr.max_sge, 0, 0, 0, 0), [creator]

    def _extended(self, attr: SrqInitAttrEx) -> tuple[CreateSrq, list[Parent]]:
        """Turn extended attributes into a request, as far as their mask says they count."""
        mask = attr.comp_mask
        if mask & ~_KNOWN:
            raise VerbRefusal(errno.EOPNOTSUPP, "the device has no tag matching")
        pd = attr.pd if mask & _PD else None
        xrcd = attr.xrcd if mask & _XRCD else None
        cq = attr.cq if mask & _CQ else None
        parents: list[Parent] = [one for one in (pd, xrcd, cq) if one is not None]
        kind = attr.srq_type & _U32 if mask & _TYPE else 0

        def handle(part: VerbObject | None) -> int:
            return 0 if part is None else part.handle_for(self._session)

        request = CreateSrq(
            handle(pd),
            kind,
            attr.max_wr,
            attr.max_sge,
            handle(xrcd),
            handle(cq),
            0,
            0,
        )
        return request, parents

    def _create(self, request: CreateSrq, parents: list[Parent]) -> SrqCreated:
        session = self._session
        stride = receive_stride(min(request.max_sge, 1 << 16))
        length = ring_entries(request.max_wr) * stride
        allocator = None
        for domain in parents:
            if isinstance(domain, PD):
                allocator = domain.queue_allocator(RESOURCE_SRQ)
        memory = QueueMemory(allocator or session.process, length)
        asked = CreateSrq(
            request.pd,
            request.srq_type,
            request.max_wr,
            request.max_sge,
            request.xrcd,
            request.cq,
            memory.address,
            memory.length,
        )
        try:
            made = session.call(SrqCreated, IOCTL_CREATE_SRQ, asked)
        except VerbRefusal:
            memory.release()
            raise
        ring = SharedReceiveRing(session.doorbells, made.slot, memory.view(), stride, made.max_wr)
        session.queues.shared[made.srqn] = ring
        self.ring = ring
        self._max_sge = made.max_sge
        self._number = made.srqn
        events, handle, queues = self.context.events, made.handle, session.queues
        events.add(handle, self.events)

        def release() -> None:
            events.forget(handle)
            queues.shared.pop(made.srqn, None)
            with ring.lock:
                ring.release()
            memory.release()

        self._resource = Resource(session, IOCTL_DESTROY_SRQ, handle, release, parents)
        return made

    @property
    def srq(self) -> int:
        """The kernel's handle: there is no C structure with an address."""
        return self.handle

    def query(self) -> SrqAttr:
        """Query size and limit; the limit is 0 after its event."""
        try:
            answer = self._session.call(SrqAttributes, IOCTL_QUERY_SRQ, Object(self.handle))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to query SRQ") from refusal
        return SrqAttr(answer.max_wr, answer.max_sge, answer.srq_limit)

    def modify(self, attr: SrqAttr, comp_mask: IntLike) -> None:
        """Arm the limit event (IBV_SRQ_LIMIT); this device does not resize."""
        wanted = require("attr", attr, SrqAttr)
        request = ModifySrq(self.handle, to_int(comp_mask) & _U32, wanted.max_wr, wanted.srq_limit)
        try:
            self._session.do(IOCTL_MODIFY_SRQ, request)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to modify SRQ") from refusal

    def get_srq_num(self) -> int:
        """Give the number a sender puts into its XRC requests."""
        self.handle  # noqa: B018 - a closed queue has none
        return self._number

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a chain of receives; on an error `bad_wr` becomes the one that failed."""
        first, bad = require("wr", wr, RecvWR), optional("bad_wr", bad_wr, RecvWR)
        self.handle  # noqa: B018
        if self._session.trouble:
            raise self._session.trouble_error(_POST_TEXT)
        post_receives(self.ring, first, bad, self._max_sge, _POST_TEXT)

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        self.context.events.retire(handle, self.events, answer)
