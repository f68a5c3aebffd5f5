"""Shared receive queues: entries handed out in order, and the limit that tells once.

Spec: IBA vol. 1, 10.2.9; PRM, SRQ context.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.queue_buffer import QueueBuffer
from kernel_proc.hca.work_queue import EntryRing, IndexWord
from kernel_proc.hca_abi.contexts import SrqContext
from kernel_proc.hca_abi.event_entries import EVENT_SRQ_CATASTROPHIC, EVENT_SRQ_LIMIT


class SharedReceiveQueue(EntryRing):
    """One shared receive queue that the hardware owns; of an XRC one `cq` takes completions."""

    __slots__ = (
        "_events",
        "context",
        "cq",
        "error_told",
        "limit",
        "number",
        "users",
        "when_broken",
    )

    def __init__(
        self,
        context: SrqContext,
        index: IndexWord,
        buffer: QueueBuffer,
        cq: CompletionQueue | None,
        events: EventTable,
    ) -> None:
        super().__init__(index.page, context.slot, context.entries, context.stride, buffer)
        self.context = context
        self.number = context.srqn
        self.cq = cq
        self.limit = context.limit
        self.users = 0
        self.error_told = False
        #: Takes the queue pairs out of service that receive by it.
        self.when_broken: Callable[[SharedReceiveQueue], None] | None = None
        self._events: Final = events

    def rung(self) -> None:
        """Look at the index word, so that a broken queue is told at once."""
        self.outstanding()
        self._tell_broken()

    def next_entry(self) -> int | None:
        """Take the next entry and return its position; None when there is none.

        When fewer entries than the limit remain the event is raised, once.
        """
        posted = self.outstanding()
        self._tell_broken()
        if not posted:
            return None
        position = self.take()
        if posted - 1 < self.limit:
            self.limit = 0
            self._events.shared_receive_queue(EVENT_SRQ_LIMIT, self.number)
        return position

    def live_context(self) -> SrqContext:
        """Return the context with its live fields, as QUERY_SRQ shows it."""
        return self.context._replace(limit=self.limit, posted=self.outstanding())

    def inspect(self) -> dict[str, object]:
        """Return size, head, limit and what is outstanding."""
        return {
            "entries": self.entries,
            "head": self.head,
            "outstanding": self.outstanding(),
            "limit": self.limit,
            "users": self.users,
        }

    def _tell_broken(self) -> None:
        if self.broken and not self.error_told:
            self.error_told = True
            self._events.shared_receive_queue(EVENT_SRQ_CATASTROPHIC, self.number)
            if self.when_broken is not None:
                self.when_broken(self)
