"""What a caller has given up: ended where it is, at once, and never done if it has not begun.

Rules: runs in the dispatcher; behind the request it names it would come too late.
Spec: shared/envelope.py, KIND_CANCEL_SYNCHRONOUS; WDK: NtCancelSynchronousIoFile.
"""

from collections.abc import Iterable

from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.scheduling.wait import DispatcherObject
from kernel_proc.server.session import UserThread
from shared.nt_status import STATUS_ALERTED


def give_up(caller: UserThread, request_id: int) -> None:
    """End a request its caller has given up; unknown ones are ignored."""
    queued = caller.queued
    if request_id not in queued:
        return
    active = caller.active
    if request_id != queued[0] or active is None:
        caller.abandoned.add(request_id)
    elif isinstance(active, DeviceControlRequest):
        _cancel(caller, active)
    else:
        _break_off(caller, active)


def _break_off(caller: UserThread, objects: Iterable[DispatcherObject]) -> None:
    # The service's own wait for these objects; one that a kernel APC has begun on top goes on.
    for waited in objects:
        for wait in list(waited.waits):
            if wait.thread is caller.kthread and wait.status is None:
                wait.end(STATUS_ALERTED)


def _cancel(caller: UserThread, active: DeviceControlRequest) -> None:
    kthread = caller.kthread
    for irp in kthread.irps:
        if irp.request is active:
            cancel_irp(irp)
            return
    # No IRP yet: it waits for memory of its process, or at the lock of a synchronous file.
    active.given_up = True
    assert kthread.process is not None
    file = kthread.process.handle_table.entries.get(active.handle, (None, 0))[0]
    if isinstance(file, FileObject):
        _break_off(caller, (file.lock_event,))
