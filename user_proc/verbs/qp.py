"""Queue pairs.

Creation and changes of state are verbs; posting is a store into a ring and a doorbell. The state
that is kept here changes by a successful modify and by a query: when the device has moved the
queue pair meanwhile, requests are taken all the same and come back flushed.

Rules: any thread.
Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3).
"""

import errno
from typing import Any, ClassVar, Final

from shared.verb_codes import (
    IOCTL_ATTACH_MCAST,
    IOCTL_CREATE_QP,
    IOCTL_DESTROY_QP,
    IOCTL_DETACH_MCAST,
    IOCTL_MODIFY_QP,
    IOCTL_QUERY_QP,
)
from shared.verb_messages import CreateQp, Multicast, Object, QpAttributes, QpCreated
from shared.verbs_enums import ibv_qp_attr_mask, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type
from user_proc.verbs.address_attributes import GID
from user_proc.verbs.argument_types import optional, require, require_some
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int, to_u16
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.posting import OPCODES, post_receives, post_sends, require_send
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp_attributes import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.qp_messages import INIT, LEAST_MASKS, RTR, RTS, modify_request, queried
from user_proc.verbs.qp_rings import QpRings, memory_for
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.utils import qp_state_to_str, qp_type_to_str
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal
from user_proc.verbs.wr import RecvWR, SendWR

__all__ = ["QP", "QPAttr", "QPCap", "QPInitAttr", "QPInitAttrEx"]

_U32: Final = 0xFFFF_FFFF
_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_RESET: Final = int(ibv_qp_state.IBV_QPS_RESET)
_SENDING: Final = frozenset(
    int(state)
    for state in (
        ibv_qp_state.IBV_QPS_RTS,
        ibv_qp_state.IBV_QPS_SQD,
        ibv_qp_state.IBV_QPS_SQE,
        ibv_qp_state.IBV_QPS_ERR,
    )
)
_RIGHT_TO_RTS: Final = (int(ibv_qp_type.IBV_QPT_UD), int(ibv_qp_type.IBV_QPT_RAW_PACKET))

_PD: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD)
_XRCD: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD)
_CREATE_FLAGS: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS)
_SEND_OPS: Final = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
_KNOWN: Final = _PD | _XRCD | _CREATE_FLAGS | _SEND_OPS

_TO_TEXTS: Final = {INIT: "init", RTR: "RTR", RTS: "RTS"}


class QP(VerbObject):
    """A queue pair: `QP(pd, QPInitAttr)` or `QP(context, QPInitAttrEx)`.

    With `qp_attr` it is brought to INIT, UD to RTS. The init attributes take what was granted.
    """

    KIND: ClassVar[str] = "QP"
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
            request, parents = self._request(creator, given)
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

    @staticmethod
    def _request(creator: Any, attr: QPInitAttr | QPInitAttrEx) -> tuple[CreateQp, list[Parent]]:
        """Turn init attributes into a request, as far as they count."""
        pd, xrcd, flags, operations = creator, None, 0, 0
        if isinstance(attr, QPInitAttrEx):
            if attr.comp_mask & ~_KNOWN:
                raise VerbRefusal(
                    errno.EOPNOTSUPP,
                    "the device has neither segmentation offload nor receive-side scaling",
                )
            pd = attr.pd if attr.comp_mask & _PD else None
            xrcd = attr.xrcd if attr.comp_mask & _XRCD else None
            flags = attr.create_flags if attr.comp_mask & _CREATE_FLAGS else 0
            operations = attr.send_ops_flags if attr.comp_mask & _SEND_OPS else 0
        parts = (pd, attr.send_cq, attr.recv_cq, attr.srq, xrcd)
        handles = [0 if part is None else part._handle for part in parts]
        request = CreateQp(
            attr.qp_type & _U32,
            handles[0],
            handles[1],
            handles[2],
            handles[3],
            handles[4],
            attr.max_send_wr,
            attr.max_recv_wr,
            attr.max_send_sge,
            attr.max_recv_sge,
            attr.max_inline_data,
            int(attr.sq_sig_all != 0),
            flags,
            operations,
            0,
            0,
        )
        parents: list[Parent] = [part for part in parts if part is not None]
        if isinstance(creator, Context):
            parents.append(creator)
        return request, parents

    def _create(
        self, request: CreateQp, attr: QPInitAttr | QPInitAttrEx, parents: list[Parent]
    ) -> QpCreated:
        session = self._session
        memory, asked = memory_for(session.process, request)
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
        self._state = _RESET
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
        self._handle  # noqa: B018 - a closed queue pair has none
        return self._qp_type

    @property
    def qp_state(self) -> int:
        """The state after the last modify or query."""
        self._handle  # noqa: B018
        return self._state

    @property
    def qp_num(self) -> int:
        """Its number."""
        self._handle  # noqa: B018
        return self._qpn

    @property
    def qp(self) -> int:
        """The kernel's handle: there is no C structure with an address."""
        return self._handle

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
        request = modify_request(self._handle, attr, bits)
        try:
            self._session.do(IOCTL_MODIFY_QP, request)
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        if bits & _STATE:
            self._state = attr.qp_state
            if attr.qp_state == _RESET:
                self._rings.reset()

    def query(self, attr_mask: IntLike) -> tuple[QPAttr, QPInitAttr]:
        """Query every attribute as it is now, and what the queue pair was created with."""
        to_int(attr_mask)
        try:
            answer = self._session.call(QpAttributes, IOCTL_QUERY_QP, Object(self._handle))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to query QP") from refusal
        self._state = answer.qp_state
        return queried(answer)

    # Work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a chain of send requests; on an error `bad_wr` becomes the one that failed."""
        first, bad = require("wr", wr, SendWR), optional("bad_wr", bad_wr, SendWR)
        text = "Failed to post send"
        self._check_usable(text)
        ring = self._rings.send
        if ring is None or self._qp_type not in OPCODES:
            raise PyverbsRDMAError(text, errno.EINVAL, reason="the queue pair has no send queue")
        if self._state not in _SENDING:
            raise PyverbsRDMAError(
                text,
                errno.EINVAL,
                reason=f"the queue pair takes none in state {qp_state_to_str(self._state)}",
            )
        made, kind = self._made, self._qp_type
        post_sends(
            ring,
            first,
            bad,
            lambda one: require_send(one, kind, made.max_send_sge, made.max_inline_data),
        )

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a chain of receive requests; on an error `bad_wr` becomes the one that failed."""
        first, bad = require("wr", wr, RecvWR), optional("bad_wr", bad_wr, RecvWR)
        text = "Failed to post recv"
        self._check_usable(text)
        ring = self._rings.receive
        if ring is None:
            why = (
                "the queue pair receives by its SRQ: post there"
                if self._has_srq
                else "the queue pair has no receive queue"
            )
            raise PyverbsRDMAError(text, errno.EINVAL, reason=why)
        if self._state == _RESET:
            raise PyverbsRDMAError(
                text, errno.EINVAL, reason="the queue pair takes none in state Reset"
            )
        post_receives(ring, first, bad, self._made.max_recv_sge, text)

    def _check_usable(self, text: str) -> None:
        if self._resource is None:
            raise PyverbsUserError(f"{text}: the QP is closed")
        if self._session.trouble:
            raise self._session.trouble_error(text)

    # Multicast

    def attach_mcast(self, gid: GID, lid: IntLike) -> None:
        """Receive what is sent to a multicast group."""
        self._multicast(IOCTL_ATTACH_MCAST, gid, lid, "Failed to attach QP to multicast group")

    def detach_mcast(self, gid: GID, lid: IntLike) -> None:
        """Receive it no more."""
        self._multicast(IOCTL_DETACH_MCAST, gid, lid, "Failed to detach QP from multicast group")

    def _multicast(self, code: int, gid: GID, lid: IntLike, text: str) -> None:
        group = require("gid", gid, GID)
        try:
            self._session.do(code, Multicast(self._handle, group.raw, to_u16(lid)))
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        self.context.events.retire(handle, self.events, answer)

    def __str__(self) -> str:
        inner = lines(
            22,
            [("number", self.qp_num), ("state", qp_state_to_str(self.qp_state))],
            indent=2,
        )
        return lines(22, [("QP type", qp_type_to_str(self.qp_type))]) + inner
