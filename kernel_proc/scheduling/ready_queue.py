"""Threads ready to run: 32 priorities, first in first out within one.

Spec: Windows scheduling, priorities 0 (lowest) to 31.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread

PRIORITIES: Final = 32


class ReadyQueue:
    """A queue per priority and a summary word with one bit for each that is not empty."""

    __slots__ = ("_queues", "summary")

    def __init__(self) -> None:
        self._queues: list[deque[KThread]] = [deque() for _ in range(PRIORITIES)]
        self.summary = 0

    def push(self, thread: "KThread") -> None:
        """Put a thread behind its equals."""
        priority = thread.priority
        self._queues[priority].append(thread)
        self.summary |= 1 << priority

    def push_front(self, thread: "KThread") -> None:
        """Put a pre-empted thread before its equals."""
        priority = thread.priority
        self._queues[priority].appendleft(thread)
        self.summary |= 1 << priority

    def top_priority(self) -> int:
        """Return the highest priority that is ready, -1 if none is."""
        return self.summary.bit_length() - 1

    def pop(self) -> "KThread":
        """Remove and return the first thread of the highest priority; one must be there."""
        priority = self.summary.bit_length() - 1
        queue = self._queues[priority]
        thread = queue.popleft()
        if not queue:
            self.summary &= ~(1 << priority)
        return thread

    def __iter__(self) -> Iterator["KThread"]:
        for queue in reversed(self._queues):
            yield from queue
