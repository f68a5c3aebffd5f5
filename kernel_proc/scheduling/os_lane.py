"""Lanes: where a kernel thread has something done that may block the operating system.

The kernel thread waits; an OS thread of the lane does the work and posts the result. One lane
serves one session, so that what blocks there keeps nobody else waiting.

Rules: `run` at <= APC_LEVEL, in a kernel thread; the rest at any level, and without waiting.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_PROCESS_IS_TERMINATING

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


class Lane(Protocol):
    """Run blocking work on behalf of a kernel thread."""

    def run(
        self,
        routine: Callable[..., Any],
        *args: Any,
        discard: Callable[[Any], object] | None = None,
    ) -> Any:
        """Return `routine(*args)` or raise its exception; the kernel thread waits."""

    def later(
        self, routine: Callable[[], object], then: Callable[[], object] | None = None
    ) -> None:
        """Have it done after the work there is, also of an abandoned lane; nobody waits.

        The dispatcher calls `then` when it has been done. Not after `close`.
        """

    def close(self) -> None:
        """Take no more work."""

    def abandon(self) -> None:
        """Take no more work and give up what is stuck."""


class InlineLane:
    """For machines in process: the work is done at once, so that runs can be repeated."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor

    def run(
        self,
        routine: Callable[..., Any],
        *args: Any,
        discard: Callable[[Any], object] | None = None,
    ) -> Any:
        """Call the routine; nothing is ever abandoned, so nothing is discarded."""
        self._processor.require_irql(APC_LEVEL, "blocking work")
        return routine(*args)

    def later(
        self, routine: Callable[[], object], then: Callable[[], object] | None = None
    ) -> None:
        """Call the routine."""
        routine()
        if then is not None:
            self._processor.post(then)

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is ever stuck."""


class _Job:
    __slots__ = ("abandoned", "arguments", "discard", "done", "error", "result", "routine")

    def __init__(
        self,
        routine: Callable[..., Any],
        arguments: tuple[Any, ...],
        discard: Callable[[Any], object] | None,
        done: Event,
    ) -> None:
        self.routine = routine
        self.arguments = arguments
        self.discard = discard
        self.done = done
        self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def finish(self) -> None:
        """Hand the result over, or discard it if nobody waits any more; run by the dispatcher."""
        if not self.abandoned:
            self.done.set()
        elif self.discard is not None and self.error is None:
            self.discard(self.result)


class _Errand:
    # Work nobody waits for; its failure is nobody's business either.

    __slots__ = ("routine", "then")

    def __init__(self, routine: Callable[[], object], then: Callable[[], object] | None) -> None:
        self.routine = routine
        self.then = then


class OsLane:
    """One OS thread, started at first use; a daemon, because stuck work cannot be ended.

    It sleeps in an eventfd: waking it costs a quarter of what a queue of the library costs.
    """

    __slots__ = ("_closed", "_ending", "_jobs", "_name", "_pending", "_processor", "_wake")

    def __init__(self, processor: "Processor", name: str) -> None:
        self._processor = processor
        self._name = name
        self._closed = False  # no more work is taken
        self._ending = False  # the OS thread has been told to end
        self._jobs: deque[_Job | _Errand | None] = deque()
        self._pending: set[_Job] = set()
        self._wake = -1

    def run(
        self,
        routine: Callable[..., Any],
        *args: Any,
        discard: Callable[[Any], object] | None = None,
    ) -> Any:
        """Have the lane's OS thread do it while the kernel thread waits.

        If the lane is closed, or abandoned meanwhile, STATUS_PROCESS_IS_TERMINATING is raised;
        `discard(result)` is called should abandoned work end after all. When no OS thread can be
        had, STATUS_INSUFFICIENT_RESOURCES is raised, and the next attempt may succeed.
        """
        processor = self._processor
        processor.require_irql(APC_LEVEL, "blocking work")
        if self._closed:
            raise RaisedStatus(STATUS_PROCESS_IS_TERMINATING, f"{self._name} is closed")
        if self._wake < 0:
            self._start()
        job = _Job(routine, args, discard, Event(processor, notification=True))
        self._pending.add(job)
        self._put(job)
        job.done.wait()
        self._pending.discard(job)
        if job.abandoned:
            raise RaisedStatus(STATUS_PROCESS_IS_TERMINATING, f"{self._name} was abandoned")
        if job.error is not None:
            raise job.error
        return job.result

    def later(
        self, routine: Callable[[], object], then: Callable[[], object] | None = None
    ) -> None:
        """Have the OS thread do it; if there is none to be had, it is done here and now."""
        errand = _Errand(routine, then)
        try:
            if self._wake < 0:
                self._start()
        except RaisedStatus:
            self._do(errand)
        else:
            self._put(errand)

    def _start(self) -> None:
        try:
            wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        except OSError as error:
            raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, f"{self._name}: {error}") from error
        try:
            threading.Thread(target=self._work, args=(wake,), name=self._name, daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            os.close(wake)
            raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, f"{self._name}: {error}") from error
        self._wake = wake

    def _put(self, job: "_Job | _Errand | None") -> None:
        self._jobs.append(job)
        os.eventfd_write(self._wake, 1)

    def _work(self, wake: int) -> None:
        while True:
            os.eventfd_read(wake)
            job = self._jobs.popleft()
            if job is None:
                os.close(wake)
                return
            if isinstance(job, _Errand):
                self._do(job)
            else:
                try:
                    job.result = job.routine(*job.arguments)
                except BaseException as error:
                    job.error = error
                self._processor.post(job.finish)
            del job  # an idle lane must keep nothing alive

    def _do(self, errand: _Errand) -> None:
        with contextlib.suppress(Exception):
            errand.routine()
        if errand.then is not None:
            self._processor.post(errand.then)

    def close(self) -> None:
        """Let the OS thread end after the work it has."""
        self._closed = True
        if not self._ending:
            self._ending = True
            if self._wake >= 0:
                self._put(None)

    def abandon(self) -> None:
        """Wait no longer for work that is stuck, and take no more; `close` is still to come.

        For the run-down of a process whose pages can no longer be had. The OS thread ends when
        the operating system lets it.
        """
        self._closed = True
        for job in self._pending:
            if not job.done.signal_state:
                job.abandoned = True
                job.done.set()
