"""A completion queue as its owner reads it: poll, arm, sweep, and a change of buffers.

What is left of a queue pair that was reset or destroyed is passed over: the entries stay where
they are, since only the HCA writes there, and are noted by position. Those the HCA has removed
itself name no queue pair; what they took of a shared receive queue is given back all the same.

While a resize is under way both buffers are looked at. The HCA moves what was not polled and
stores everything later in the new one, so whatever is found at the next position, in either, is
the next completion; once found in the new one, the old one is done with.

Rules: any thread; one polls at a time. Nothing here calls the kernel.
Spec: shared/cqe_layout.py; shared/doorbell_layout.py (arm words).
"""

import threading
from typing import Any, Final

from shared.arm_words import ArmWords
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_WORD, Cqe
from shared.doorbell_layout import RING_CQ_ARM
from shared.live_words import publish_fence, words64
from user_proc.provider.doorbell_writer import DoorbellWriter
from user_proc.provider.queue_table import QueueTable

_WORDS: Final = CQE_SIZE // 8
_REMOVED: Final = 0  # the queue pair of an entry the HCA has removed

_QPN: Final = Cqe._fields.index("qpn")
_POSITION: Final = Cqe._fields.index("wqe_index")
_IS_SEND: Final = Cqe._fields.index("is_send")
_SRQN: Final = Cqe._fields.index("srqn")

#: A wr_id and the fields of `Cqe`.
Completion = tuple[int, tuple[Any, ...]]

_unpack: Final = CQE.unpack_from


class _Buffer:
    """The entries, a power of two of them, and the same bytes as words."""

    __slots__ = ("mask", "view", "words")

    def __init__(self, view: memoryview) -> None:
        self.view: Final = view
        self.words: Final = words64(view)
        self.mask: Final = len(view) // CQE_SIZE - 1

    def holds(self, index: int) -> bool:
        return self.words[(index & self.mask) * _WORDS + CQE_VALID_WORD] == index + 1

    def entry(self, index: int) -> tuple[Any, ...]:
        publish_fence()  # what was stored before the valid word is loaded after it
        return _unpack(self.view, (index & self.mask) * CQE_SIZE)

    def release(self) -> None:
        self.words.release()
        self.view.release()


class CqRing:
    """One completion queue; its memory must be zeroed before the HCA is told of it."""

    __slots__ = (
        "_arm_slot",
        "_arm_words",
        "_buffer",
        "_complete",
        "_consumer_slot",
        "_index",
        "_next",
        "_swept",
        "_writer",
        "lock",
    )

    def __init__(
        self,
        writer: DoorbellWriter,
        queues: QueueTable,
        view: memoryview,
        consumer_slot: int,
        arm_slot: int,
    ) -> None:
        self._writer: Final = writer
        self._complete: Final = queues.complete
        self._buffer = _Buffer(view)
        self._next: _Buffer | None = None
        self._consumer_slot: Final = consumer_slot
        self._arm_slot: Final = arm_slot
        self._index = 0
        self._arm_words: Final = ArmWords(writer.word(arm_slot))
        self._swept: Final[set[int]] = set()
        self.lock: Final = threading.Lock()
        writer.store(consumer_slot, 0)

    def poll(self, limit: int) -> list[Completion]:
        """Take at most `limit` completions, in their order."""
        found: list[Completion] = []
        with self.lock:
            first = index = self._index
            while len(found) < limit:
                buffer = self._buffer
                # As `holds` and `entry` do: who waits looks here all the time.
                place = index & buffer.mask
                if buffer.words[place * _WORDS + CQE_VALID_WORD] != index + 1:
                    if self._next is None or not self._next.holds(index):
                        break
                    buffer = self._switch(self._next)
                    place = index & buffer.mask
                publish_fence()
                entry = _unpack(buffer.view, place * CQE_SIZE)
                index += 1
                if self._swept and index - 1 in self._swept:
                    self._swept.discard(index - 1)
                    continue
                qpn = entry[_QPN]
                wr_id = self._complete(qpn, entry[_POSITION], entry[_IS_SEND], entry[_SRQN])
                if wr_id is not None and qpn != _REMOVED:
                    found.append((wr_id, entry))
            if index != first:
                self._index = index
                publish_fence()
                self._writer.store(self._consumer_slot, index)
        return found

    def look_on(self, looks: int) -> bool:
        """Look so many times for the next entry, or until it is there; takes nothing.

        Without the lock: what others do meanwhile makes it look in vain at most.
        """
        index, buffer = self._index, self._buffer
        words, place = buffer.words, (index & buffer.mask) * _WORDS + CQE_VALID_WORD
        valid = index + 1
        try:
            for _ in range(looks):
                if words[place] == valid:
                    return True
        except ValueError:  # it was released
            pass
        return False

    def arm(self, solicited_only: bool) -> None:
        """Ask for one event, at the next entry or the next solicited one.

        An HCA that sleeps is left alone if there is no entry: it stores none before it has seen
        this. What it stored before it announced sleep is seen here.
        """
        with self.lock:
            index = self._index
            word = self._arm_words.next(index, solicited_only)
            sleeps = self._writer.note(RING_CQ_ARM, self._arm_slot, word)
            if sleeps and self._holder(index) is not None:
                self._writer.wake()

    def sweep(self, qpn: int) -> None:
        """Drop what is left of a queue pair that completes nothing more.

        Entries of a shared receive queue that it had taken are given back.
        """
        with self.lock:
            index = self._index
            while (buffer := self._holder(index)) is not None:
                entry = buffer.entry(index)
                if entry[_QPN] in (qpn, _REMOVED) and index not in self._swept:
                    self._swept.add(index)
                    if entry[_SRQN] and not entry[_IS_SEND]:
                        self._complete(qpn, entry[_POSITION], 0, entry[_SRQN])
                index += 1

    @property
    def settled(self) -> bool:
        """Tell whether there is one buffer only."""
        return self._next is None

    def expect(self, view: memoryview) -> None:
        """Look also into a new, zeroed buffer: a resize is about to be asked for."""
        with self.lock:
            self._next = _Buffer(view)

    def settle(self, *, resized: bool) -> None:
        """Look into one buffer only: the new one, or if the resize was refused the old one."""
        with self.lock:
            new, self._next = self._next, None
            if new is None:
                return  # found to be in use already
            if resized:
                old, self._buffer = self._buffer, new
                old.release()
            else:
                new.release()

    def release(self) -> None:
        """Let go of the memory."""
        with self.lock:
            old, new = self._buffer, self._next
            self._buffer, self._next = _Buffer(memoryview(bytes(CQE_SIZE))), None  # never an entry
            old.release()
            if new is not None:
                new.release()

    def _holder(self, index: int) -> _Buffer | None:
        """Give the buffer that has the entry at a position, if either has."""
        if self._buffer.holds(index):
            return self._buffer
        if self._next is not None and self._next.holds(index):
            return self._next
        return None

    def _switch(self, new: _Buffer) -> _Buffer:
        old, self._buffer, self._next = self._buffer, new, None
        old.release()
        return new
