"""Requests and answers that are lost, doubled or changed between requester and responder.

A request here is a run of packets of one message, as everywhere in the engine.

Spec: IBA vol. 1, 9.7.5 (requester: timeouts, duplicates), 9.9.3 (responder); docs/engine.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from kernel_proc.faults.overrides import Overrides
from kernel_proc.hca import packets
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.injection.injection import Injection
from kernel_proc.hca.packets import NOTHING, SILENCE, WAIT, Answer, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import contexts as abi

Send = Callable[[Request], Answer]
Answered = Callable[[int, int, Answer], None]
Step = Callable[[QueuePair, WorkQueue, Outgoing], int]

_DROPPED: Final = "a fault"
_ANSWERED: Final = (abi.QPC_TRANSPORT_RC, abi.QPC_TRANSPORT_XRC_RECV)
_ACKNOWLEDGED: Final = (abi.QPC_TRANSPORT_RC, abi.QPC_TRANSPORT_XRC_SEND)
_WITH_KEY: Final = ops.WRITES | ops.ATOMICS | {ops.RDMA_READ}
_OTHER_GENERATION: Final = 0xFF << 24 | 0xFF  # other bits at either end of a key


class LinkInjection(Injection, ABC):
    """Replaces the way out of each port, or of one."""

    def install(self, overrides: Overrides) -> None:
        """Put `sends` in its place."""
        for port in self.device.tables.ports:
            if self.active.fault.port in (0, port.number):
                overrides.replace(port, "send", partial(self._around, port))

    def _around(self, port: Port, send: Send) -> Send:
        return lambda request: self.sends(port, request, send)

    @abstractmethod
    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Let a request out by `send`, or do otherwise."""

    def takes(self, request: Request) -> bool:
        """Count a request of the queue pair; True if it is struck."""
        wanted = self.active.fault.queue_pair
        return wanted in (0, request.source_qpn) and self.active.strikes()


class LinkDown(LinkInjection):
    """Nothing goes out, nobody is told, and the port's state stays."""

    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Drop it."""
        self.active.strikes()
        port.drops[_DROPPED] += 1
        return NOTHING


class RequestLost(LinkInjection):
    """It does not arrive."""

    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Drop it, or not."""
        if not self.takes(request):
            return send(request)
        port.drops[_DROPPED] += 1
        return NOTHING


class RequestDoubled(LinkInjection):
    """It arrives twice; the second answer is dropped as a requester drops it."""

    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Send it again."""
        doubled = self.takes(request)
        answer = send(request)
        if doubled:
            send(request)
        return answer


class AckLost(LinkInjection):
    """It arrives and is executed, and its answer is lost: that of now, or one that comes later."""

    def install(self, overrides: Overrides) -> None:
        """Put it in the way of late answers, too."""
        super().install(overrides)
        if self.active.fault.port == 0:
            overrides.replace(self.device.tables.engine.requester, "answered", self._around_late)

    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Lose the answer of a kind that has one."""
        answer = send(request)
        has_one = request.transport in _ANSWERED and answer.kind not in (SILENCE, WAIT)
        return NOTHING if has_one and self.takes(request) else answer

    def _around_late(self, answered: Answered) -> Answered:
        def lose_or_give(qpn: int, psn: int, answer: Answer) -> None:
            if not (self._is_acknowledged(qpn) and self.active.strikes()):
                answered(qpn, psn, answer)

        return lose_or_give

    def _is_acknowledged(self, qpn: int) -> bool:
        """Tell whether it is meant, and no UC queue pair: what one of those hears is no ACK."""
        qp = self.device.tables.qps.find(qpn)
        meant = self.active.fault.queue_pair in (0, qpn)
        return meant and qp is not None and qp.context.transport in _ACKNOWLEDGED


class RemoteKeyCorrupt(LinkInjection):
    """The rkey of an RDMA request or an atomic is another one when it arrives."""

    def sends(self, port: Port, request: Request, send: Send) -> Answer:
        """Change the key for this run alone: keys are looked at with the first of a message."""
        begins = request.opcode in _WITH_KEY and request.flags & packets.FIRST
        if not begins or not self.takes(request):
            return send(request)
        key = request.rkey
        request.rkey = key ^ _OTHER_GENERATION
        try:
            return send(request)
        finally:
            request.rkey = key


class LocalKeyCorrupt(Injection):
    """The lkey of a send entry is another one when it is read."""

    def install(self, overrides: Overrides) -> None:
        """Change the elements before the first step of an entry that has any."""

        def make(steps: tuple[Step, ...]) -> tuple[Step, ...]:
            return tuple(self._around(step) for step in steps)

        overrides.replace(self.device.tables.engine.requester, "_steps", make)

    def _around(self, step: Step) -> Step:
        def corrupt_or_not(qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
            fits = out.elements and not out.done and not out.again
            wanted = self.active.fault.queue_pair
            if fits and wanted in (0, qp.number) and self.active.strikes():
                out.elements = [
                    (address, length, key ^ _OTHER_GENERATION)
                    for address, length, key in out.elements
                ]
            return step(qp, queue, out)

        return corrupt_or_not
