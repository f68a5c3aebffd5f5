"""Queue pairs as they are worked with: posting, binding windows, multicast.

Posting is a store into a ring and a doorbell. When the device has moved the queue pair to another
state meanwhile, requests are taken all the same and come back flushed.

Rules: any thread.
Spec: rdma-core, pyverbs/qp.pyx; ibv_post_send(3), ibv_post_recv(3), ibv_attach_mcast(3).
"""

import errno
from typing import Final

from shared.verb_codes import (
    IOCTL_ATTACH_MCAST,
    IOCTL_DETACH_MCAST,
)
from shared.verb_messages import Multicast
from shared.verbs_enums import ibv_qp_state, ibv_wr_opcode
from user_proc.provider.send_ring import SendRing
from user_proc.verbs.address_attributes import GID
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.c_integers import IntLike, to_u16
from user_proc.verbs.mr import MW, MWBind
from user_proc.verbs.posting import OPCODES, post_receives, post_sends, require_bind, require_send
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.queue_pair_life import RESET, QueuePairLife
from user_proc.verbs.utils import qp_state_to_str
from user_proc.verbs.verb_session import VerbRefusal
from user_proc.verbs.wr import RecvWR, SendWR

_SENDING: Final = frozenset(
    int(state)
    for state in (
        ibv_qp_state.IBV_QPS_RTS,
        ibv_qp_state.IBV_QPS_SQD,
        ibv_qp_state.IBV_QPS_SQE,
        ibv_qp_state.IBV_QPS_ERR,
    )
)


class QP(QueuePairLife):
    """A queue pair: `QP(pd, QPInitAttr)` or `QP(context, QPInitAttrEx)`.

    With `qp_attr` it is brought to INIT, UD to RTS. The init attributes take what was granted.
    """

    # Work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a chain of send requests; on an error `bad_wr` becomes the one that failed."""
        # A single request that such a queue took before, and nothing new to say: in at once.
        if type(wr) is SendWR and bad_wr is None and wr.next_wr is None:
            known = wr.known_entry(self._send_limits)
            if (
                known is not None
                and self._resource is not None
                and not self._session.trouble
                and self._state in _SENDING
                and (fast := self._rings.send) is not None
                and fast.post(wr.wr_id, known)
            ):
                return
        first, bad = require("wr", wr, SendWR), optional("bad_wr", bad_wr, SendWR)
        ring = self._send_ring("Failed to post send")
        made, kind = self._made, self._qp_type
        post_sends(
            ring,
            first,
            bad,
            lambda one: require_send(one, kind, made.max_send_sge, made.max_inline_data),
        )

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Bind a type 1 window, or unbind it; `mw.rkey` is its new key at once."""
        window, bind = require("mw", mw, MW), require("mw_bind", mw_bind, MWBind)
        text = "Failed to Bind MW"
        ring = self._send_ring(text)
        made, kind = self._made, self._qp_type

        def check(one: SendWR) -> None:
            require_bind(window, bind.info)
            require_send(one, kind, made.max_send_sge, made.max_inline_data)

        def post(new_rkey: int) -> None:
            wr = SendWR(bind.wr_id, ibv_wr_opcode.IBV_WR_BIND_MW, send_flags=bind.send_flags)
            wr.set_bind(window, bind.info, new_rkey, by_bind_mw=True)
            post_sends(ring, wr, None, check, text)

        window.rebind(post)
        self.adopt(window)

    def _send_ring(self, text: str) -> SendRing:
        """Give the send queue; an error if there is none, or it takes nothing in this state."""
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
        return ring

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a chain of receive requests; on an error `bad_wr` becomes the one that failed."""
        # A single request, and nothing to say against it: in at once.
        if (
            type(wr) is RecvWR
            and bad_wr is None
            and wr.next_wr is None
            and self._resource is not None
            and not self._session.trouble
            and self._state != RESET
            and wr.num_sge <= self._made.max_recv_sge
            and (fast := self._rings.receive) is not None
            and fast.post(wr.wr_id, wr.entry())
        ):
            return
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
        if self._state == RESET:
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
            self._session.do(code, Multicast(self.handle, group.raw, to_u16(lid)))
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
