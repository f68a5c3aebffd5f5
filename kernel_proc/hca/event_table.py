"""Event queues: entries the HCA writes into kernel memory, and the line it raises for them.

An entry's body is written first, its owner byte last. A full queue loses nothing: what does not
fit waits here, each event once, until the consumer index has moved.

Spec: docs/command-interface.md; Linux drivers/infiniband/hw/mthca/mthca_eq.c.
"""

from functools import lru_cache
from typing import Final

from kernel_proc.hca.queue_buffer import QueueBuffer
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi.contexts import EqContext
from kernel_proc.hca_abi.registers import EQ_CONSUMER_OFFSET, EQ_COUNT
from shared.live_words import publish_fence

EVENT_TYPES: Final = 32
_CONSUMER_WORD: Final = EQ_CONSUMER_OFFSET // 8
_ENTRY_SHIFT: Final = 5
_KNOWN_QUEUES: Final = 1024


class EventQueue:
    """One event queue that the hardware owns."""

    __slots__ = ("buffer", "context", "fulls", "mask", "number", "producer", "waiting")

    def __init__(self, number: int, context: EqContext, buffer: QueueBuffer, log_size: int) -> None:
        self.number = number
        self.context = context
        self.buffer = buffer
        self.mask = (1 << log_size) - 1
        self.producer = 0
        self.waiting: dict[bytes, None] = {}
        self.fulls = 0

    def write(self, entry: bytes) -> None:
        """Write one entry: 31 bytes, fence, then the byte that hands it over."""
        page, place = self.buffer.locate((self.producer & self.mask) << _ENTRY_SHIFT)
        view = self.buffer.pages[page]
        last = place + eqe.EQE_OWNER_OFFSET
        view[place:last] = entry
        publish_fence()
        view[last] = 0
        self.producer += 1


class EventTable:
    """All event queues, and which of them each type of event goes to."""

    def __init__(self, register_words: memoryview) -> None:
        self._registers: Final = register_words
        self.queues: Final[list[EventQueue | None]] = [None] * EQ_COUNT
        self.map: Final[list[int | None]] = [None] * EVENT_TYPES
        self.raised = False
        self.written = 0
        self.without_queue = 0
        self.stuck: Final[dict[int, EventQueue]] = {}  # in which events wait for room

    def insert(self, queue: EventQueue) -> None:
        """Give a queue to the hardware."""
        self.queues[queue.number] = queue

    def remove(self, number: int) -> EventQueue | None:
        """Take a queue back to software; events that waited for room in it are lost with it."""
        queue = self.queues[number]
        self.queues[number] = None
        self.stuck.pop(number, None)
        if queue is not None:
            queue.buffer.close()
        return queue

    def clear(self) -> None:
        """Take all queues back."""
        for number in range(EQ_COUNT):
            self.remove(number)
        self.map[:] = [None] * EVENT_TYPES

    def map_types(self, mask: int, number: int | None) -> None:
        """Send the events whose types are in the mask to a queue, or nowhere."""
        for kind in range(EVENT_TYPES):
            if mask >> kind & 1:
                self.map[kind] = number

    def completion(self, number: int, cqn: int) -> None:
        """Tell that an armed CQ has an entry."""
        self._post(number, _completion_entry(cqn))

    def command_done(self, token: int, status: int, out_param: int) -> None:
        """Tell that a command is complete."""
        data = eqe.EQE_COMMAND.pack(token, status, out_param)
        self._post(self.map[eqe.EVENT_COMMAND_DONE], _entry(eqe.EVENT_COMMAND_DONE, 0, data))

    def queue_pair(self, kind: int, qpn: int) -> None:
        """Tell an event of a QP."""
        self._post(self.map[kind], _entry(kind, 0, eqe.EQE_QP.pack(qpn)))

    def shared_receive_queue(self, kind: int, srqn: int) -> None:
        """Tell an event of an SRQ."""
        self._post(self.map[kind], _entry(kind, 0, eqe.EQE_SRQ.pack(srqn)))

    def cq_error(self, cqn: int, syndrome: int) -> None:
        """Tell that a CQ is dead."""
        data = eqe.EQE_CQ_ERROR.pack(cqn, syndrome)
        self._post(self.map[eqe.EVENT_CQ_ERROR], _entry(eqe.EVENT_CQ_ERROR, 0, data))

    def port(self, port: int, subtype: int) -> None:
        """Tell an event of a port."""
        data = eqe.EQE_PORT.pack(port << eqe.PORT_SHIFT)
        kind = eqe.EVENT_PORT_CHANGE
        self._post(self.map[kind], _entry(kind, subtype, data))

    def catastrophic(self) -> None:
        """Tell that the device is dead, if there is still a way."""
        kind = eqe.EVENT_LOCAL_CATASTROPHIC
        self._post(self.map[kind], _entry(kind, 0, b""))

    def retry(self) -> bool:
        """Write what waited for room; say whether anything could be written."""
        before = self.written
        for queue in list(self.stuck.values()):
            if not queue.buffer.alive:
                self.without_queue += len(queue.waiting)
                queue.waiting.clear()
            while queue.waiting and self._has_room(queue):
                entry = next(iter(queue.waiting))
                del queue.waiting[entry]
                self._write(queue, entry)
            if not queue.waiting:
                del self.stuck[queue.number]
        return self.written != before

    def inspect(self) -> dict[str, object]:
        """Return each queue's size, producer and consumer."""
        return {
            "written": self.written,
            "without_queue": self.without_queue,
            "queues": {
                str(queue.number): {
                    "size": queue.mask + 1,
                    "producer": queue.producer,
                    "consumer": self._registers[_CONSUMER_WORD + queue.number],
                    "waiting": len(queue.waiting),
                    "fulls": queue.fulls,
                }
                for queue in self.queues
                if queue is not None
            },
        }

    def _has_room(self, queue: EventQueue) -> bool:
        # A consumer index that is ahead makes this negative: room, and only the kernel's harm.
        used = queue.producer - self._registers[_CONSUMER_WORD + queue.number]
        return used <= queue.mask

    def _post(self, number: int | None, entry: bytes) -> None:
        queue = self.queues[number] if number is not None and number < EQ_COUNT else None
        if queue is None or not queue.buffer.alive:
            self.without_queue += 1
            return
        if queue.waiting or not self._has_room(queue):
            queue.fulls += not queue.waiting
            queue.waiting[entry] = None
            self.stuck[queue.number] = queue
            return
        self._write(queue, entry)

    def _write(self, queue: EventQueue, entry: bytes) -> None:
        queue.write(entry)
        self.written += 1
        self.raised = True


@lru_cache(_KNOWN_QUEUES)
def _completion_entry(cqn: int) -> bytes:
    """Lay out a completion event; a queue's are all alike."""
    return _entry(eqe.EVENT_COMPLETION, 0, eqe.EQE_COMPLETION.pack(cqn))


def _entry(kind: int, subtype: int, data: bytes) -> bytes:
    """Lay out an entry up to its owner byte; `data` is packed from the entry's start."""
    body = bytearray(eqe.EQE_OWNER_OFFSET)
    body[: len(data)] = data
    body[1] = kind
    body[3] = subtype
    return bytes(body)
