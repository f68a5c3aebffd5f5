"""The HCA's side of queues in memory, as far as the user's side can be tested against it."""

from collections import deque
from typing import Any

from shared import cqe_layout, doorbell_layout
from shared.live_words import words64
from user_proc.provider.doorbell_writer import DoorbellWriter


class DeviceSide:
    """A doorbell segment, a status page, and what was rung since one looked last."""

    def __init__(self) -> None:
        self.segment = memoryview(bytearray(doorbell_layout.SEGMENT_LENGTH))
        self.status = memoryview(bytearray(doorbell_layout.STATUS_PAGE_LENGTH))
        self.words = words64(self.segment)
        self.state = words64(self.status)
        self.seen = 0

    def writer(self, poke: int = -1) -> DoorbellWriter:
        return DoorbellWriter(self.segment, self.status, poke)

    def index(self, slot: int) -> int:
        return self.words[doorbell_layout.FIRST_SLOT_WORD + slot]

    def rung(self) -> list[tuple[int, int]]:
        """Kind and slot of each doorbell since the last look."""
        found = []
        while self.seen < self.words[doorbell_layout.RUNG_WORD]:
            place = doorbell_layout.RING_WORD + self.seen % doorbell_layout.RING_ENTRIES
            entry = self.words[place]
            found.append((entry >> doorbell_layout.KIND_SHIFT, entry & doorbell_layout.SLOT_MASK))
            self.seen += 1
        return found


class CompletionWriter:
    """Writes completions into a buffer as the HCA does: in order, the valid word last."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory
        self.producer = 0
        self.log: deque[int] = deque()

    @property
    def entries(self) -> int:
        return len(self.memory) // cqe_layout.CQE_SIZE

    def post(self, qpn: int, position: int, **fields: Any) -> None:
        entry = cqe_layout.Cqe(*[0] * 17)._replace(qpn=qpn, wqe_index=position & 0xFFFFFFFF)
        self.store(self.producer, entry._replace(**fields))
        self.producer += 1

    def store(self, position: int, entry: cqe_layout.Cqe) -> None:
        place = position % self.entries * cqe_layout.CQE_SIZE
        cqe_layout.CQE.pack_into(self.memory, place, *entry)
        words = words64(memoryview(self.memory))
        words[place // 8 + cqe_layout.CQE_VALID_WORD] = position + 1

    def move(self, memory: bytearray, consumer: int) -> None:
        """Go on in another buffer, with what was not polled."""
        old, self.memory = self.memory, memory
        for position in range(consumer, self.producer):
            place = position % (len(old) // cqe_layout.CQE_SIZE) * cqe_layout.CQE_SIZE
            self.store(position, cqe_layout.Cqe(*cqe_layout.CQE.unpack_from(old, place)))
