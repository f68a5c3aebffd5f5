"""What a driver uses, in one place, as <wdm.h> gathers it for a driver in C.

    from kernel_proc.io_manager import wdm

Each name is NT's in Python dress, and its docstring says which. What a control code is made of and
the common statuses come with it, as there; all statuses are in `shared.nt_status`.

Spec: docs/writing-a-driver.md.
"""

from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue, CsqContext
from kernel_proc.io_manager.cancellation import (
    acquire_cancel_spin_lock,
    cancel_irp,
    release_cancel_spin_lock,
    set_cancel_routine,
)
from kernel_proc.io_manager.completion import complete_request, finish_request
from kernel_proc.io_manager.create_close import get_device_object_pointer
from kernel_proc.io_manager.device_stack import (
    attach_device_to_device_stack,
    attached_device,
    call_driver,
    detach_device,
)
from kernel_proc.io_manager.driver_object import (
    DeviceObject,
    DriverObject,
    create_device,
    delete_device,
)
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.io_build import (
    build_asynchronous_fsd_request,
    build_device_io_control_request,
    build_synchronous_fsd_request,
    make_associated_irp,
)
from kernel_proc.io_manager.irp import (
    IoStackLocation,
    IoStatusBlock,
    Irp,
    allocate_irp,
    copy_current_irp_stack_location_to_next,
    free_irp,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    initialize_irp,
    mark_irp_pending,
    reuse_irp,
    set_completion_routine,
    set_next_irp_stack_location,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.irp_flags import (
    DO_BUFFERED_IO,
    DO_DIRECT_IO,
    DO_EXCLUSIVE,
    IO_NETWORK_INCREMENT,
    IO_NO_INCREMENT,
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_FLUSH_BUFFERS,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
    IRP_MJ_READ,
    IRP_MJ_SHUTDOWN,
    IRP_MJ_WRITE,
)
from kernel_proc.io_manager.user_buffers import read_user_buffer, write_user_buffer
from kernel_proc.memory.mdl import (
    IO_MODIFY_ACCESS,
    IO_READ_ACCESS,
    IO_WRITE_ACCESS,
    allocate_mdl,
    build_for_nonpaged_pool,
    free_mdl,
    map_locked_pages,
    probe_and_lock_pages,
    unlock_pages,
    unmap_locked_pages,
)
from kernel_proc.memory.pool import NON_PAGED_POOL, PAGED_POOL
from kernel_proc.scheduling.device_queue import DeviceQueue, DeviceQueueEntry
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import (
    KERNEL_MODE,
    USER_MODE,
    delay_execution,
    wait_for_multiple,
)
from kernel_proc.scheduling.work_item import WorkItem
from shared.ioctl_codes import (
    FILE_ANY_ACCESS,
    FILE_READ_ACCESS,
    FILE_WRITE_ACCESS,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    ctl_code,
)
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

__all__ = [
    "APC_LEVEL",
    "DISPATCH_LEVEL",
    "DO_BUFFERED_IO",
    "DO_DIRECT_IO",
    "DO_EXCLUSIVE",
    "FILE_ANY_ACCESS",
    "FILE_READ_ACCESS",
    "FILE_WRITE_ACCESS",
    "IO_MODIFY_ACCESS",
    "IO_NETWORK_INCREMENT",
    "IO_NO_INCREMENT",
    "IO_READ_ACCESS",
    "IO_WRITE_ACCESS",
    "IRP_MJ_CLEANUP",
    "IRP_MJ_CLOSE",
    "IRP_MJ_CREATE",
    "IRP_MJ_DEVICE_CONTROL",
    "IRP_MJ_FLUSH_BUFFERS",
    "IRP_MJ_INTERNAL_DEVICE_CONTROL",
    "IRP_MJ_READ",
    "IRP_MJ_SHUTDOWN",
    "IRP_MJ_WRITE",
    "KERNEL_MODE",
    "METHOD_BUFFERED",
    "METHOD_IN_DIRECT",
    "METHOD_NEITHER",
    "METHOD_OUT_DIRECT",
    "NON_PAGED_POOL",
    "PAGED_POOL",
    "PASSIVE_LEVEL",
    "STATUS_BUFFER_TOO_SMALL",
    "STATUS_CANCELLED",
    "STATUS_INSUFFICIENT_RESOURCES",
    "STATUS_INVALID_DEVICE_REQUEST",
    "STATUS_INVALID_PARAMETER",
    "STATUS_MORE_PROCESSING_REQUIRED",
    "STATUS_PENDING",
    "STATUS_SUCCESS",
    "USER_MODE",
    "CancelSafeQueue",
    "CsqContext",
    "DeviceObject",
    "DeviceQueue",
    "DeviceQueueEntry",
    "Dpc",
    "DriverObject",
    "Event",
    "FastMutex",
    "FileObject",
    "GuardedMutex",
    "Interrupt",
    "IoStackLocation",
    "IoStatusBlock",
    "Irp",
    "Mutex",
    "RaisedStatus",
    "Semaphore",
    "SpinLock",
    "Timer",
    "WorkItem",
    "acquire_cancel_spin_lock",
    "allocate_irp",
    "allocate_mdl",
    "attach_device_to_device_stack",
    "attached_device",
    "build_asynchronous_fsd_request",
    "build_device_io_control_request",
    "build_for_nonpaged_pool",
    "build_synchronous_fsd_request",
    "call_driver",
    "cancel_irp",
    "complete_request",
    "copy_current_irp_stack_location_to_next",
    "create_device",
    "create_system_thread",
    "ctl_code",
    "delay_execution",
    "delete_device",
    "detach_device",
    "finish_request",
    "free_irp",
    "free_mdl",
    "get_current_irp_stack_location",
    "get_device_object_pointer",
    "get_next_irp_stack_location",
    "initialize_irp",
    "make_associated_irp",
    "map_locked_pages",
    "mark_irp_pending",
    "probe_and_lock_pages",
    "read_user_buffer",
    "release_cancel_spin_lock",
    "reuse_irp",
    "set_cancel_routine",
    "set_completion_routine",
    "set_next_irp_stack_location",
    "skip_current_irp_stack_location",
    "unlock_pages",
    "unmap_locked_pages",
    "wait_for_multiple",
    "write_user_buffer",
]
