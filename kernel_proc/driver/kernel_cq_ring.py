"""Completion queues of kernel clients: poll, peek, arm, sweep, and a move to other memory.

What is left of a queue pair that was reset or destroyed is passed over: only the HCA writes
entries, so they are noted by position. While a move is under way, or it is not known whether the
HCA made it, every buffer is looked at: the next completion is whatever has the next position.

Rules: <= DISPATCH_LEVEL; nothing waits, wakes anybody or lowers the IRQL.
Spec: shared/cqe_layout.py; shared/doorbell_layout.py (arm words); Linux mthca_cq.c.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.channel_interface.work_requests import WorkCompletion
from kernel_proc.driver.kernel_rings import Bell, Pieces
from shared.arm_words import ArmWords
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_WORD, Cqe
from shared.doorbell_layout import RING_CQ_ARM
from shared.live_words import publish_fence, words64

if TYPE_CHECKING:
    from kernel_proc.driver.cq_verbs import Cq
    from kernel_proc.driver.queue_resource import KernelMemory

_REMOVED: Final = 0  # the queue pair of an entry the HCA has removed
_QPN: Final = Cqe._fields.index("qpn")
_POSITION: Final = Cqe._fields.index("wqe_index")
_IS_SEND: Final = Cqe._fields.index("is_send")
_SRQN: Final = Cqe._fields.index("srqn")

_unpack: Final = CQE.unpack_from

#: Frees what a completion names: (QP number, position, is it a send, SRQ number) -> its wr_id.
Complete = Callable[[int, int, int, int], int | None]


class _Buffer:
    """The entries in one memory; `memory` has no buffer any more once that was freed."""

    __slots__ = ("_mask", "_pieces", "_words", "memory")

    def __init__(self, memory: "KernelMemory", entries: int) -> None:
        assert memory.buffer is not None
        self.memory = memory
        self._pieces = Pieces(memory.buffer.views())
        self._words = [words64(view) for view in self._pieces.views]
        self._mask = entries - 1

    def holds(self, index: int) -> bool:
        at = (index & self._mask) * CQE_SIZE
        pieces = self._pieces
        word = ((at & pieces.mask) >> 3) + CQE_VALID_WORD
        return self._words[at >> pieces.shift][word] == index + 1

    def entry(self, index: int) -> tuple[Any, ...]:
        publish_fence()  # what was stored before the valid word is loaded after it
        at = (index & self._mask) * CQE_SIZE
        pieces = self._pieces
        return _unpack(pieces.views[at >> pieces.shift], at & pieces.mask)


class KernelCqRing:
    """One completion queue; `index` counts what was polled of it."""

    __slots__ = (
        "_arm_slot",
        "_arm_words",
        "_bell",
        "_buffers",
        "_complete",
        "_consumer_slot",
        "_swept",
        "cq",
        "index",
    )

    def __init__(
        self,
        bell: Bell,
        complete: Complete,
        cq: "Cq",
        memory: "KernelMemory",
    ) -> None:
        self.cq = cq
        self._bell = bell
        self._complete = complete
        self._consumer_slot, self._arm_slot = cq.consumer_slot, cq.arm_slot
        self._buffers = [_Buffer(memory, cq.size)]
        self._swept: set[int] = set()
        self.index = 0
        self._arm_words = ArmWords(bell.word(self._arm_slot))
        bell.store(self._consumer_slot, 0)

    def poll(self, most: int) -> list[WorkCompletion]:
        """Take at most so many completions, in their order."""
        if len(self._buffers) > 1:
            self.settle()
        found: list[WorkCompletion] = []
        first = index = self.index
        buffer = self._buffers[0]
        while len(found) < most:
            if not buffer.holds(index):
                holder = self._holder(index) if len(self._buffers) > 1 else None
                if holder is None:
                    break
                buffer = holder
            entry = buffer.entry(index)
            index += 1
            if self._swept and index - 1 in self._swept:
                self._swept.discard(index - 1)
                continue
            wr_id = self._complete(entry[_QPN], entry[_POSITION], entry[_IS_SEND], entry[_SRQN])
            if wr_id is not None and entry[_QPN] != _REMOVED:
                found.append(_completion(wr_id, entry))
        if index != first:
            self.index = index
            publish_fence()
            self._bell.store(self._consumer_slot, index)
        return found

    def count(self) -> int:
        """Return how many completions wait to be polled."""
        self.settle()
        index, removed = self.index, 0
        while (buffer := self._holder(index)) is not None:
            removed += index in self._swept or buffer.entry(index)[_QPN] == _REMOVED
            index += 1
        return index - self.index - removed

    def arm(self, solicited_only: bool) -> None:
        """Ask for one event, at the next entry or the next solicited one."""
        word = self._arm_words.next(self.index, solicited_only)
        self._bell.ring(RING_CQ_ARM, self._arm_slot, word)

    def sweep(self, qpn: int) -> None:
        """Drop what is left of a queue pair that completes nothing more.

        Entries of a shared receive queue that it had taken are given back.
        """
        self.settle()
        index = self.index
        while (buffer := self._holder(index)) is not None:
            entry = buffer.entry(index)
            if entry[_QPN] in (qpn, _REMOVED) and index not in self._swept:
                self._swept.add(index)
                if entry[_SRQN] and not entry[_IS_SEND]:
                    self._complete(qpn, entry[_POSITION], 0, entry[_SRQN])
            index += 1

    # A move to other memory

    def expect(self, memory: "KernelMemory", entries: int) -> None:
        """Look also into new, zeroed memory: the HCA is about to be asked to move there."""
        self._buffers.append(_Buffer(memory, entries))

    def settle(self) -> None:
        """Look no more into memory that was given back; there is always one that was not."""
        self._buffers = [one for one in self._buffers if one.memory.buffer is not None]

    def _holder(self, index: int) -> _Buffer | None:
        return next((one for one in self._buffers if one.holds(index)), None)


def _completion(wr_id: int, entry: tuple[Any, ...]) -> WorkCompletion:
    (
        qpn, _, byte_len, imm_data, src_qp, opcode, status, vendor_err, _, wc_flags, slid,
        pkey_index, sl, path_bits, *_,
    ) = entry  # fmt: skip
    return WorkCompletion(
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qpn, src_qp, wc_flags, pkey_index,
        slid, sl, path_bits,
    )  # fmt: skip
