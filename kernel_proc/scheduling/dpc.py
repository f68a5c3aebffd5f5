"""Deferred procedure calls.

A DPC of medium or high importance queued below DISPATCH_LEVEL has run when `insert` returns; at
or above it runs when the IRQL falls. One of low importance does the same while few DPCs are asked
for; else it waits until the queue is deep enough, another asks for the drain, or the processor
is idle.

Rules: any IRQL; the routine runs at DISPATCH_LEVEL and never waits.
Spec: WDK, Organization of DPC Queues; KeInsertQueueDpc; docs/dpcs-and-work-items.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.bugcheck import DPC_WATCHDOG_VIOLATION
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.pending import DPC_REQUESTED
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

LOW_IMPORTANCE: Final = 0
MEDIUM_IMPORTANCE: Final = 1
HIGH_IMPORTANCE: Final = 2
MEDIUM_HIGH_IMPORTANCE: Final = 3  # differs from medium on other processors only

DPC_OBJECT_TYPE: Final = 0x13  # NT's DpcObject

DeferredRoutine = Callable[["Dpc", Any, Any, Any], object]


class Dpc:
    """One DPC object (WDK: KDPC)."""

    __slots__ = (
        "argument1",
        "argument2",
        "context",
        "importance",
        "number",
        "processor",
        "queued",
        "routine",
        "type",
    )

    def __init__(
        self, processor: "Processor", routine: DeferredRoutine, context: Any = None
    ) -> None:
        self.processor = processor
        self.type = DPC_OBJECT_TYPE
        self.number = 0  # target processor: there is one
        self.importance = MEDIUM_IMPORTANCE
        self.routine = routine
        self.context = context
        self.argument1: Any = None
        self.argument2: Any = None
        self.queued = False

    def insert(self, argument1: Any = None, argument2: Any = None) -> bool:
        """Queue it; False, and nothing changed, if it is queued (WDK: KeInsertQueueDpc)."""
        if self.queued:
            return False
        self.queued = True
        self.argument1 = argument1
        self.argument2 = argument2
        processor = self.processor
        queue = processor.dpc_queue
        if self.importance == HIGH_IMPORTANCE:
            queue.appendleft(self)
        else:
            queue.append(self)
        if (
            self.importance != LOW_IMPORTANCE
            or len(queue) >= processor.dpc_depth_limit
            or few_dpcs_requested(processor, len(queue) - 1)
        ):
            processor.pending |= DPC_REQUESTED
            if processor.irql < DISPATCH_LEVEL:
                processor.take_pending()
        return True

    def remove(self) -> bool:
        """Take it out of the queue; False if it is not there (WDK: KeRemoveQueueDpc)."""
        if not self.queued:
            return False
        self.processor.dpc_queue.remove(self)
        self.queued = False
        return True

    def set_importance(self, importance: int) -> None:
        """Choose place and haste of the next insertion (WDK: KeSetImportanceDpc)."""
        self.importance = importance

    def set_target_processor(self, number: int) -> int:
        """Choose the processor of the next insertion (WDK: KeSetTargetProcessorDpcEx).

        There is number 0; any other is STATUS_INVALID_PARAMETER and changes nothing.
        """
        if number != 0:
            return STATUS_INVALID_PARAMETER
        self.number = number
        return STATUS_SUCCESS


def few_dpcs_requested(processor: "Processor", waiting: int) -> bool:
    """Tell whether DPCs come so rarely that one of low importance need not wait for others.

    `waiting` is how many were in the queue before it.
    """
    rate = processor.dpc_rate.update(processor.clock.now_ns(), processor.dpcs + waiting)
    return rate < processor.minimum_dpc_rate


class CallBarrier:
    """What the routines of one generic call meet at; both system arguments are this object."""

    __slots__ = ("running",)

    def __init__(self, processors: int) -> None:
        self.running = processors

    def synchronize(self) -> bool:
        """Meet the others; True for one of them (WDK: KeSignalCallDpcSynchronize).

        On one processor there is nobody to wait for, and the one chosen is always the caller.
        """
        return True

    def done(self) -> None:
        """Say that the routine has finished here (WDK: KeSignalCallDpcDone)."""
        self.running -= 1


def generic_call_dpc(processor: "Processor", routine: DeferredRoutine, context: Any = None) -> None:
    """Run `routine` once on every processor and return when all have (WDK: KeGenericCallDpc)."""
    processor.require_irql(APC_LEVEL, "KeGenericCallDpc")
    barrier = CallBarrier(1)
    dpc = Dpc(processor, routine, context)
    dpc.importance = HIGH_IMPORTANCE
    dpc.insert(barrier, barrier)
    if barrier.running:  # NT would spin here at DISPATCH_LEVEL until the watchdog bites
        processor.bug_check(
            DPC_WATCHDOG_VIOLATION, detail=f"{routine!r} never called KeSignalCallDpcDone"
        )
