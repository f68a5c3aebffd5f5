"""Whose turn it is: sessions in a circle, in each session its ready queues in a circle.

A queue is ready when its owner rang it, or when a change of state gave it something to do, and
there is a service for its kind in the QP's state. A service does a bounded piece and says whether
it wants another turn.

Rules: one thread; a turn ends in bounded time.
Spec: docs/hca-process.md.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from kernel_proc.hca.doorbell_pages import DoorbellPage
from kernel_proc.hca.work_queue import WorkQueue

REQUESTS_A_TURN: Final = 16

Service = Callable[[WorkQueue, int], bool]


class Rounds:
    """The queues that have something to do, by session."""

    def __init__(self) -> None:
        self._services: Final[dict[tuple[int, int], Service]] = {}
        self._circle: Final[deque[DoorbellPage]] = deque()
        self._ready: Final[dict[DoorbellPage, deque[WorkQueue]]] = {}
        self.turns = 0

    def serve_with(self, kind: int, state: int, service: Service) -> None:
        """Name the service of a kind of queue in a state; without one it waits."""
        self._services[kind, state] = service

    def ready(self, queue: WorkQueue) -> None:
        """Put a queue into its session's circle, once, if it is served in its state."""
        if queue.queued or (queue.kind, queue.qp.state) not in self._services:
            return
        queue.queued = True
        queues = self._ready.get(queue.page)
        if queues is None:
            queues = self._ready[queue.page] = deque()
            self._circle.append(queue.page)
        queues.append(queue)

    def turn(self) -> bool:
        """Serve the next queue of the next session; False when nothing is ready."""
        if not self._circle:
            return False
        page = self._circle.popleft()
        queues = self._ready[page]
        queue = queues.popleft()
        service = self._services.get((queue.kind, queue.qp.state))
        if service is not None and service(queue, REQUESTS_A_TURN):
            queues.append(queue)
        else:
            queue.queued = False
        if queues:
            self._circle.append(page)
        else:
            del self._ready[page]
        self.turns += 1
        return True

    def clear(self) -> None:
        """Forget every queue: the device was stopped."""
        self._circle.clear()
        self._ready.clear()

    def inspect(self) -> dict[str, object]:
        """Return turns taken and queues ready."""
        return {"turns": self.turns, "ready": sum(map(len, self._ready.values()))}
