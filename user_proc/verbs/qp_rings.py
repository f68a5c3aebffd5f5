"""The rings of a queue pair in the memory this process gave it.

The library lays the memory out by the same rules as the driver, before it asks: receive ring, then
send ring, each at a multiple of its stride.

Rules: any thread; `reset` and `release` when the device has nothing of the queue pair any more.
Spec: shared/wqe_layout.py.
"""

from typing import Final

from shared.doorbell_layout import RING_SEND
from shared.verb_messages import CreateQp, QpCreated
from shared.verbs_enums import ibv_qp_type
from shared.wqe_layout import receive_stride, ring_entries, send_stride
from user_proc.provider.cq_ring import CqRing
from user_proc.provider.doorbell_writer import DoorbellWriter
from user_proc.provider.queue_table import QueueTable
from user_proc.provider.receive_ring import ReceiveRing
from user_proc.provider.send_ring import SendRing
from user_proc.verbs.queue_memory import QueueAllocator, QueueMemory

_XRC_SEND: Final = int(ibv_qp_type.IBV_QPT_XRC_SEND)
_XRC_RECV: Final = int(ibv_qp_type.IBV_QPT_XRC_RECV)


def memory_for(allocator: QueueAllocator, request: CreateQp) -> tuple[QueueMemory, CreateQp]:
    """Allocate the memory a queue pair needs, and say so in its request."""
    end = length = 0
    if request.qp_type not in (_XRC_SEND, _XRC_RECV) and not request.srq:
        end = length = ring_entries(request.max_recv_wr) * receive_stride(request.max_recv_sge)
    if request.qp_type != _XRC_RECV and request.max_send_wr:
        stride = send_stride(request.max_send_sge, request.max_inline_data)
        length = -(-end // stride) * stride + ring_entries(request.max_send_wr) * stride
    memory = QueueMemory(allocator, length)
    return memory, request._replace(buffer=memory.address, buffer_length=memory.length)


class QpRings:
    """Send and receive ring, either of which a queue pair may not have, and where they complete."""

    __slots__ = ("_cqs", "_memory", "_qpn", "_queues", "receive", "send")

    def __init__(
        self,
        writer: DoorbellWriter,
        queues: QueueTable,
        made: QpCreated,
        memory: QueueMemory,
        cqs: list[CqRing],
    ) -> None:
        self._memory: Final = memory
        self._queues: Final = queues
        self._qpn: Final = made.qpn
        self._cqs: Final = cqs
        self.receive: ReceiveRing | None = None
        self.send: SendRing | None = None
        if made.max_recv_wr:
            end = made.max_recv_wr * made.receive_stride
            self.receive = queues.receive[made.qpn] = ReceiveRing(
                writer,
                made.receive_slot,
                memory.view(0, end),
                made.receive_stride,
                made.max_recv_wr,
            )
        if made.max_send_wr:
            end = made.send_offset + made.max_send_wr * made.send_stride
            self.send = queues.send[made.qpn] = SendRing(
                writer,
                RING_SEND,
                made.send_slot,
                memory.view(made.send_offset, end),
                made.send_stride,
                made.max_send_wr,
            )

    def reset(self) -> None:
        """Be empty: the queue pair is in RESET, and nothing of it completes any more."""
        for cq in self._cqs:
            cq.sweep(self._qpn)
        for ring in (self.send, self.receive):
            if ring is not None:
                with ring.lock:
                    ring.reset()

    def release(self) -> None:
        """Pass over what is left in the completion queues, and give the memory back."""
        self._queues.forget(self._qpn)
        for cq in self._cqs:
            cq.sweep(self._qpn)
        for ring in (self.send, self.receive):
            if ring is not None:
                with ring.lock:
                    ring.release()
        self._memory.release()
