"""System threads that serve a queue: what workers and the DPC thread have in common.

Such a thread does not exit after each piece of work, so what a thread may not leave behind is
checked whenever a routine has returned to it.

Rules: made at <= DISPATCH_LEVEL.
Spec: WDK, System Worker Threads.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.bugcheck import APC_INDEX_MISMATCH, IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.scheduling.irql import PASSIVE_LEVEL, irql_name
from kernel_proc.scheduling.kthread import KThread

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


def create_service_thread(
    processor: "Processor", routine: Callable[[], object], name: str, priority: int
) -> KThread:
    """Start a thread of the kernel itself.

    NT makes these when it starts, or has a thread made for the purpose: here it is done by who
    first needs one, who may be at DISPATCH_LEVEL, where PsCreateSystemThread is forbidden.
    """
    thread = KThread(processor, None, name, priority, is_system=True)
    thread.enter_kernel(routine)
    return thread


def call_routine(thread: KThread, kind: str, routine: Callable[..., object], *args: Any) -> None:
    """Call a driver's routine in a service thread; bug-check what it leaves behind."""
    processor = thread.processor
    try:
        routine(*args)
    except Exception as error:
        processor.unhandled_exception(error, f"{kind} {routine!r}")
    if processor.irql != PASSIVE_LEVEL:
        detail = f"{kind} {routine!r} returned at {irql_name(processor.irql)}"
        processor.bug_check(IRQL_NOT_LESS_OR_EQUAL, id(routine), processor.irql, detail=detail)
    if thread.kernel_apc_disable or thread.special_apc_disable:
        held = ", ".join(mutex.describe() for mutex in thread.mutexes) or "no mutex"
        processor.bug_check(
            APC_INDEX_MISMATCH,
            id(routine),
            -thread.special_apc_disable,
            -thread.kernel_apc_disable,
            detail=f"{kind} {routine!r} returned with APCs disabled, holding {held}",
        )
