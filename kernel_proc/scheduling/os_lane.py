"""Lanes: where a kernel thread has something done that may block the operating system.

The kernel thread waits; an OS thread of the lane does the work and posts the result. One lane
serves one session, so that what blocks there keeps nobody else waiting.

Rules: `run` at <= APC_LEVEL, in a kernel thread.
"""

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


class Lane(Protocol):
    """Run blocking work on behalf of a kernel thread."""

    def run(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Return `routine(*args)` or raise its exception; the kernel thread waits."""

    def close(self) -> None:
        """Take no more work."""


class InlineLane:
    """For machines in process: the work is done at once, so that runs can be repeated."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor

    def run(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Call the routine."""
        self._processor.require_irql(APC_LEVEL, "blocking work")
        return routine(*args)

    def close(self) -> None:
        """Nothing is held."""


class _Job:
    __slots__ = ("arguments", "done", "error", "result", "routine")

    def __init__(
        self, routine: Callable[..., Any], arguments: tuple[Any, ...], done: Event
    ) -> None:
        self.routine = routine
        self.arguments = arguments
        self.done = done
        self.result: Any = None
        self.error: BaseException | None = None


class OsLane:
    """One OS thread, started at first use; a daemon, because stuck work cannot be ended."""

    __slots__ = ("_closed", "_jobs", "_name", "_processor", "_thread")

    def __init__(self, processor: "Processor", name: str) -> None:
        self._processor = processor
        self._name = name
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Have the lane's OS thread do it while the kernel thread waits."""
        processor = self._processor
        processor.require_irql(APC_LEVEL, "blocking work")
        if self._closed:
            raise RuntimeError(f"lane {self._name!r} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        job = _Job(routine, args, Event(processor, notification=True))
        self._jobs.put(job)
        job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result = job.routine(*job.arguments)
            except BaseException as error:
                job.error = error
            self._processor.post(job.done.set)
            del job  # an idle lane must keep nothing alive

    def close(self) -> None:
        """Let the OS thread end after the work it has."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
