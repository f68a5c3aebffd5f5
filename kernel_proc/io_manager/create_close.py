"""Opening devices, and telling drivers of the last handle and the last reference.

Rules: PASSIVE_LEVEL, in the calling thread; `delete_file` at <= DISPATCH_LEVEL.
Spec: WDK, IRP_MJ_CREATE; IRP_MJ_CLEANUP; IRP_MJ_CLOSE; IoGetDeviceObjectPointer.
"""

from typing import TYPE_CHECKING

from kernel_proc.io_manager.completion import retire_irp
from kernel_proc.io_manager.device_stack import attached_device, call_driver
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.irp import IoStackLocation, IoStatusBlock, Irp
from kernel_proc.io_manager.irp_flags import (
    DO_EXCLUSIVE,
    IRP_CLOSE_OPERATION,
    IRP_CREATE_OPERATION,
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_SYNCHRONOUS_API,
)
from kernel_proc.io_manager.thread_irps import queue_thread_irp, wait_for_irp
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_CANCELLED,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_PENDING,
    nt_success,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread


def open_device(
    io: "IoManager",
    thread: "KThread",
    name: str,
    desired_access: int,
    synchronous: bool,
    alertable: bool = False,
) -> tuple[int, FileObject | None]:
    """Send IRP_MJ_CREATE to a named device; return its status and the open file."""
    device = io.devices.get(name.lower())
    if device is None or device.delete_pending:
        return STATUS_OBJECT_NAME_NOT_FOUND, None
    if device.flags & DO_EXCLUSIVE and device.open_count:
        return STATUS_ACCESS_DENIED, None
    device.open_count += 1
    file = FileObject(device, thread.process, synchronous, alertable)
    status = _send_create(io, thread, file, desired_access)
    if not nt_success(status):
        device.open_count -= 1  # a file that was never opened is not closed
        return status, None
    return status, file


def _send_create(io: "IoManager", thread: "KThread", file: FileObject, desired_access: int) -> int:
    irp, location = _new_irp(io, file, IRP_MJ_CREATE)
    location.desired_access = desired_access
    event = Event(io.processor, notification=True)
    iosb = IoStatusBlock()
    irp.flags = IRP_CREATE_OPERATION | IRP_SYNCHRONOUS_API
    irp.requestor_mode = USER_MODE
    irp.user_event = event
    irp.user_iosb = iosb
    irp.file_object = file
    file.reference()
    queue_thread_irp(irp, thread)
    status = call_driver(attached_device(file.device), irp)
    if status != STATUS_PENDING:
        return status
    return iosb.status if wait_for_irp(irp, event) else STATUS_CANCELLED


def _new_irp(io: "IoManager", file: FileObject, major: int) -> tuple[Irp, IoStackLocation]:
    io.irps_allocated += 1
    irp = Irp(io, attached_device(file.device).stack_size)
    location = irp.stack[irp.current_location - 1]
    location.major_function = major
    location.file_object = file
    return irp, location


def close_last_handle(io: "IoManager", thread: "KThread", file: FileObject, lock: bool) -> None:
    """Send IRP_MJ_CLEANUP: the file has no handle any more; its IRPs may still be out.

    A synchronous file's lock is waited for, as NT does, unless its threads have been ended.
    """
    locked = lock and file.synchronous and not file.lock()
    _send_and_wait(io, thread, file, IRP_MJ_CLEANUP)
    if locked:
        file.unlock()
    file.dereference()


def _send_and_wait(io: "IoManager", thread: "KThread", file: FileObject, major: int) -> None:
    # Cleanup and close write the result directly; no APC is needed, and nobody cancels them.
    irp, _ = _new_irp(io, file, major)
    event = Event(io.processor, notification=True)
    irp.flags = IRP_CLOSE_OPERATION | IRP_SYNCHRONOUS_API
    irp.user_event = event
    irp.thread = thread
    if call_driver(attached_device(file.device), irp) == STATUS_PENDING:
        event.wait()
    retire_irp(irp)


def delete_file(file: FileObject) -> None:
    """Send IRP_MJ_CLOSE: nothing refers to the file any more.

    Below APC_LEVEL in a thread it is sent at once; elsewhere a system thread sends it.
    """
    processor = file.device.processor
    table = file.process.handle_table if file.process is not None else None
    if table is not None:
        table.closing += 1
    thread = processor.current_thread
    if thread is None or processor.irql != PASSIVE_LEVEL:
        processor.post(lambda: _close_in_system_thread(file))
    else:
        _close(file, thread)


def _close_in_system_thread(file: FileObject) -> None:
    processor = file.device.processor

    def close() -> None:
        thread = processor.current_thread
        assert thread is not None
        _close(file, thread)

    create_system_thread(processor, close, name=f"close of {file.device}")


def _close(file: FileObject, thread: "KThread") -> None:
    device = file.device
    io = device.io
    _send_and_wait(io, thread, file, IRP_MJ_CLOSE)
    device.open_count -= 1
    table = file.process.handle_table if file.process is not None else None
    if table is not None:
        table.closing -= 1
        if not table.closing and io.close_watches:
            watch = io.close_watches.get(table)
            if watch is not None:
                watch.set()


def get_device_object_pointer(
    io: "IoManager", thread: "KThread", name: str, desired_access: int
) -> tuple[int, FileObject | None, "DeviceObject | None"]:
    """Open a device for kernel code; return the file and the top of its stack.

    Who is done with it dereferences the file (WDK: IoGetDeviceObjectPointer).
    """
    status, file = open_device(io, thread, name, desired_access, synchronous=False)
    if file is None:
        return status, None, None
    return status, file, attached_device(file.device)
