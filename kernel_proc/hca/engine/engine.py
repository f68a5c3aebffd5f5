"""The engine: requester, responder and what they stand on, put together.

Spec: docs/engine.md.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca.engine.arrivals import Arrivals
from kernel_proc.hca.engine.completer import Completer
from kernel_proc.hca.engine.datagram_receiver import DatagramReceiver
from kernel_proc.hca.engine.deadlines import Deadlines
from kernel_proc.hca.engine.flusher import Flusher
from kernel_proc.hca.engine.private_copier import PrivateCopier
from kernel_proc.hca.engine.requester import Requester
from kernel_proc.hca.engine.responders import Responders
from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.engine.windows import Windows
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.multicast_table import MulticastTable
from kernel_proc.hca.number_table import NumberTable
from kernel_proc.hca.packets import Answer, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca.translation import Translation


class Engine:
    """What serves work queues; `deadlines` and `copier` are looked at between rounds."""

    def __init__(
        self,
        queue_pairs: QpTable,
        shared: NumberTable[SharedReceiveQueue],
        rounds: Rounds,
        translation: Translation,
        events: EventTable,
        multicast: MulticastTable,
        ports: list[Port],
        clock_ns: Callable[[], int],
    ) -> None:
        self._clock_ns: Final = clock_ns
        self.deadlines: Final = Deadlines()
        self.copier: Final = PrivateCopier(clock_ns)
        self.flusher: Final = Flusher(queue_pairs, rounds)
        self.completer: Final = Completer(queue_pairs, rounds, self.deadlines, clock_ns)
        self.windows: Final = Windows(translation, self.completer, rounds)
        self.requester: Final = Requester(
            queue_pairs, rounds, translation, ports, self.completer, self.copier, self.windows
        )
        responders = Responders(
            queue_pairs, shared, translation, events, self.copier, self._answer_later
        )
        datagrams = DatagramReceiver(queue_pairs, translation, self.copier)
        self.arrivals: Final = Arrivals(queue_pairs, multicast, responders.receive, datagrams)
        for port in ports:
            port.join(ports, self.arrivals.receive)

    def run_due(self) -> bool:
        """Do what time or an ended copy has brought; False if that was nothing."""
        busy = bool(self.copier.outstanding) and self.copier.finish()
        if busy:
            self.windows.go_on()
        if self.deadlines.heap:
            for qp in self.deadlines.due(self._clock_ns()):
                self.completer.resume(qp)
                busy = True
        return busy

    @property
    def waits(self) -> bool:
        """Whether anything waits for time or for a copy."""
        return bool(self.deadlines.heap or self.copier.outstanding)

    def next_deadline_ns(self) -> int | None:
        """Return when `run_due` has something to do."""
        times = [self.deadlines.next_ns(), self.copier.next_deadline_ns()]
        return min((time for time in times if time is not None), default=None)

    def clear(self) -> None:
        """Forget everything that waits: the device was stopped."""
        self.deadlines.clear()

    def _answer_later(self, request: Request, answer: Answer) -> None:
        self.requester.answered(request.source_qpn, request.psn, answer)
