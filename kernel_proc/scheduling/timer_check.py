"""Looks for timers and DPCs that would call code which is about to go away.

Rules: <= DISPATCH_LEVEL.
Spec: WDK, Bug Check 0xC7 TIMER_OR_DPC_INVALID. NT: KeCheckForTimer.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.bugcheck import TIMER_OR_DPC_INVALID
from kernel_proc.scheduling.timer import Timer

if TYPE_CHECKING:
    from kernel_proc.scheduling.dpc import Dpc
    from kernel_proc.scheduling.processor import Processor


def check_no_timer(processor: "Processor", module: str, owner: str) -> None:
    """Stop the machine if a set timer or a queued DPC would call `module`, code of `owner`."""
    for what, holder, dpc in _queued(processor):
        if _is_code_of(dpc.routine, module):
            processor.bug_check(
                TIMER_OR_DPC_INVALID,
                id(holder),
                detail=f"{owner} unloads and leaves a {what} that calls {dpc.routine!r}",
            )


def _queued(processor: "Processor") -> "Iterator[tuple[str, object, Dpc]]":
    for deadline in processor.dispatcher.timers.heap:
        timer = deadline.target
        if isinstance(timer, Timer) and timer.dpc is not None:
            yield "set timer", timer, timer.dpc
    for dpc in processor.dpc_queue:
        yield "queued DPC", dpc, dpc


def _is_code_of(routine: Callable[..., Any], module: str) -> bool:
    name = getattr(routine, "__module__", None) or ""
    return name == module or name.startswith(f"{module}.")
