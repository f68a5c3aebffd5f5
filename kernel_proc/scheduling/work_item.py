"""Work items: routines that system worker threads run at PASSIVE_LEVEL, where they may wait.

There are three queues, each with a priority of its workers. A worker is made when an item is
there and no worker is free for it, up to a limit; a free one waits for the next item. On one
processor one worker does everything in order as long as no routine waits.

Rules: queue at <= DISPATCH_LEVEL. An item may be queued again as soon as its routine has begun,
from that routine as well, and may then run twice at the same time.
Spec: WDK, System Worker Threads; IoQueueWorkItem.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.bugcheck import INVALID_WORK_QUEUE_ITEM
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.service_thread import call_routine, create_service_thread
from shared.nt_status import STATUS_TIMEOUT

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

CRITICAL_WORK_QUEUE: Final = 0
DELAYED_WORK_QUEUE: Final = 1
HYPER_CRITICAL_WORK_QUEUE: Final = 2

_QUEUES: Final = (("critical", 13), ("delayed", 12), ("hypercritical", 15))
MOST_WORKERS: Final = 16  # of one queue
_ENDLESS: Final = 1 << 31

_WRONG_IRQL: Final = 0xE5  # verifier 0xC4

WorkerRoutine = Callable[["WorkItem", Any], object]


class WorkItem:
    """One IO_WORKITEM; `queued` until its routine begins."""

    __slots__ = (
        "_asked",
        "_flushers",
        "_unfinished",
        "context",
        "processor",
        "queue",
        "queued",
        "routine",
    )

    def __init__(
        self,
        processor: "Processor",
        routine: WorkerRoutine,
        context: Any = None,
        queue: int = DELAYED_WORK_QUEUE,
    ) -> None:
        self.processor = processor
        self.routine = routine
        self.context = context
        self.queue = queue
        self.queued = False
        self._asked = 0  # insertions so far; each is one run
        self._unfinished: dict[int, None] = {}  # their numbers, in order
        self._flushers: list[Event] = []

    def insert(self) -> None:
        """Have a worker run it (WDK: IoQueueWorkItem).

        An item already queued is bug check 0x96: its list entry would be torn from the queue.
        """
        if not self.try_insert():
            self.processor.bug_check(
                INVALID_WORK_QUEUE_ITEM,
                id(self),
                self.queue,
                0,
                id(self.routine),
                detail=f"work item of {self.routine!r} queued while queued",
            )

    def try_insert(self) -> bool:
        """Do the same; False, and nothing changed, if it is queued (WDK: IoTryQueueWorkItem)."""
        processor = self.processor
        processor.require_irql(DISPATCH_LEVEL, "IoQueueWorkItem", _WRONG_IRQL)
        if self.queued:
            return False
        self.queued = True
        self._asked += 1
        self._unfinished[self._asked] = None
        work_queues_of(processor).queues[self.queue].add(self)
        return True

    def flush(self) -> None:
        """Wait until every run asked for before the call has ended (WDK: WdfWorkItemFlush).

        From the item's own routine this waits for ever.
        """
        processor = self.processor
        processor.require_irql(PASSIVE_LEVEL, "WdfWorkItemFlush", _WRONG_IRQL)
        last = self._asked
        ended = Event(processor, notification=False)
        self._flushers.append(ended)
        while any(number <= last for number in self._unfinished):
            ended.wait()
        self._flushers.remove(ended)

    def run(self, worker: KThread) -> None:
        """Call the routine; for the worker that took it out of its queue."""
        number = self._asked
        self.queued = False
        call_routine(worker, "work item", self.routine, self, self.context)
        del self._unfinished[number]
        for flusher in list(self._flushers):
            flusher.set()


class _WorkReady(Semaphore):
    """Counts the items no worker has claimed; what free workers wait for."""

    __slots__ = ()

    idle_place = True

    def describe(self) -> str:
        """Say what a free worker waits for."""
        return "work"


class WorkQueue:
    """The items of one priority and their workers.

    `workers` tells what each is running: None while it is free or on its way to be.
    """

    __slots__ = ("_processor", "_ready", "_stopping", "items", "name", "priority", "workers")

    def __init__(self, processor: "Processor", name: str, priority: int) -> None:
        self._processor = processor
        self._ready = _WorkReady(processor, 0, _ENDLESS)
        self._stopping = False
        self.name = name
        self.priority = priority
        self.items: deque[WorkItem] = deque()
        self.workers: dict[KThread, WorkItem | None] = {}

    def add(self, item: WorkItem) -> None:
        """Queue an item and see to it that there is a worker for it."""
        processor = self._processor
        irql = processor.raise_irql(DISPATCH_LEVEL)
        self.items.append(item)
        self._need_worker()
        self._ready.release()
        processor.lower_irql(irql)

    def _need_worker(self) -> None:
        # At DISPATCH_LEVEL, so that the new worker does not run before it is entered.
        if len(self.workers) < MOST_WORKERS and all(self.workers.values()):
            name = f"{self.name} worker"
            worker = create_service_thread(self._processor, self._serve, name, self.priority)
            self.workers[worker] = None

    def _serve(self) -> None:
        worker = self._processor.current_thread
        assert worker is not None
        while self.items or not self._stopping:
            self._ready.wait()
            if self.items:
                self._run_next(worker)
        del self.workers[worker]

    def _run_next(self, worker: KThread) -> None:
        processor = self._processor
        irql = processor.raise_irql(DISPATCH_LEVEL)
        item = self.workers[worker] = self.items.popleft()
        if self.items:  # should this routine wait, another worker goes on
            self._need_worker()
        processor.lower_irql(irql)
        item.run(worker)
        self.workers[worker] = None

    def stop(self, timeout_ns: int | None = None) -> bool:
        """End the workers when the queue is empty; the next item makes others. False if too late.

        The time counts for each worker.
        """
        self._stopping = True
        if self.workers:
            self._ready.release(len(self.workers))  # none is left waiting, whoever takes which
        while self.workers:
            worker = next(iter(self.workers))
            if worker.wait(timeout_ns) == STATUS_TIMEOUT:
                return False
        self._stopping = False
        self._ready.signal_state = 0
        return True

    def inspect(self) -> dict[str, Any]:
        """Return what is queued, and what each worker runs."""
        return {
            "priority": self.priority,
            "queued": [repr(item.routine) for item in self.items],
            "workers": {
                str(worker): repr(item.routine) if item is not None else "free"
                for worker, item in self.workers.items()
            },
        }


class WorkQueues:
    """The three queues of a processor, indexed by their NT numbers."""

    __slots__ = ("queues",)

    def __init__(self, processor: "Processor") -> None:
        self.queues = [WorkQueue(processor, name, priority) for name, priority in _QUEUES]

    def inspect(self) -> dict[str, Any]:
        """Return the state of each queue by name."""
        return {queue.name: queue.inspect() for queue in self.queues}


def work_queues_of(processor: "Processor") -> WorkQueues:
    """Return the work queues of a processor."""
    if processor.work_queues is None:
        processor.work_queues = WorkQueues(processor)
    return processor.work_queues


def stop_service_threads(processor: "Processor", timeout_ns: int | None = None) -> bool:
    """Let workers and the DPC thread finish what is queued, and end; for a machine that stops.

    False if one does not in time, which counts for each of them.

    Rules: PASSIVE_LEVEL, in a system thread that is none of them.
    """
    processor.require_irql(PASSIVE_LEVEL, "stop_service_threads")
    queues = processor.work_queues.queues if processor.work_queues is not None else []
    ended = [queue.stop(timeout_ns) for queue in queues]
    if processor.dpc_thread is not None:
        ended.append(processor.dpc_thread.stop(timeout_ns))
    return all(ended)
