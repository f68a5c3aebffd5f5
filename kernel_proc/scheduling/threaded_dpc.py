"""Threaded DPCs: run by a thread of their own, at PASSIVE_LEVEL and above every other thread.

A machine can be made without them; they are ordinary DPCs then. Their routines therefore keep the
rules for DISPATCH_LEVEL, and the verifier holds them to it: a wait is bug check 0xB8 even when the
object is signalled, and what needs a lower level is 0x0A or its 0xC4.

Rules: any IRQL.
Spec: WDK, Introduction to Threaded DPCs; KeInitializeThreadedDpc.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.dpc import (
    HIGH_IMPORTANCE,
    LOW_IMPORTANCE,
    MEDIUM_IMPORTANCE,
    DeferredRoutine,
    Dpc,
    few_dpcs_requested,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.service_thread import call_routine, create_service_thread
from shared.nt_status import STATUS_TIMEOUT

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

THREADED_DPC_OBJECT_TYPE: Final = 0x18  # NT's ThreadedDpcObject
DPC_THREAD_PRIORITY: Final = 31


class ThreadedDpc(Dpc):
    """A KDPC from KeInitializeThreadedDpc."""

    __slots__ = ()

    def __init__(
        self, processor: "Processor", routine: DeferredRoutine, context: Any = None
    ) -> None:
        super().__init__(processor, routine, context)
        self.type = THREADED_DPC_OBJECT_TYPE

    def insert(self, argument1: Any = None, argument2: Any = None) -> bool:
        """Queue it; False, and nothing changed, if it is queued (WDK: KeInsertQueueDpc).

        Inserted by a thread below DISPATCH_LEVEL it has run on return, as an ordinary one has.
        """
        processor = self.processor
        if not processor.threaded_dpcs:
            return super().insert(argument1, argument2)
        if self.queued:
            return False
        self.queued = True
        self.argument1 = argument1
        self.argument2 = argument2
        dpc_thread_of(processor).queue_dpc(self)
        return True

    def remove(self) -> bool:
        """Take it out of the queue; False if it is not there (WDK: KeRemoveQueueDpc)."""
        processor = self.processor
        if not processor.threaded_dpcs:
            return super().remove()
        if not self.queued:
            return False
        dpc_thread_of(processor).queue.remove(self)
        self.queued = False
        return True


class _WakeUp(Event):
    """What the DPC thread waits for between two rounds."""

    __slots__ = ()

    idle_place = True

    def describe(self) -> str:
        """Say what the idle thread waits for."""
        return "threaded DPCs"


class DpcThread:
    """The queue of threaded DPCs, and the thread that empties it.

    An interrupt may queue one at any level, where no thread can be woken, so an ordinary DPC
    wakes the thread. It is of low importance while all queued here are, so that it waits as long.
    """

    __slots__ = (
        "_in_routine",
        "_processor",
        "_stopping",
        "_wake_dpc",
        "_wake_up",
        "queue",
        "thread",
    )

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor
        self._stopping = False
        self._in_routine = False
        self._wake_dpc = Dpc(processor, self._wake)
        self._wake_up = _WakeUp(processor, notification=False)
        self.queue: deque[ThreadedDpc] = deque()
        self.thread: KThread | None = None

    @property
    def is_busy(self) -> bool:
        """Tell whether a routine has begun and not ended, or one is to run."""
        return self._in_routine or bool(self.queue)

    def inspect(self) -> dict[str, Any]:
        """Return what is queued and whether a routine is running."""
        return {
            "queued": [repr(dpc.routine) for dpc in self.queue],
            "in_routine": self._in_routine,
        }

    def queue_dpc(self, dpc: ThreadedDpc) -> None:
        """Put a DPC into the queue and have it emptied as its importance asks."""
        if dpc.importance == HIGH_IMPORTANCE:
            self.queue.appendleft(dpc)
        else:
            self.queue.append(dpc)
        processor = self._processor
        wake_dpc = self._wake_dpc
        if (
            dpc.importance != LOW_IMPORTANCE
            or len(self.queue) >= processor.dpc_depth_limit
            or few_dpcs_requested(processor, len(self.queue) - 1)
        ):
            wake_dpc.importance = MEDIUM_IMPORTANCE
            if not wake_dpc.insert():  # it waits there for others of low importance
                processor.request_dpcs()
        else:
            wake_dpc.importance = LOW_IMPORTANCE
            wake_dpc.insert()

    def _wake(self, *_: Any) -> None:
        self._processor.dpcs -= 1  # those it wakes the thread for are counted
        if self.thread is None:
            self.thread = create_service_thread(
                self._processor, self._serve, "threaded DPCs", DPC_THREAD_PRIORITY
            )
        self._wake_up.set()

    def _serve(self) -> None:
        while not self._stopping:
            self._wake_up.wait()
            while self.queue:
                self._run_next()
        self._stopping = False
        self.thread = None

    def _run_next(self) -> None:
        processor = self._processor
        dpc = self.queue.popleft()
        dpc.queued = False
        processor.dpcs += 1
        thread = self.thread
        assert thread is not None
        self._in_routine = True
        if processor.verifier:
            processor.dispatch_rules_from = PASSIVE_LEVEL
        arguments = (dpc, dpc.context, dpc.argument1, dpc.argument2)
        call_routine(thread, "threaded DPC routine", dpc.routine, *arguments)
        processor.dispatch_rules_from = DISPATCH_LEVEL
        self._in_routine = False

    def stop(self, timeout_ns: int | None = None) -> bool:
        """End the thread when its queue is empty; the next DPC makes another. False if too late."""
        thread = self.thread
        if thread is None:
            return True
        self._stopping = True
        self._wake_up.set()
        return thread.wait(timeout_ns) != STATUS_TIMEOUT


def dpc_thread_of(processor: "Processor") -> DpcThread:
    """Return the DPC thread of a processor."""
    if processor.dpc_thread is None:
        processor.dpc_thread = DpcThread(processor)
    return processor.dpc_thread
