"""What CQ and CQEX have in common: creation, arming, events, and what an empty look means.

A look that finds nothing looks whether device and kernel live, and yields the processor after as
many empty looks as the device says.

Rules: any thread.
Spec: ibv_create_cq(3), ibv_create_cq_ex(3), ibv_req_notify_cq(3).
"""

import errno
from typing import Any, ClassVar, Final, NoReturn

from shared.cqe_layout import CQE_SIZE
from shared.verb_codes import IOCTL_CREATE_CQ, IOCTL_DESTROY_CQ
from shared.verb_messages import CqCreated, CreateCq
from user_proc.provider.cq_ring import Completion, CqRing
from user_proc.transport.inproc_channel import InprocChannel
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.comp_channel import CompChannel, EventTarget
from user_proc.verbs.device import Context
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.queue_memory import MOST_BYTES, QueueAllocator, QueueMemory
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.verb_session import Resource, VerbRefusal

U32: Final = 0xFFFF_FFFF
_IN_PROCESS_STEP_NS: Final = 1_000
_COMPLETIONS_A_TURN: Final = 64
_LOOKS_AFTER_A_REST: Final = 100  # some microseconds


class CqMemory:
    """Ring and memory of a queue, with what an interrupted resize may have left."""

    __slots__ = ("memories", "ring")

    def __init__(self, ring: CqRing, memory: QueueMemory) -> None:
        self.ring = ring
        self.memories = [memory]

    def keep_the_last(self) -> None:
        """Let go of what the queue was in before it was resized."""
        for memory in self.memories[:-1]:
            memory.release()
        del self.memories[:-1]

    def release(self) -> None:
        """Let go of all."""
        self.ring.release()
        for memory in self.memories:
            memory.release()


class CompletionQueue(EventTarget):
    """A completion queue; `cqe` is what it holds."""

    CREATE_TEXT: ClassVar[str]

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: Any,
        channel: CompChannel | None,
        vector: int,
        flags: int = 0,
        allocator: QueueAllocator | None = None,
    ) -> None:
        self.context = require("context", context, Context)
        super().__init__(self.context.session())
        self.comp_channel = optional("channel", channel, CompChannel)
        self.cq_context = cq_context
        kernel = self._session.process.channel
        self._door: Final = kernel.door if isinstance(kernel, InprocChannel) else None
        self._empty_looks = 0
        self._found = 0  # since the last time the processor was yielded for it
        queue = None if self.comp_channel is None else self.comp_channel.queue()
        self.events = ObjectEvents(queue)
        try:
            self._create(cqe, vector, flags, allocator or self._session.process)
        except VerbRefusal as refusal:
            raise refusal.error(self.CREATE_TEXT) from refusal
        self.context.adopt(self)
        if self.comp_channel is not None:
            self.comp_channel.adopt(self)
        self.logger.debug("Created a %s", self.KIND)

    def _create(self, cqe: int, vector: int, flags: int, allocator: QueueAllocator) -> None:
        session, channel = self._session, self.comp_channel
        if channel is not None and channel.context is not self.context:
            raise VerbRefusal(errno.EINVAL, "the CompChannel is another context's")
        self.context.events.want_cq_errors()
        memory = QueueMemory(allocator, bytes_of(cqe))
        request = CreateCq(
            cqe & U32,
            vector & U32,
            int(channel is not None),
            flags,
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
        self._parts = CqMemory(ring, memory)
        self._cqe = made.cqe
        events, handle = self.context.events, made.handle
        events.add(handle, self.events)
        parts = self._parts

        def release() -> None:
            events.forget(handle)
            parts.release()

        self._resource = Resource(
            session, IOCTL_DESTROY_CQ, handle, release, (self.context, channel)
        )

    @property
    def cqe(self) -> int:
        """Completions the queue holds."""
        return self._cqe

    @property
    def cq(self) -> int:
        """The kernel's handle: there is no C structure with an address."""
        return self.handle

    def req_notify(self, solicited_only: bool = False) -> None:
        """Ask for one event, for the next completion or the next solicited one."""
        if self._resource is None or self._session.trouble:
            self._refuse("Request notify CQ returned an error")
        self.ring.arm(bool(solicited_only))
        if self.comp_channel is not None and self.context.events.pump.in_process:
            self.context.events.pump.fill()

    def _take(self, limit: int) -> list[Completion]:
        """Take completions; where there are none let others run, and look on for a while.

        To look on costs much less than to yield again, and a message that is under way comes in
        less time than two pollers take to change places.
        """
        found = self.ring.poll(limit)
        if not found:
            if self._found_nothing():
                found = self.ring.poll(limit)
            if not found:
                return found
        self._empty_looks = 0
        self._found += len(found)
        if self._found >= _COMPLETIONS_A_TURN:  # others want the processor now and then, too
            self._found = 0
            self._session.doorbells.rest(1)
        return found

    def _found_nothing(self) -> bool:
        """Let others run, and look on for a while; True if something may have come."""
        session = self._session
        if self.events.broken:
            raise PyverbsRDMAError(
                "Failed to poll CQ", errno.EIO, reason="the queue has overrun or failed: close it"
            )
        if session.dead:
            raise session.trouble_error("Failed to poll CQ")
        self._empty_looks = looks = self._empty_looks + 1
        if not session.doorbells.rest(looks):
            session.die(
                "the device has failed: close the context and open it again", device_failed=True
            )
            raise session.trouble_error("Failed to poll CQ")
        if self._door is not None:
            self._door.run(lambda: False, _IN_PROCESS_STEP_NS)
            return True
        return not session.doorbells.is_crowded and self.ring.look_on(_LOOKS_AFTER_A_REST)

    def _refuse(self, text: str) -> NoReturn:
        if self._resource is None:
            raise PyverbsUserError(f"{text}: the {self.KIND} is closed")
        raise self._session.trouble_error(text)

    def _before_destroy(self) -> None:
        self.ack_events(self.num_events)

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        self.context.events.retire(handle, self.events, answer)

    def _shown(self) -> str:
        return "CQ\n" + lines(22, [("Handle", self.handle), ("CQEs", self.cqe)])


def bytes_of(cqe: int) -> int:
    """Give the bytes of a queue's memory; 0 for a number no queue can have."""
    if not 0 < cqe <= MOST_BYTES // CQE_SIZE:
        return 0
    return CQE_SIZE << cqe.bit_length()
