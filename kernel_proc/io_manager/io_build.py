"""IRPs that kernel code has made for it.

The synchronous kinds belong to the calling thread: its exit cancels them, the I/O manager frees
them, and they end by an APC in that thread, so never wait for one at APC_LEVEL. The asynchronous
kind is its creator's, like one from `allocate_irp`.

Buffers are the caller's own objects: anything with the buffer protocol.

Rules: <= APC_LEVEL.
Spec: WDK, IoBuildDeviceIoControlRequest; IoBuildSynchronousFsdRequest;
IoBuildAsynchronousFsdRequest; IoMakeAssociatedIrp.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.io_manager.buffering import clamp_information
from kernel_proc.io_manager.irp import Irp, take_irp
from kernel_proc.io_manager.irp_flags import (
    DO_BUFFERED_IO,
    DO_DIRECT_IO,
    IRP_ALLOCATED_FIXED_SIZE,
    IRP_ASSOCIATED_IRP,
    IRP_BUFFERED_IO,
    IRP_DEALLOCATE_BUFFER,
    IRP_INPUT_OPERATION,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_FLUSH_BUFFERS,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
    IRP_MJ_PNP,
    IRP_MJ_READ,
    IRP_MJ_SHUTDOWN,
    IRP_MJ_WRITE,
)
from kernel_proc.io_manager.kernel_mdl import describe_kernel_buffer
from kernel_proc.io_manager.stack_location import IoStackLocation, IoStatusBlock
from kernel_proc.io_manager.thread_irps import queue_thread_irp
from kernel_proc.memory.mdl import LARGEST_MDL
from kernel_proc.scheduling.irql import APC_LEVEL
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.scheduling.event import Event
    from kernel_proc.scheduling.kthread import KThread

_FIRST_ERROR: Final = 0xC000_0000
_WITHOUT_BUFFER: Final = frozenset((IRP_MJ_FLUSH_BUFFERS, IRP_MJ_SHUTDOWN, IRP_MJ_PNP))


def build_device_io_control_request(
    code: int,
    device: "DeviceObject",
    input: Any,  # noqa: A002 - the field's name
    input_length: int,
    output: Any,
    output_length: int,
    internal: bool,
    event: "Event",
    iosb: IoStatusBlock,
) -> Irp | None:
    """Make a device control IRP of the calling thread (WDK: IoBuildDeviceIoControlRequest).

    METHOD_BUFFERED is buffered here as well: a system buffer, a copy in and a copy back. None if
    an MDL cannot describe so large a buffer.
    """
    if output_length > LARGEST_MDL:
        return None
    thread = _current_thread(device, "IoBuildDeviceIoControlRequest")
    verifier = device.io.verifier
    if verifier is not None and code & 3 != METHOD_NEITHER:
        verifier.check_control_buffer(input, input_length)
        verifier.check_control_buffer(output, output_length)
    irp, location = _new_irp(device)
    location.major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL if internal else IRP_MJ_DEVICE_CONTROL
    location.output_buffer_length = output_length
    location.input_buffer_length = input_length
    location.io_control_code = code
    method = code & 3
    if method == METHOD_NEITHER:
        location.type3_input_buffer = input
        irp.user_buffer = output
    elif method == METHOD_BUFFERED:
        _buffer(irp, input, input_length, max(input_length, output_length))
        if output_length:
            irp.user_buffer = output
            irp.flags |= IRP_INPUT_OPERATION
            irp.finish_buffers = _copy_back
    else:
        _buffer(irp, input, input_length, input_length)
        if output_length:
            irp.mdl_address = describe_kernel_buffer(device.processor, output, output_length)
    irp.user_event = event
    irp.user_iosb = iosb
    queue_thread_irp(irp, thread)
    return irp


def build_synchronous_fsd_request(
    major_function: int,
    device: "DeviceObject",
    buffer: Any,
    length: int,
    starting_offset: int,
    event: "Event",
    iosb: IoStatusBlock,
) -> Irp | None:
    """Make a read, write, flush, shutdown or PnP IRP of the calling thread."""
    if length > LARGEST_MDL:
        return None
    thread = _current_thread(device, "IoBuildSynchronousFsdRequest")
    irp = _fsd_request(major_function, device, buffer, length, starting_offset)
    irp.user_event = event
    irp.user_iosb = iosb
    queue_thread_irp(irp, thread)
    return irp


def build_asynchronous_fsd_request(
    major_function: int,
    device: "DeviceObject",
    buffer: Any,
    length: int,
    starting_offset: int,
    iosb: IoStatusBlock | None,
) -> Irp | None:
    """Make such an IRP that no thread's exit waits for; its creator frees it.

    If no completion routine stops the walk, it ends in the calling thread like the others.
    """
    if length > LARGEST_MDL:
        return None
    thread = _current_thread(device, "IoBuildAsynchronousFsdRequest")
    irp = _fsd_request(major_function, device, buffer, length, starting_offset)
    irp.allocation_flags = IRP_ALLOCATED_FIXED_SIZE
    irp.user_iosb = iosb
    irp.thread = thread
    return irp


def make_associated_irp(master: Irp, stack_size: int) -> Irp:
    """Make one of several IRPs that together do the work of `master` (WDK: IoMakeAssociatedIrp).

    The caller sets `master.irp_count`; the last one to complete completes the master.
    """
    io = master.io
    io.irps_allocated += 1
    irp = Irp(io, stack_size)
    irp.flags = IRP_ASSOCIATED_IRP
    irp.thread = master.thread
    irp.master_irp = master
    return irp


def _current_thread(device: "DeviceObject", routine: str) -> "KThread":
    processor = device.processor
    if processor.irql > APC_LEVEL:
        processor.irql_violation(APC_LEVEL, routine)
    thread = processor.current_thread
    if thread is None:
        raise RuntimeError(f"{routine} outside of a thread")
    return thread


def _new_irp(device: "DeviceObject") -> tuple[Irp, IoStackLocation]:
    io = device.io
    io.irps_allocated += 1
    irp = take_irp(io, device.stack_size)
    return irp, irp.stack[irp.current_location - 1]


def _fsd_request(
    major_function: int, device: "DeviceObject", buffer: Any, length: int, starting_offset: int
) -> Irp:
    irp, location = _new_irp(device)
    location.major_function = major_function
    if major_function in _WITHOUT_BUFFER:
        return irp
    if device.io.verifier is not None:
        device.io.verifier.check_fsd_buffer(buffer, length)
    location.length = length
    location.byte_offset = starting_offset
    if device.flags & DO_BUFFERED_IO:
        _buffer(irp, buffer, length if major_function == IRP_MJ_WRITE else 0, length)
        if major_function == IRP_MJ_READ:
            irp.user_buffer = buffer
            irp.flags |= IRP_INPUT_OPERATION
            irp.finish_buffers = _copy_back
    elif device.flags & DO_DIRECT_IO:
        irp.mdl_address = describe_kernel_buffer(device.processor, buffer, length)
    else:
        irp.user_buffer = buffer
    return irp


def _buffer(irp: Irp, data: Any, data_length: int, length: int) -> None:
    # A system buffer of `length` bytes that begins with the caller's data.
    if not length:
        return
    buffer = irp.system_buffer = bytearray(length)
    irp.flags |= IRP_BUFFERED_IO | IRP_DEALLOCATE_BUFFER
    if data_length:
        with memoryview(data) as view:
            buffer[:data_length] = view[:data_length]
        irp.io.copy_counters.count(data_length)


def _copy_back(irp: Irp) -> None:
    information = irp.information
    if not information or irp.status >= _FIRST_ERROR:
        return
    with memoryview(irp.user_buffer).cast("B") as target, memoryview(irp.system_buffer) as source:
        available = min(len(target), len(source))
        if information > available:
            information = clamp_information(irp, available)
        target[:information] = source[:information]
    irp.io.copy_counters.count(information)
