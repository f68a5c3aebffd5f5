"""Completion queues and the channels that tell of their events.

    channel.get_cq_event(cq); cq.ack_events(1); cq.req_notify(); poll until empty

Polling and arming are stores and loads in shared memory, no call.

Rules: any thread.
Spec: rdma-core, pyverbs/cq.pyx; ibv_create_cq(3), ibv_poll_cq(3), ibv_resize_cq(3).
"""

import errno
from typing import Any, ClassVar

from shared.verb_codes import IOCTL_RESIZE_CQ
from shared.verb_messages import CqCreated, ResizeCq
from shared.verb_reasons import VerbReason
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.comp_channel import CompChannel
from user_proc.verbs.completion import (
    WC,
    cqe_flags_to_str,
    cqe_opcode_to_str,
    cqe_status_to_str,
    create_wc_flags_to_str,
    flags_to_str,
)
from user_proc.verbs.completion_queue import U32, CompletionQueue, bytes_of
from user_proc.verbs.cq_ex import CQEX
from user_proc.verbs.cq_ex_attributes import CqInitAttrEx, PollCqAttr, WcTmInfo
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.queue_memory import QueueMemory
from user_proc.verbs.verb_session import VerbRefusal

__all__ = [
    "CQ",
    "CQEX",
    "WC",
    "CompChannel",
    "CqInitAttrEx",
    "PollCqAttr",
    "WcTmInfo",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
    "create_wc_flags_to_str",
    "flags_to_str",
]


class CQ(CompletionQueue):
    """A completion queue; `cqe` is what it holds."""

    KIND: ClassVar[str] = "CQ"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP", "SRQ")
    CREATE_TEXT: ClassVar[str] = "Failed to create a CQ"
    DESTROY_TEXT: ClassVar[str] = "Failed to close CQ"

    def __init__(
        self,
        context: Context,
        cqe: IntLike,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        comp_vector: IntLike = 0,
    ) -> None:
        super().__init__(context, to_int(cqe), cq_context, channel, to_int(comp_vector))

    def poll(self, num_entries: IntLike = 1) -> tuple[int, list[WC]]:
        """Take at most so many completions; give their number and themselves.

        Raises for a queue, device or kernel that is broken, never for what a completion reports.
        """
        session = self._session
        if self._resource is None or (session.trouble and not session.dead):
            self._refuse("Failed to poll CQ")
        found = self._take(to_int(num_entries))
        return len(found), [WC.of(wr_id, entry) for wr_id, entry in found]

    def resize(self, cqe: IntLike) -> None:
        """Have room for more completions, or fewer; those not polled stay, in order."""
        number, text = to_int(cqe), "Failed to resize CQ"
        with self._closing:
            handle, session, parts = self.handle, self._session, self._parts
            session.require_usable()
            if not self.ring.settled:
                raise PyverbsRDMAError(
                    text, errno.EBUSY, reason="an interrupted resize has not been settled yet"
                )
            parts.keep_the_last()
            try:
                memory = QueueMemory(session.process, bytes_of(number))
                if not memory.length:
                    session.call(CqCreated, IOCTL_RESIZE_CQ, ResizeCq(handle, number & U32, 0, 0))
                    raise VerbRefusal(errno.EINVAL, "the queue would have no memory")
                parts.memories.append(memory)
                self.ring.expect(memory.view())
                request = ResizeCq(handle, number & U32, memory.address, memory.length)
                made = session.call(CqCreated, IOCTL_RESIZE_CQ, request)
            except VerbRefusal as refusal:
                self._take_back(refusal)
                raise refusal.error(text) from refusal
            self.ring.settle(resized=True)
            self._cqe = made.cqe
            parts.keep_the_last()

    def _take_back(self, refusal: VerbRefusal) -> None:
        """Undo the preparations of a resize that was refused.

        Both memories are kept when nobody knows which the device uses, or which it used last.
        """
        uncertain = refusal.kind == VerbReason.RESIZE_UNCERTAIN or refusal.session_is_over
        if uncertain or refusal.errno == errno.EPROTO:
            return
        if len(self._parts.memories) > 1:
            self.ring.settle(resized=False)
            self._parts.memories.pop().release()
