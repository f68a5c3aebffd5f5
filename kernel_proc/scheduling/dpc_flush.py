"""Waiting for queued DPCs.

Spec: WDK, KeFlushQueuedDpcs.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.scheduling.threaded_dpc import ThreadedDpc

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

_WRONG_IRQL: Final = 0xE5  # verifier 0xC4


def flush_queued_dpcs(processor: "Processor") -> None:
    """Return when every DPC queued before the call has run; PASSIVE_LEVEL only.

    Those of low importance, which alone can be queued at that level, run at once. Threaded ones
    are waited for behind a DPC of our own at the tail: what is queued later is not.
    """
    processor.require_irql(PASSIVE_LEVEL, "KeFlushQueuedDpcs", _WRONG_IRQL)
    if processor.dpc_queue:
        processor.request_dpcs()
    thread = processor.dpc_thread
    if thread is not None and thread.is_busy:
        reached = Event(processor, notification=True)
        marker = ThreadedDpc(processor, _set_event, reached)
        marker.insert()
        reached.wait()


def _set_event(dpc: Dpc, event: Event, *_: Any) -> None:
    event.set()
