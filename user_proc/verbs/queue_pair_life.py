"""The life of a queue pair: creation, states, end.

The state that is kept here changes by a successful modify and by a query: the device may have
moved the queue pair meanwhile.

Rules: any thread; each call is a verb.
Spec: ibv_create_qp(3), ibv_modify_qp(3), ibv_query_qp(3).
"""

from typing import Any, ClassVar, Final

from shared.verb_codes import (
    IOCTL_CREATE_QP,
    IOCTL_DESTROY_QP,
    IOCTL_MODIFY_QP,
    IOCTL_QUERY_QP,
)
from shared.verb_messages import CreateQp, Object, QpAttributes, QpCreated
from shared.verbs_enums import ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type
from user_proc.verbs.argument_types import optional, require, require_some
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.device import Context
from user_proc.verbs.parent_domain import RESOURCE_QP
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsError
from user_proc.verbs.qp_attributes import QPAttr
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.qp_creation import request_of
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.qp_init_attr_ex import QPInitAttrEx
from user_proc.verbs.qp_messages import INIT, LEAST_MASKS, RTR, RTS, modify_request, queried
from user_proc.verbs.qp_rings import QpRings, memory_for
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.utils import qp_state_to_str, qp_type_to_str
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
RESET: Final = int(ibv_qp_state.IBV_QPS_RESET)
_RIGHT_TO_RTS: Final = (int(ibv_qp_type.IBV_QPT_UD), int(ibv_qp_type.IBV_QPT_RAW_PACKET))

_TO_TEXTS: Final = {INIT: "init", RTR: "RTR", RTS: "RTS"}


class QueuePairLife(VerbObject):
    """A queue pair: `QP(pd, QPInitAttr)` or `QP(context, QPInitAttrEx)`.

    With `qp_attr` it is brought to INIT, UD to RTS. The init attributes take what was granted.
    """

    KIND: ClassVar[str] = "QP"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("MW",)
    DESTROY_TEXT: ClassVar[str] = "Failed to destroy QP"

    def __init__(
        self,
        creator: Any,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        self._resource = None
        require_some("creator", creator)
        first = optional("qp_attr", qp_attr, QPAttr)
        if isinstance(creator, Context):
            given: QPInitAttr | QPInitAttrEx = require("init_attr", init_attr, QPInitAttrEx)
            super().__init__(creator.session())
            self.context, text = creator, "Failed to create extended QP"
        else:
            domain = require("creator", creator, PD)
            given = require("init_attr", init_attr, QPInitAttr)
            super().__init__(domain._session)
            self.context, text = domain.context, "Failed to create QP"
        self.events: Final = ObjectEvents()
        try:
            request, parents = request_of(self._session, creator, given)
            made = self._create(request, given, parents)
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        given.cap = QPCap(
            made.max_send_wr,
            made.max_recv_wr,
            made.max_send_sge,
            made.max_recv_sge,
            made.max_inline_data,
        )
        for parent in parents:
            parent.adopt(self)
        self.logger.debug("Created QP")
        if first is not None:
            self._bring_up(first)

    def _create(
        self, request: CreateQp, attr: QPInitAttr | QPInitAttrEx, parents: list[Parent]
    ) -> QpCreated:
        session = self._session
        allocator = None
        for domain in parents:
            if isinstance(domain, PD):
                allocator = domain.queue_allocator(RESOURCE_QP)
        memory, asked = memory_for(allocator or session.process, request)
        try:
            made = session.call(QpCreated, IOCTL_CREATE_QP, asked)
        except VerbRefusal:
            memory.release()
            raise
        cqs = [cq.ring for cq in (attr.send_cq, attr.recv_cq) if cq is not None]
        rings = QpRings(session.doorbells, session.queues, made, memory, cqs)
        self._rings = rings
        self._qpn = made.qpn
        self._made = made
        self._qp_type = attr.qp_type
        self._send_limits = attr.qp_type, made.max_send_sge, made.max_inline_data
        self._state = RESET
        self._has_srq = request.srq != 0
        events, handle = self.context.events, made.handle
        events.add(handle, self.events)

        def release() -> None:
            events.forget(handle)
            rings.release()

        self._resource = Resource(session, IOCTL_DESTROY_QP, handle, release, parents)
        return made

    def _bring_up(self, attr: QPAttr) -> None:
        try:
            if self._qp_type in _RIGHT_TO_RTS:
                self.to_rts(attr)
            else:
                self.to_init(attr)
        except PyverbsError:
            self.close()
            raise

    # What it is

    @property
    def qp_type(self) -> int:
        """An ibv_qp_type."""
        self.handle  # noqa: B018 - a closed queue pair has none
        return self._qp_type

    @property
    def qp_state(self) -> int:
        """The state after the last modify or query."""
        self.handle  # noqa: B018
        return self._state

    @property
    def qp_num(self) -> int:
        """Its number."""
        self.handle  # noqa: B018
        return self._qpn

    @property
    def qp(self) -> int:
        """The kernel's handle: there is no C structure with an address."""
        return self.handle

    # States

    def to_init(self, qp_attr: QPAttr) -> None:
        """Go from RESET to INIT with the least attributes."""
        self._to(INIT, qp_attr)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """Go to RTR, through INIT unless it is there."""
        if self.qp_state != INIT:
            self.to_init(qp_attr)
        self._to(RTR, qp_attr)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Go to RTS, through RTR, and before that INIT, unless it is there."""
        if self.qp_state != RTR:
            self.to_rtr(qp_attr)
        self._to(RTS, qp_attr)

    def _to(self, target: int, attr: QPAttr) -> None:
        wanted = require("qp_attr", attr, QPAttr)
        wanted.qp_state = target
        bits = LEAST_MASKS.get(self.qp_type, {}).get(target, _STATE)
        self._modify(wanted, bits, f"Failed to modify QP state to {_TO_TEXTS[target]}")

    def modify(self, qp_attr: QPAttr, comp_mask: IntLike) -> None:
        """Change the attributes the mask names; the state only if it has IBV_QP_STATE."""
        attr = require("qp_attr", qp_attr, QPAttr)
        self._modify(attr, to_int(comp_mask), "Failed to modify QP")

    def _modify(self, attr: QPAttr, bits: int, text: str) -> None:
        request = modify_request(self.handle, attr, bits)
        try:
            self._session.do(IOCTL_MODIFY_QP, request)
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        if bits & _STATE:
            self._state = attr.qp_state
            if attr.qp_state == RESET:
                self._rings.reset()

    def query(self, attr_mask: IntLike) -> tuple[QPAttr, QPInitAttr]:
        """Query every attribute as it is now, and what the queue pair was created with."""
        to_int(attr_mask)
        try:
            answer = self._session.call(QpAttributes, IOCTL_QUERY_QP, Object(self.handle))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to query QP") from refusal
        self._state = answer.qp_state
        return queried(answer)

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        self.context.events.retire(handle, self.events, answer)

    def _shown(self) -> str:
        inner = lines(
            22,
            [("number", self.qp_num), ("state", qp_state_to_str(self.qp_state))],
            indent=2,
        )
        return lines(22, [("QP type", qp_type_to_str(self.qp_type))]) + inner
