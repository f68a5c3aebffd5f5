"""Requests that need somebody's private memory: the answer comes when a thread has copied.

Until then the responder says IN_HAND to the same request. The data of a request is copied out
first, since its views end with the call.

Rules: the device's thread; whatever changes the queue pair meanwhile forgets the job, and then
nobody is answered.
Spec: docs/engine.md, private memory.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.device_memory import Piece, PrivateRun
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.private_copier import Copied, CopyJob, PrivateCopier
from kernel_proc.hca.in_hand import Incoming
from kernel_proc.hca.packets import IN_HAND, Answer, Request
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation

_PSN_MASK: Final = ops.PSN_MASK
_SILENCE: Final = packets.SILENCE

#: Goes on with a request whose bytes, so many, are stored.
Stored = Callable[[QueuePair, Incoming, Request, int], Answer]
#: Ends a request whose bytes could not be copied.
Failed = Callable[[QueuePair, Incoming, Request], Answer]
#: Goes on with a request when its copy has worked.
Copy = Callable[[Request, CopyJob], Answer]


class PrivateRequests:
    """Copies for requests in hand; `is_silent` says that silence is not to be told to the sender.

    An unreliable sender is told of the end of every copy: it waits for the link, not for success.
    """

    def __init__(
        self,
        translation: Translation,
        copier: PrivateCopier,
        answer_later: Callable[[Request, Answer], None],
        *,
        is_silent: bool = True,
    ) -> None:
        self._translation: Final = translation
        self._copier: Final = copier
        self._answer_later: Final = answer_later
        self._is_silent: Final = is_silent

    def store(
        self,
        qp: QueuePair,
        incoming: Incoming,
        request: Request,
        memory: list[Piece],
        keys: list[int],
        stored: Stored,
        failed: Failed,
    ) -> Answer:
        """Have the data of a request stored."""
        data = request.payload()
        done = self._when_done(
            qp, incoming, request, lambda held, job: stored(qp, incoming, held, len(data)), failed
        )
        incoming.job = self._copier.write(memory, data, done, self._users(qp, keys))
        return IN_HAND

    def fetch(
        self,
        qp: QueuePair,
        incoming: Incoming,
        request: Request,
        memory: list[Piece],
        fetched: Copy,
        failed: Failed,
    ) -> Answer:
        """Have the bytes fetched that a request asks for."""
        done = self._when_done(qp, incoming, request, fetched, failed)
        incoming.job = self._copier.read(memory, done, self._users(qp, [request.rkey]))
        return IN_HAND

    def change(
        self,
        qp: QueuePair,
        incoming: Incoming,
        request: Request,
        run: PrivateRun,
        change: Callable[[int], int],
        changed: Copy,
        failed: Failed,
    ) -> Answer:
        """Have a word changed as a request says."""
        done = self._when_done(qp, incoming, request, changed, failed)
        users = self._users(qp, [request.rkey])
        incoming.job = self._copier.change_word(run, change, done, users)
        return IN_HAND

    def _when_done(
        self, qp: QueuePair, incoming: Incoming, request: Request, copied: Copy, failed: Failed
    ) -> Callable[[CopyJob], None]:
        held = request.copied()

        def done(job: CopyJob) -> None:
            if incoming.job is not job:
                return
            incoming.job = None
            answer = failed(qp, incoming, held) if job.failed else copied(held, job)
            if answer.kind == packets.ACKNOWLEDGE:
                qp.receive_psn = (held.psn + held.packets) & _PSN_MASK
            if answer.kind != _SILENCE or not self._is_silent:
                self._answer_later(held, answer)

        return done

    def _users(self, qp: QueuePair, keys: list[int]) -> list[Copied]:
        """Return what must not end before a copy for the request in hand does."""
        found = (self._translation.named(key) for key in keys)
        return [qp, *(key for key in found if key is not None)]
