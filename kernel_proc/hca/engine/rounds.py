"""Whose turn it is: sessions in a circle, in each session its ready queues in a circle.

A queue is ready when its owner rang it, or when a change of state gave it something to do, and
there is a service for its kind in the QP's state. A service does a bounded piece and says whether
it wants another turn: 16 requests or 128 KiB, whatever comes first. A queue that is alone may move
the bytes of its next turns at once, in runs of 1 MiB at most, until another session rings; that
ends the device's round.

Rules: one thread; a turn ends in bounded time.
Spec: docs/hca-process.md.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from kernel_proc.hca.doorbell_pages import DoorbellPage, DoorbellPages
from kernel_proc.hca.work_queue import WorkQueue

REQUESTS_A_TURN: Final = 16
BYTES_A_TURN: Final = 128 << 10
BYTES_A_RUN: Final = 1 << 20
BYTES_ALONE: Final = 2 << 20

#: Serves a queue: at most so many requests, or so many bytes.
Service = Callable[[WorkQueue, int, int], bool]

_STATES: Final = 8  # a power of two above the QP states


class Rounds:
    """The queues that have something to do, by session."""

    def __init__(self, doorbells: DoorbellPages) -> None:
        self._rung_beside: Final = doorbells.rung_beside
        self._services: Final[list[Service | None]] = [None] * (4 * _STATES)
        self.circle: Final[deque[DoorbellPage]] = deque()  # of those that have ready queues
        self.turns = 0
        self.long_turn = False  # the last one moved more than a turn's bytes

    def serve_with(self, kind: int, state: int, service: Service) -> None:
        """Name the service of a kind of queue in a state; without one it waits."""
        self._services[kind * _STATES + state] = service

    def ready(self, queue: WorkQueue) -> None:
        """Put a queue into its session's circle, once, if it is served in its state.

        A queue that is being served may be put there again: by a change of its state, say.
        """
        if queue.queued or self._services[queue.kind * _STATES + queue.qp.state] is None:
            return
        queue.queued = True
        page = queue.page
        page.ready.append(queue)
        if not page.in_circle:
            page.in_circle = True
            self.circle.append(page)

    def turn(self) -> bool:
        """Serve the next queue of the next session; False when nothing is ready."""
        if not self.circle:
            return False
        page = self.circle.popleft()
        queues = page.ready
        queue = queues.popleft()
        queue.queued = False
        service = self._services[queue.kind * _STATES + queue.qp.state]
        room = BYTES_A_TURN if queues or self.circle else BYTES_ALONE
        if service is not None and service(queue, REQUESTS_A_TURN, room) and not queue.queued:
            queue.queued = True
            queues.append(queue)
        if queues:
            self.circle.append(page)
        else:
            page.in_circle = False
        self.turns += 1
        return True

    def others_wait(self, page: DoorbellPage) -> bool:
        """Say whether another session has rung meanwhile."""
        return self._rung_beside(page)

    def clear(self) -> None:
        """Forget every queue: the device was stopped."""
        for page in self.circle:
            page.ready.clear()
            page.in_circle = False
        self.circle.clear()

    def inspect(self) -> dict[str, object]:
        """Return turns taken and queues ready."""
        return {"turns": self.turns, "ready": sum(len(page.ready) for page in self.circle)}
