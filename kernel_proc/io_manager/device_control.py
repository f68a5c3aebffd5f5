"""NtDeviceIoControlFile, step by step.

Rules: PASSIVE_LEVEL, in the requesting thread, which may wait.
Spec: WDK, NtDeviceIoControlFile; Buffer Descriptions for I/O Control Codes; the order of steps is
NT's: docs/life-of-an-irp.md.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.buffering import PREPARE
from kernel_proc.io_manager.completion import retire_irp, unlock_mdls
from kernel_proc.io_manager.device_stack import attached_device, call_driver
from kernel_proc.io_manager.fast_io import try_fast_io
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.irp import Irp
from kernel_proc.io_manager.irp_flags import EVENT_MODIFY_STATE, IRP_MJ_DEVICE_CONTROL
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.stack_location import IoStackLocation
from kernel_proc.io_manager.thread_irps import wait_for_irp
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_CANCELLED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
)
from shared.trace_points import (
    BUFFERS_READY,
    DRIVER_CALLED,
    DRIVER_RETURNED,
    SERVICE_ENTERED,
    trace,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.process import KProcess

__all__ = ["DeviceControlRequest", "device_io_control_file"]

_FIRST_ERROR: Final = 0xC000_0000


def device_io_control_file(
    io: "IoManager", thread: "KThread", request: DeviceControlRequest
) -> int:
    """Carry out a user thread's device control; return what NtDeviceIoControlFile returns.

    When `request.finished` is False on return, an IRP is outstanding and `on_finished` follows.
    """
    if trace.enabled:
        trace.record(SERVICE_ENTERED, request.trace_id)
    process = thread.process
    if process is None or thread.terminating:
        return STATUS_THREAD_IS_TERMINATING
    # 1. Probes.
    data = request.input
    if data is not None:
        request.input_length = len(data)
    if data is None or not request.output_inline:
        status = _probe(process, request)
        if status:
            return status
    # 2, 3. The file, and what its handle may be used for.
    entries = process.handle_table.entries
    entry = entries.get(request.handle)
    if entry is None:
        return STATUS_INVALID_HANDLE
    file, granted = entry
    if file.__class__ is not FileObject:
        return STATUS_OBJECT_TYPE_MISMATCH
    if request.user_apc and file.completion_port is not None:
        return STATUS_INVALID_PARAMETER
    code = request.control_code
    if (code >> 14) & 3 & ~granted:
        return STATUS_ACCESS_DENIED
    # 4. The event: it is reset whatever becomes of the request.
    event = None
    if request.event_handle:
        status, event = _reference_event(entries.get(request.event_handle))
        if event is None:
            return status
    # From here the file may not go away under the request.
    file.references += 1
    try:
        if not file.synchronous:
            return _issue(io, thread, process, file, request, event)
        # 5. One request at a time.
        status = file.lock()
        if status:
            return status
        try:
            return _issue(io, thread, process, file, request, event)
        finally:
            file.unlock()
    finally:
        request.returned = True
        file.references -= 1
        if not file.references:
            io.delete_file(file)


def _probe(process: "KProcess", request: DeviceControlRequest) -> int:
    method = request.control_code & 3
    if method == METHOD_NEITHER:
        return STATUS_SUCCESS
    space = process.address_space
    try:
        if method == METHOD_BUFFERED and not request.output_inline:
            if not request.output_address:
                request.output_length = 0
            elif request.output_length:
                space.probe_for_write(request.output_address, request.output_length)
        if request.input is None:
            if not request.input_address:
                request.input_length = 0
            elif request.input_length:
                space.probe_for_read(request.input_address, request.input_length)
    except RaisedStatus as fault:
        return fault.status
    return STATUS_SUCCESS


def _reference_event(entry: tuple[object, int] | None) -> tuple[int, Event | None]:
    if entry is None:
        return STATUS_INVALID_HANDLE, None
    event, granted = entry
    if not isinstance(event, Event):
        return STATUS_OBJECT_TYPE_MISMATCH, None
    if not granted & EVENT_MODIFY_STATE:
        return STATUS_ACCESS_DENIED, None
    event.clear()
    return STATUS_SUCCESS, event


def _issue(
    io: "IoManager",
    thread: "KThread",
    process: "KProcess",
    file: FileObject,
    request: DeviceControlRequest,
    event: Event | None,
) -> int:
    device: DeviceObject = file.device
    if device.attached_device is not None:
        device = attached_device(device)
    # 6. Fast I/O.
    fast = device.driver_object.fast_io_device_control
    if fast is not None:
        try:
            taken = try_fast_io(fast, device, file, thread, request, event)
            if taken is not None:
                return taken
        except RaisedStatus as fault:
            return fault.status
    # 7. The file's own event, and the IRP.
    file.event.signal_state = 0
    io.irps_allocated += 1
    irp = Irp(io, device.stack_size)
    irp.requestor_mode = USER_MODE
    irp.thread = thread
    irp.request = request
    irp.user_event = event
    location = irp.stack[irp.current_location - 1]
    location.major_function = IRP_MJ_DEVICE_CONTROL
    location.output_buffer_length = request.output_length
    location.input_buffer_length = request.input_length
    location.io_control_code = request.control_code
    location.file_object = file
    # 8. The buffers.
    status = _prepare(process, request, irp, location)
    if status or thread.terminating or request.given_up:
        return _undo(irp, thread, status)
    if trace.enabled:
        trace.record(BUFFERS_READY, request.trace_id)
    # 9. To the driver.
    file.references += 1
    irp.file_object = file
    irp.on_thread_list = True
    thread.irps[irp] = None
    request.finished = False
    if trace.enabled:
        trace.record(DRIVER_CALLED, request.trace_id)
    status = call_driver(device, irp)
    if trace.enabled:
        trace.record(DRIVER_RETURNED, request.trace_id)
    # 10. A synchronous file waits; the IRP's end sets the file's event.
    if status == STATUS_PENDING and file.synchronous:
        done = wait_for_irp(irp, file.event, file.alertable)
        status = file.final_status if done else STATUS_CANCELLED
    if request.copy_fault and status < _FIRST_ERROR:
        return request.copy_fault
    return status


def _prepare(
    process: "KProcess", request: DeviceControlRequest, irp: Irp, location: IoStackLocation
) -> int:
    try:
        return PREPARE[request.control_code & 3](process, request, irp, location)
    except RaisedStatus as fault:
        return fault.status
    except MemoryError:
        return STATUS_INSUFFICIENT_RESOURCES


def _undo(irp: Irp, thread: "KThread", status: int) -> int:
    # Nothing has been sent: pages unlocked, quota returned, IRP freed.
    if irp.mdl_address is not None:
        unlock_mdls(irp)
    retire_irp(irp)
    return status or (STATUS_THREAD_IS_TERMINATING if thread.terminating else STATUS_CANCELLED)
