"""Completion channels, and what a completion queue is to them.

Rules: any thread.
Spec: rdma-core, pyverbs/cq.pyx; ibv_create_comp_channel(3), ibv_get_cq_event(3).
"""

import errno
import os
import threading
from typing import ClassVar, Final

from user_proc.verbs.argument_types import require
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.device import Context
from user_proc.verbs.event_fd_queue import EventFdQueue
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.session_events import ObjectEvents
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import VerbRefusal, VerbSession


class EventTarget(VerbObject):
    """A completion queue as far as its events go: those the program has got and acknowledges."""

    def __init__(self, session: VerbSession) -> None:
        super().__init__(session)
        self.events = ObjectEvents()
        self.num_events = 0
        self._event_lock: Final = threading.Lock()

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


class CompChannel(Parent):
    """A channel; `fd` is readable exactly while an event waits."""

    KIND: ClassVar[str] = "CompChannel"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("CQ", "CQEX")

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

    def get_cq_event(self, expected_cq: EventTarget) -> None:
        """Take the next event, waiting for it; it must be of this CQ, and be acknowledged.

        With the descriptor set non-blocking, EAGAIN when none waits. The event of another CQ is
        acknowledged on that one before this raises.
        """
        expected = require("expected_cq", expected_cq, EventTarget)
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

    def __str__(self) -> str:
        queue = self._queue
        if queue is None:
            return f"{self.KIND} (closed)\n"
        return f"{self.KIND}\n" + lines(22, [("fd", queue.fd)])

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
