"""Completion queues and the channels that tell of their events.

    channel.get_cq_event(cq); cq.ack_events(1); cq.req_notify(); poll until empty

Polling and arming are stores and loads in shared memory, no call. A poll that finds nothing looks
whether device and kernel live, and yields the processor after as many empty looks as the device
says.

Rules: any thread.
Spec: rdma-core, pyverbs/cq.pyx; ibv_create_cq(3), ibv_poll_cq(3), ibv_get_cq_event(3).
"""

import errno
import os
import threading
from typing import Any, ClassVar, Final

from shared.cqe_layout import CQE_SIZE
from shared.verb_codes import IOCTL_CREATE_CQ, IOCTL_DESTROY_CQ, IOCTL_RESIZE_CQ
from shared.verb_messages import CqCreated, CreateCq, ResizeCq
from shared.verb_reasons import VerbReason
from user_proc.provider.cq_ring import CqRing
from user_proc.transport.inproc_channel import InprocChannel
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.completion import (
    WC,
    cqe_flags_to_str,
    cqe_opcode_to_str,
    cqe_status_to_str,
    create_wc_flags_to_str,
    flags_to_str,
)
from user_proc.verbs.device import Context
from user_proc.verbs.event_fd_queue import EventFdQueue
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.queue_memory import MOST_BYTES, QueueMemory
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

__all__ = [
    "CQ",
    "WC",
    "CompChannel",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
    "create_wc_flags_to_str",
    "flags_to_str",
]

_U32: Final = 0xFFFF_FFFF
_IN_PROCESS_STEP_NS: Final = 1_000


class CompChannel(Parent):
    """A channel; `fd` is readable exactly while an event waits."""

    KIND: ClassVar[str] = "CompChannel"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("CQ",)

    def __init__(self, context: Context) -> None:
        self._queue: EventFdQueue[ObjectEvents] | None = None
        super().__init__()
        self.context = require("context", context, Context)
        self._session = self.context.session()
        if self._session.trouble:
            raise self._session.trouble_error("Failed to create a completion channel")
        try:
            self._queue = self.context.events.new_channel()
        except VerbRefusal as refusal:
            raise refusal.error("Failed to create a completion channel") from refusal
        self.context.adopt(self)
        self.logger.debug("Created a completion channel")

    def queue(self) -> "EventFdQueue[ObjectEvents]":
        """Give the events; PyverbsUserError when it is closed."""
        queue = self._queue
        if queue is None:
            raise PyverbsUserError("the CompChannel is closed")
        return queue

    @property
    def fd(self) -> int:
        """A descriptor to poll, not to read."""
        self.context.events.pump.fill()
        return self.queue().fd

    def get_cq_event(self, expected_cq: "CQ") -> None:
        """Take the next event, waiting for it; it must be of this CQ, and be acknowledged.

        With the descriptor set non-blocking, EAGAIN when none waits. The event of another CQ is
        acknowledged on that one before this raises.
        """
        expected = require("expected_cq", expected_cq, CQ)
        queue, session, text = self.queue(), self._session, "Failed to get CQ event"
        if session.trouble and not session.dead:
            raise session.trouble_error(text)
        found = queue.take()
        if found is None and not os.get_blocking(queue.fd):
            raise PyverbsRDMAError(text, errno.EAGAIN, reason="no event waits")
        if found is None:
            found = self.context.events.wait_for(queue)
        if found is None:
            raise session.trouble_error(text)
        if found is not expected.events:
            found.completions.acknowledge(1)
            raise PyverbsRDMAError("Received event on an unexpected CQ")
        expected.note_event()

    def close(self) -> None:
        """Close the queues on it, then the channel."""
        with self._closing:
            queue = self._queue
            if queue is None:
                return
            if self._session.trouble and not self._session.dead:
                raise self._session.trouble_error("Failed to destroy a completion channel")
            self._close_children()
            self._queue = None
            self.context.events.close_channel(queue)
            self.logger.debug("Closed a completion channel")

    def __del__(self) -> None:
        queue = getattr(self, "_queue", None)
        if queue is not None:
            self._queue = None
            self.context.events.forgotten_channels.append(queue)


class _CqMemory:
    """Ring and memory of a queue, with what an interrupted resize may have left."""

    __slots__ = ("memories", "ring")

    def __init__(self, ring: CqRing, memory: QueueMemory) -> None:
        self.ring = ring
        self.memories = [memory]

    def keep_the_last(self) -> None:
        for memory in self.memories[:-1]:
            memory.release()
        del self.memories[:-1]

    def release(self) -> None:
        self.ring.release()
        for memory in self.memories:
            memory.release()


class CQ(VerbObject):
    """A completion queue; `cqe` is what it holds."""

    KIND: ClassVar[str] = "CQ"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP", "SRQ")
    DESTROY_TEXT: ClassVar[str] = "Failed to close CQ"

    def __init__(
        self,
        context: Context,
        cqe: IntLike,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        comp_vector: IntLike = 0,
    ) -> None:
        self.context = require("context", context, Context)
        super().__init__(self.context.session())
        number, vector = to_int(cqe), to_int(comp_vector)
        self.comp_channel = optional("channel", channel, CompChannel)
        self.cq_context = cq_context
        self.num_events = 0
        self._event_lock: Final = threading.Lock()
        self._empty_looks = 0
        queue = None if self.comp_channel is None else self.comp_channel.queue()
        self.events: Final = ObjectEvents(queue)
        try:
            self._create(number, vector)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to create a CQ") from refusal
        self.context.adopt(self)
        if self.comp_channel is not None:
            self.comp_channel.adopt(self)
        self.logger.debug("Created a CQ")

    def _create(self, cqe: int, vector: int) -> None:
        session = self._session
        self.context.events.want_cq_errors()
        memory = QueueMemory(session.process, _bytes_of(cqe))
        request = CreateCq(
            cqe & _U32,
            vector & _U32,
            int(self.comp_channel is not None),
            0,
            memory.address,
            memory.length,
        )
        try:
            made = session.call(CqCreated, IOCTL_CREATE_CQ, request)
        except VerbRefusal:
            memory.release()
            raise
        ring = CqRing(
            session.doorbells, session.queues, memory.view(), made.consumer_slot, made.arm_slot
        )
        self.ring = ring
        self._parts = _CqMemory(ring, memory)
        self._cqe = made.cqe
        events, handle = self.context.events, made.handle
        events.add(handle, self.events)
        parts = self._parts

        def release() -> None:
            events.forget(handle)
            parts.release()

        self._resource = Resource(
            session, IOCTL_DESTROY_CQ, handle, release, (self.context, self.comp_channel)
        )

    @property
    def cqe(self) -> int:
        """Completions the queue holds."""
        return self._cqe

    @property
    def cq(self) -> int:
        """The kernel's handle: there is no C structure with an address."""
        return self._handle

    @property
    def handle(self) -> int:
        """The kernel's handle."""
        return self._handle

    def poll(self, num_entries: IntLike = 1) -> tuple[int, list[WC]]:
        """Take at most so many completions; give their number and themselves.

        Raises for a queue, device or kernel that is broken, never for what a completion reports.
        """
        session = self._session
        if self._resource is None or (session.trouble and not session.dead):
            self._refuse("Failed to poll CQ")
        found = self.ring.poll(to_int(num_entries))
        if found:
            self._empty_looks = 0
            return len(found), [WC.of(wr_id, entry) for wr_id, entry in found]
        self._found_nothing()
        return 0, []

    def req_notify(self, solicited_only: bool = False) -> None:
        """Ask for one event, for the next completion or the next solicited one."""
        if self._resource is None or self._session.trouble:
            self._refuse("Request notify CQ returned an error")
        self.ring.arm(bool(solicited_only))
        if self.comp_channel is not None and self.context.events.pump.in_process:
            self.context.events.pump.fill()

    def ack_events(self, num_events: IntLike) -> None:
        """Acknowledge events that `get_cq_event` gave."""
        number = to_int(num_events)
        with self._event_lock:
            if not 0 <= number <= self.num_events:
                raise PyverbsUserError(
                    f"{number} events cannot be acknowledged: {self.num_events} have been got"
                )
            self.num_events -= number
        self.events.completions.acknowledge(number)

    def note_event(self) -> None:
        """Count an event the program has got and must acknowledge."""
        with self._event_lock:
            self.num_events += 1

    def resize(self, cqe: IntLike) -> None:
        """Have room for more completions, or fewer; those not polled stay, in order."""
        number, text = to_int(cqe), "Failed to resize CQ"
        with self._closing:
            handle, session, parts = self._handle, self._session, self._parts
            session.require_usable()
            if not self.ring.settled:
                raise PyverbsRDMAError(
                    text, errno.EBUSY, reason="an interrupted resize has not been settled yet"
                )
            parts.keep_the_last()
            try:
                memory = QueueMemory(session.process, _bytes_of(number))
                if not memory.length:
                    session.call(CqCreated, IOCTL_RESIZE_CQ, ResizeCq(handle, number & _U32, 0, 0))
                    raise VerbRefusal(errno.EINVAL, "the queue would have no memory")
                parts.memories.append(memory)
                self.ring.expect(memory.view())
                request = ResizeCq(handle, number & _U32, memory.address, memory.length)
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

    def _found_nothing(self) -> None:
        session = self._session
        if self.events.broken:
            raise PyverbsRDMAError(
                "Failed to poll CQ", errno.EIO, reason="the queue has overrun or failed: close it"
            )
        if session.dead:
            raise session.trouble_error("Failed to poll CQ")
        doorbells = session.doorbells
        if doorbells.device_is_dead:
            session.die(
                "the device has failed: close the context and open it again", device_failed=True
            )
            raise session.trouble_error("Failed to poll CQ")
        self._empty_looks += 1
        if self._empty_looks > doorbells.spin_hint:
            os.sched_yield()
        channel = session.process.channel
        if isinstance(channel, InprocChannel):
            channel.door.run(lambda: False, _IN_PROCESS_STEP_NS)

    def _refuse(self, text: str) -> None:
        if self._resource is None:
            raise PyverbsUserError(f"{text}: the CQ is closed")
        raise self._session.trouble_error(text)

    def _before_destroy(self) -> None:
        self.ack_events(self.num_events)

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        self.context.events.retire(handle, self.events, answer)

    def __str__(self) -> str:
        return "CQ\n" + lines(22, [("Handle", self.handle), ("CQEs", self.cqe)])


def _bytes_of(cqe: int) -> int:
    """Give the bytes of a queue's memory; 0 for a number no queue can have."""
    if not 0 < cqe <= MOST_BYTES // CQE_SIZE:
        return 0
    return CQE_SIZE << cqe.bit_length()
