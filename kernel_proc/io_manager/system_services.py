"""The system services of a user thread: files, events, waits, cancelling.

Each returns an NTSTATUS, with the handle where one is made; bad handles, wrong types and missing
rights are statuses.

Rules: PASSIVE_LEVEL, in the calling thread, which may wait.
Spec: WDK, NtCreateFile, NtClose, NtDuplicateObject, NtCreateEvent, NtSetEvent,
NtWaitForSingleObject, NtCancelIoFile, NtCancelIoFileEx, NtCancelSynchronousIoFile.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.cancellation import cancel_matching, threads_of, wait_for_irps
from kernel_proc.io_manager.create_close import open_device
from kernel_proc.io_manager.device_control import DeviceControlRequest, device_io_control_file
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.handle_table import reference_object
from kernel_proc.io_manager.irp_flags import (
    EVENT_ALL_ACCESS,
    EVENT_MODIFY_STATE,
    EVENT_QUERY_STATE,
    FILE_ALL_ACCESS,
    FILE_GENERIC_EXECUTE,
    FILE_GENERIC_READ,
    FILE_GENERIC_WRITE,
    FILE_READ_ATTRIBUTES,
    GENERIC_ALL,
    GENERIC_EXECUTE,
    GENERIC_READ,
    GENERIC_WRITE,
    MAXIMUM_ALLOWED,
    SYNCHRONIZE,
)
from kernel_proc.io_manager.run_down import close_file_handle, run_down_process, run_down_thread
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.wait import USER_MODE, DispatcherObject
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INVALID_HANDLE,
    STATUS_NOT_FOUND,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TOO_MANY_OPENED_FILES,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.handle_table import HandleTable
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread

__all__ = [
    "DeviceControlRequest",
    "cancel_io_file",
    "cancel_io_file_ex",
    "cancel_synchronous_io",
    "close_handle",
    "create_event",
    "create_file",
    "device_io_control_file",
    "duplicate_handle",
    "pulse_event",
    "query_event",
    "reset_event",
    "run_down_process",
    "run_down_thread",
    "set_event",
    "wait_for_object",
    "waitable_objects",
]

_GENERIC: Final = (
    (GENERIC_READ, FILE_GENERIC_READ),
    (GENERIC_WRITE, FILE_GENERIC_WRITE),
    (GENERIC_EXECUTE, FILE_GENERIC_EXECUTE),
    (GENERIC_ALL, FILE_ALL_ACCESS),
    (MAXIMUM_ALLOWED, FILE_ALL_ACCESS),
)


def create_file(
    io: "IoManager",
    thread: "KThread",
    name: str,
    desired_access: int,
    synchronous: bool,
    alertable: bool = False,
) -> tuple[int, int]:
    """Open a device by name; the handle grants what was asked for (as CreateFile opens it).

    The requests of an `alertable` synchronous file are broken off by user APCs and alerts
    (NT: FILE_SYNCHRONOUS_IO_ALERT).
    """
    table = _table(thread)
    if table is None:
        return STATUS_THREAD_IS_TERMINATING, 0
    if len(table.entries) >= table.limit:
        return STATUS_TOO_MANY_OPENED_FILES, 0
    granted = _map_access(desired_access)
    status, file = open_device(io, thread, name, granted, synchronous, alertable)
    if file is None:
        return status, 0
    file.handle_count = 1
    handle = table.insert(file, granted) if not thread.terminating else 0
    if not handle:
        # The table filled up, or the process began to end, while the driver was asked.
        close_file_handle(io, thread, file)
        return STATUS_TOO_MANY_OPENED_FILES, 0
    return status, handle


def _table(thread: "KThread") -> "HandleTable | None":
    process = thread.process
    if process is None or process.exiting or thread.terminating:
        return None
    table: HandleTable = process.handle_table
    return table


def _map_access(desired: int) -> int:
    # Generic bits become file rights; every file can be waited for, as with CreateFile.
    granted = desired | SYNCHRONIZE | FILE_READ_ATTRIBUTES
    for generic, rights in _GENERIC:
        if granted & generic:
            granted = granted & ~generic | rights
    return granted & FILE_ALL_ACCESS


def close_handle(io: "IoManager", thread: "KThread", handle: int) -> int:
    """Close a handle; the last one of a file has the driver clean up."""
    process = thread.process
    target = process.handle_table.remove(handle) if process is not None else None
    if target is None:
        return STATUS_INVALID_HANDLE
    if isinstance(target, FileObject):
        close_file_handle(io, thread, target)
    return STATUS_SUCCESS


def duplicate_handle(
    io: "IoManager", thread: "KThread", handle: int, desired_access: int | None = None
) -> tuple[int, int]:
    """Make a second handle of the same object; None asks for the same access.

    No driver is told: both handles share one file object.
    """
    table = _table(thread)
    if table is None:
        return STATUS_THREAD_IS_TERMINATING, 0
    entry = table.entries.get(handle)
    if entry is None:
        return STATUS_INVALID_HANDLE, 0
    target, granted = entry
    if desired_access is not None:
        if desired_access & ~granted:
            return STATUS_ACCESS_DENIED, 0
        granted = desired_access
    duplicate = table.insert(target, granted)
    if not duplicate:
        return STATUS_TOO_MANY_OPENED_FILES, 0
    if isinstance(target, FileObject):
        target.handle_count += 1
    return STATUS_SUCCESS, duplicate


def create_event(
    io: "IoManager", thread: "KThread", notification: bool, signaled: bool
) -> tuple[int, int]:
    """Make an event without a name."""
    table = _table(thread)
    if table is None:
        return STATUS_THREAD_IS_TERMINATING, 0
    handle = table.insert(Event(io.processor, notification, signaled), EVENT_ALL_ACCESS)
    return (STATUS_SUCCESS, handle) if handle else (STATUS_TOO_MANY_OPENED_FILES, 0)


def set_event(io: "IoManager", thread: "KThread", handle: int) -> int:
    """Signal an event."""
    status, event = reference_object(thread, handle, Event, EVENT_MODIFY_STATE)
    if event is not None:
        event.set()
    return status


def reset_event(io: "IoManager", thread: "KThread", handle: int) -> int:
    """Clear an event."""
    status, event = reference_object(thread, handle, Event, EVENT_MODIFY_STATE)
    if event is not None:
        event.reset()
    return status


def pulse_event(io: "IoManager", thread: "KThread", handle: int) -> int:
    """Satisfy who waits for an event now, and leave it cleared."""
    status, event = reference_object(thread, handle, Event, EVENT_MODIFY_STATE)
    if event is not None:
        event.pulse()
    return status


def query_event(io: "IoManager", thread: "KThread", handle: int) -> tuple[int, int]:
    """Return an event's state."""
    status, event = reference_object(thread, handle, Event, EVENT_QUERY_STATE)
    return status, event.read_state() if event is not None else 0


def waitable_objects(
    thread: "KThread", handles: Sequence[int]
) -> tuple[int, list[DispatcherObject]]:
    """Return what a wait for these handles waits for: events, and the events of files."""
    objects: list[DispatcherObject] = []
    for handle in handles:
        status, target = reference_object(thread, handle, (Event, FileObject), SYNCHRONIZE)
        if target is None:
            return status, []
        objects.append(target.event if isinstance(target, FileObject) else target)
    return STATUS_SUCCESS, objects


def wait_for_object(
    io: "IoManager",
    thread: "KThread",
    handle: int,
    timeout_ns: int | None,
    alertable: bool = True,
) -> int:
    """Wait for an event, or for a file: its event, which the end of a request without one sets."""
    status, objects = waitable_objects(thread, (handle,))
    if status != STATUS_SUCCESS:
        return status
    return objects[0].wait(timeout_ns, alertable=alertable, mode=USER_MODE)


def cancel_io_file(io: "IoManager", thread: "KThread", handle: int) -> int:
    """Cancel the calling thread's requests on a file and wait until they have ended."""
    status, file = reference_object(thread, handle, FileObject, 0)
    if file is not None:
        wait_for_irps(io, thread, lambda irp: irp.file_object is file)
    return status


def cancel_io_file_ex(
    io: "IoManager", thread: "KThread", handle: int, request: DeviceControlRequest | None = None
) -> int:
    """Cancel a file's requests of any thread of the process, or one request; do not wait.

    STATUS_NOT_FOUND if there was nothing to cancel.
    """
    status, file = reference_object(thread, handle, FileObject, 0)
    if file is None or thread.process is None:
        return status
    cancelled = sum(
        cancel_matching(
            owner,
            lambda irp: irp.file_object is file and (request is None or irp.request is request),
        )
        for owner in threads_of(thread.process)
    )
    return STATUS_SUCCESS if cancelled else STATUS_NOT_FOUND


def cancel_synchronous_io(target: "KThread") -> int:
    """Cancel the request on a synchronous file that a thread is in; do not wait.

    STATUS_NOT_FOUND if it is in none.
    """
    cancelled = cancel_matching(
        target, lambda irp: irp.file_object is not None and irp.file_object.synchronous
    )
    return STATUS_SUCCESS if cancelled else STATUS_NOT_FOUND
