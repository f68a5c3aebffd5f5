"""Queue pairs as the HCA holds them, and the changes of state that the device makes itself.

A QP exists here from RST2INIT until it is RESET again; a number that is not here is in RESET.

Spec: IBA vol. 1, 10.3.1; PRM, QP context.
"""

from typing import Final

from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.doorbell_pages import DoorbellPage, DoorbellPages
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.in_hand import Incoming, Outgoing
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca.number_table import NumberTable
from kernel_proc.hca.qp_counters import QpCounters
from kernel_proc.hca.queue_buffer import QueueBuffer
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca.work_queue import ReadyQueues, WorkQueue
from kernel_proc.hca_abi import qp_transitions as states
from kernel_proc.hca_abi.contexts import QpContext
from kernel_proc.hca_abi.device_settings import RESERVED_QPS
from kernel_proc.hca_abi.event_entries import (
    EVENT_LAST_WQE_REACHED,
    EVENT_SQ_DRAINED,
    EVENT_WQ_CATASTROPHIC,
)
from shared.doorbell_layout import RING_RECEIVE, RING_SEND, SLOTS
from shared.verbs_enums import ibv_wc_status

_FLUSHED: Final = int(ibv_wc_status.IBV_WC_WR_FLUSH_ERR)
STATE_NAMES: Final = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")


class QueuePair:
    """One queue pair; `context` is what software gave, PSNs and state are live here.

    `outgoing` is the requester's, `incoming` the responder's: the one never looks at the other.
    """

    __slots__ = (
        "buffer",
        "context",
        "copies",
        "counters",
        "drain_notify",
        "draining",
        "incoming",
        "number",
        "outgoing",
        "page",
        "receive",
        "receive_cq",
        "receive_psn",
        "send",
        "send_cq",
        "send_psn",
        "srq",
        "state",
        "windows",
    )

    def __init__(self, context: QpContext, page: DoorbellPage) -> None:
        self.number = context.local_qpn
        self.context = context
        self.page = page
        self.state = states.INIT
        self.buffer: QueueBuffer | None = None
        self.send: WorkQueue | None = None
        self.receive: WorkQueue | None = None
        self.send_cq: CompletionQueue | None = None
        self.receive_cq: CompletionQueue | None = None
        self.srq: SharedReceiveQueue | None = None
        self.send_psn = 0
        self.receive_psn = 0
        self.draining = False
        self.drain_notify = False
        self.copies = 0  # from and to private memory, under way for it
        self.windows: set[MemoryWindow] = set()  # those of type 2 bound to it
        self.outgoing = Outgoing()
        self.incoming = Incoming()
        self.counters = QpCounters()

    def live_context(self) -> QpContext:
        """Return the context with its live fields, as QUERY_QPEE shows it."""
        return self.context._replace(
            state=self.state,
            next_send_psn=self.send_psn,
            next_receive_psn=self.receive_psn,
            sq_draining=int(self.draining),
        )

    def inspect(self) -> dict[str, object]:
        """Return state, PSNs and queues."""
        return {
            "state": STATE_NAMES[self.state],
            "transport": self.context.transport,
            "send_psn": self.send_psn,
            "receive_psn": self.receive_psn,
            "draining": self.draining,
            "counters": self.counters.inspect(),
            "send": self.send.inspect() if self.send else None,
            "receive": self.receive.inspect() if self.receive else None,
        }


class QpTable(NumberTable[QueuePair]):
    """The QPs, their slots, and what happens to them beside the commands."""

    def __init__(self, doorbells: DoorbellPages, events: EventTable, rounds: ReadyQueues) -> None:
        super().__init__(RESERVED_QPS)
        self.retired: Final[dict[int, QpCounters]] = {}  # by port: of QPs that are gone
        self._doorbells: Final = doorbells
        self._events: Final = events
        self._rounds: Final = rounds

    def claim_slots(self, qp: QueuePair) -> bool:
        """Make the QP's work queues and take their slots; all or nothing."""
        context = qp.context
        if max(context.send_slot, context.receive_slot) >= SLOTS:
            return False
        if context.send_entries:
            qp.send = WorkQueue(
                qp, self._rounds, RING_SEND, context.send_slot, context.send_entries,
                context.send_stride,
            )  # fmt: skip
            if not self._doorbells.claim(qp.page, RING_SEND, context.send_slot, qp.send):
                return False
        if context.receive_entries:
            qp.receive = WorkQueue(
                qp, self._rounds, RING_RECEIVE, context.receive_slot, context.receive_entries,
                context.receive_stride,
            )  # fmt: skip
            if not self._doorbells.claim(qp.page, RING_RECEIVE, context.receive_slot, qp.receive):
                if qp.send is not None:
                    self._doorbells.release(qp.page, RING_SEND, context.send_slot)
                return False
        return True

    def attach(self, qp: QueuePair) -> None:
        """Count the QP at everything it uses, and let it exist."""
        for used in (qp.send_cq, qp.receive_cq, qp.srq):
            if used is not None:
                used.users += 1
        self.insert(qp)

    def reset(self, qp: QueuePair) -> None:
        """Let the QP go: slots, memory, windows, counts; its entries leave its CQs."""
        self._stop(qp)
        for window in list(qp.windows):
            window.unbind()
        qp.state = states.RESET
        self.remove(qp)
        self.retired.setdefault(qp.context.port, QpCounters()).add(qp.counters)
        for queue in (qp.send, qp.receive):
            if queue is not None:
                self._doorbells.release(qp.page, queue.kind, queue.slot)
        if qp.buffer is not None:
            qp.buffer.close()
        cqs = {id(cq): cq for cq in (qp.send_cq, qp.receive_cq) if cq is not None}
        for cq in cqs.values():
            cq.sweep(qp.number)
        for used in (qp.send_cq, qp.receive_cq, qp.srq):
            if used is not None:
                used.users -= 1
        qp.send = qp.receive = None  # they name the QP: no cycle stays behind

    def set_state(self, qp: QueuePair, state: int) -> None:
        """Change the state and have the queues looked at that are served in it."""
        old, qp.state = qp.state, state
        if state in (states.ERR, states.SQE):
            qp.draining = False  # there is nothing left that was started
        if state == states.ERR and old != states.ERR:
            self._stop(qp)
            if qp.srq is not None:
                self._events.queue_pair(EVENT_LAST_WQE_REACHED, qp.number)
        for queue in (qp.send, qp.receive):
            if queue is not None:
                self._rounds.ready(queue)

    def drain(self, qp: QueuePair, notify: bool) -> None:
        """Stop starting send entries; with nothing in flight the queue is drained at once."""
        qp.draining = True
        qp.drain_notify = notify
        self.set_state(qp, states.SQD)
        if not qp.outgoing.busy:
            self.drained(qp)

    def drained(self, qp: QueuePair) -> None:
        """Note that everything that was started is done, and tell if that was asked for."""
        qp.draining = False
        if qp.drain_notify:
            self._events.queue_pair(EVENT_SQ_DRAINED, qp.number)

    def _stop(self, qp: QueuePair) -> None:
        """Have nothing in hand: an entry taken of a shared queue completes, flushed.

        At a reset its completion is swept with the others, which gives the entry back; that of an
        XRC target is in the shared queue's own CQ, where its owner finds it.
        """
        qp.outgoing.stop()
        incoming = qp.incoming
        srq, position = incoming.srq, incoming.srq_position
        if position >= 0 and srq is not None:
            cq = qp.receive_cq or srq.cq
            if cq is not None:
                qp.counters.flushes += 1
                cq.post(qp.number, position, _FLUSHED, is_send=0, srqn=srq.number)
        incoming.stop()

    def queue_broken(self, queue: WorkQueue) -> None:
        """Take a QP out of service whose index word cannot be; told once."""
        if queue.told:
            return
        queue.told = True
        self._events.queue_pair(EVENT_WQ_CATASTROPHIC, queue.qp.number)
        self.set_state(queue.qp, states.ERR)

    def shared_queue_broken(self, srq: SharedReceiveQueue) -> None:
        """Take the QPs out of service that receive by an SRQ whose index word cannot be."""
        for qp in self.all():
            if qp.srq is srq:
                self.set_state(qp, states.ERR)

    def shared_queue_gone(self, srq: SharedReceiveQueue) -> None:
        """Cut short what XRC targets have in hand for an SRQ that its owner takes back."""
        for qp in self.all():
            if qp.incoming.srq is srq:
                qp.incoming.stop()

    def completion_lost(self, qp: QueuePair) -> None:
        """Take a QP out of service of which a CQ could not take a completion."""
        if qp.state != states.ERR:
            self.set_state(qp, states.ERR)
