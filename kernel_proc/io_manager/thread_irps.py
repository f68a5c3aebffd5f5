"""IRPs that belong to a thread: entering them in its list, and waiting for them.

Rules: the thread's own context, <= APC_LEVEL.
Spec: WDK, IRP (ThreadListEntry); Canceling IRPs. NT: IoQueueThreadIrp,
IopAbortInterruptedIrp.
"""

from typing import TYPE_CHECKING

from kernel_proc.io_manager.cancellation import CANCEL_DEADLINE_NS, cancel_irp, detach_irp
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_TIMEOUT

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.event import Event
    from kernel_proc.scheduling.kthread import KThread


def queue_thread_irp(irp: "Irp", thread: "KThread") -> None:
    """Enter `irp` in its thread's list, so that the thread's exit cancels it."""
    irp.thread = thread
    irp.on_thread_list = True
    thread.irps[irp] = None


def wait_for_irp(irp: "Irp", event: "Event", alertable: bool = False) -> bool:
    """Wait for the event that tells of an IRP's end; cancel it if the wait is broken off.

    An alert, a user APC or the end of the thread breaks it off. The IRP is then waited for as
    long as at a thread's exit; False if its driver kept it even so and it was detached.
    """
    if not event.wait(alertable=alertable, mode=USER_MODE):
        return True
    cancel_irp(irp)
    if event.wait(CANCEL_DEADLINE_NS) != STATUS_TIMEOUT or not irp.on_thread_list:
        return True
    detach_irp(irp)
    return False
