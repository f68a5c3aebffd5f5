"""The memory of a send entry: its elements checked as a whole, fetched, or filled with a result.

Shared memory is reached at once. Private memory takes a copy by a thread, and the entry waits.

Spec: docs/engine.md, private memory.
"""

from typing import Final

from kernel_proc.hca.device_memory import Piece
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import STOP, Completer
from kernel_proc.hca.engine.pieces import is_shared, reach_elements, store_data
from kernel_proc.hca.engine.private_copier import Copied, CopyJob, PrivateCopier
from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import Data
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation
from kernel_proc.hca.work_queue import WorkQueue


class SenderMemory:
    """What the requester does with the elements of the entry in hand."""

    def __init__(
        self,
        translation: Translation,
        rounds: Rounds,
        completer: Completer,
        copier: PrivateCopier,
    ) -> None:
        self._translation: Final = translation
        self._rounds: Final = rounds
        self._completer: Final = completer
        self._copier: Final = copier

    def check(self, qp: QueuePair, out: Outgoing, rights: int) -> bool:
        """Check all elements before the first byte; a fault ends the entry."""
        pd = qp.context.pd
        try:
            for address, length, key in out.elements:
                self._translation.find(key, pd, rights, address, length)
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return False
        return True

    def fetch(self, qp: QueuePair, out: Outgoing, pieces: list[Piece]) -> int:
        """Have the next bytes copied out of private memory, and go on then."""

        def fetched(job: CopyJob) -> None:
            if out.job is not job:
                return
            out.job = None
            if job.failed:
                out.waiting = False
                self._completer.failed(qp, ops.LOC_PROT_ERR)
                return
            out.fetched = job.buffer
            self._completer.resume(qp)

        out.waiting = True
        out.job = self._copier.read(pieces, fetched, self._users(qp, out))
        return STOP

    def put_result(
        self, qp: QueuePair, queue: WorkQueue, out: Outgoing, data: Data, run: int, count: int
    ) -> int:
        """Put `count` bytes of a result where the entry says, and go on."""
        if not count:
            return self._completer.arrived(qp, queue, out, run, count, out.length)
        try:
            memory = reach_elements(
                self._translation, qp.context.pd, ops.LOCAL_WRITE, out.elements, out.done, count
            )
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return STOP
        if isinstance(memory, memoryview) or is_shared(memory):
            store_data(memory, data, out.done + count >= out.length)
            return self._completer.arrived(qp, queue, out, run, count, out.length)

        def stored(job: CopyJob) -> None:
            if out.job is not job:
                return
            out.job = None
            out.waiting = False
            if job.failed:
                self._completer.failed(qp, ops.LOC_PROT_ERR)
            else:
                self._completer.arrived(qp, queue, out, run, count, out.length)
                self._rounds.ready(queue)

        out.waiting = True
        held = b"".join(data if isinstance(data, list) else [data])
        out.job = self._copier.write(memory, held, stored, self._users(qp, out))
        return STOP

    def _users(self, qp: QueuePair, out: Outgoing) -> list[Copied]:
        """Return what must not end before a copy for the entry in hand does."""
        keys = (self._translation.named(key) for _, _, key in out.elements)
        return [qp, *(key for key in keys if key is not None)]
