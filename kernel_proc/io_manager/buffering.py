"""The four transfer methods: how a request's bytes get to the driver and back.

Each method has a `prepare` routine, run at issue in the requesting thread, and, if something is
copied back, sets a `finish` routine that the completion APC runs in the same thread. A copy is
counted where it is made. System buffers are charged to the process; NT leaves their bytes beyond
the input as they were, here they are zero.

Rules: PASSIVE_LEVEL for prepare, APC_LEVEL for finish; the requesting thread, which may wait.
Spec: WDK, Buffer Descriptions for I/O Control Codes; Failure to Check the Size of Buffers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.irp import IoStackLocation, Irp
from kernel_proc.io_manager.irp_flags import (
    IRP_BUFFERED_IO,
    IRP_DEALLOCATE_BUFFER,
    IRP_INPUT_OPERATION,
)
from kernel_proc.memory.mdl import (
    IO_READ_ACCESS,
    IO_WRITE_ACCESS,
    allocate_mdl,
    probe_and_lock_pages,
)
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
)
from shared.trace_points import COPIED_BACK, COPYING_BACK, trace

if TYPE_CHECKING:
    from kernel_proc.io_manager.request import DeviceControlRequest
    from kernel_proc.scheduling.process import KProcess

_FIRST_ERROR: Final = 0xC000_0000
_BUFFER_FLAGS: Final = IRP_BUFFERED_IO | IRP_DEALLOCATE_BUFFER

# (process, request, irp, location) -> status; the location holds both lengths. May raise
# RaisedStatus: the caller undoes everything then.
Prepare = Callable[["KProcess", "DeviceControlRequest", Irp, IoStackLocation], int]


class CopyCounters:
    """Copies of payload the kernel process made, and their bytes."""

    __slots__ = ("bytes_copied", "copies")

    def __init__(self) -> None:
        self.copies = 0
        self.bytes_copied = 0

    def count(self, length: int) -> None:
        """Note one copy."""
        self.copies += 1
        self.bytes_copied += length


def prepare_buffered(
    process: "KProcess", request: "DeviceControlRequest", irp: Irp, location: IoStackLocation
) -> int:
    """METHOD_BUFFERED: one system buffer, as large as the larger side, holds the input."""
    output_length = location.output_buffer_length
    status = _make_system_buffer(process, request, irp, location, output_length)
    if status == STATUS_SUCCESS and output_length:
        irp.flags |= IRP_INPUT_OPERATION
        irp.user_buffer = request.output_address
        irp.finish_buffers = finish_buffered
    return status


def finish_buffered(irp: Irp) -> None:
    """Copy `information` bytes of the system buffer to the caller, unless the request failed."""
    information = irp.information
    if not information or irp.status >= _FIRST_ERROR:
        return
    request = irp.request
    assert request is not None
    if trace.enabled:
        trace.record(COPYING_BACK, request.trace_id)
    if information > request.output_length:
        information = clamp_information(irp, request.output_length)
    buffer = irp.system_buffer
    if request.output_inline:
        if information == len(buffer):
            request.output = bytes(buffer)
        else:
            with memoryview(buffer) as view:
                request.output = bytes(view[:information])
    elif not _copy_to_user(irp, request, information):
        return
    counters = irp.io.copy_counters
    counters.copies += 1
    counters.bytes_copied += information
    if trace.enabled:
        trace.record(COPIED_BACK, request.trace_id)


def _copy_to_user(irp: Irp, request: "DeviceControlRequest", length: int) -> bool:
    # A fault becomes the status of the request; what precedes it has been stored.
    thread = irp.thread
    assert thread is not None
    assert thread.process is not None
    try:
        with memoryview(irp.system_buffer) as view:
            thread.process.address_space.write(request.output_address, view[:length])
    except RaisedStatus as fault:
        irp.status = request.copy_fault = fault.status
        return False
    return True


def clamp_information(irp: Irp, available: int) -> int:
    """Judge an `information` larger than the output part of the system buffer; return the limit.

    NT copies what lies behind the buffer, to user mode as well. Here the copy ends at the
    buffer's end and the violation is counted; the verifier stops the machine.
    """
    if irp.io.verifier is not None:
        irp.io.verifier.information_too_large(irp, available)
    irp.io.information_violations += 1
    return available


def prepare_in_direct(
    process: "KProcess", request: "DeviceControlRequest", irp: Irp, location: IoStackLocation
) -> int:
    """METHOD_IN_DIRECT: the small input buffered, the other buffer locked to be read."""
    return _prepare_direct(process, request, irp, location, IO_READ_ACCESS)


def prepare_out_direct(
    process: "KProcess", request: "DeviceControlRequest", irp: Irp, location: IoStackLocation
) -> int:
    """METHOD_OUT_DIRECT: the small input buffered, the other buffer locked to be written."""
    return _prepare_direct(process, request, irp, location, IO_WRITE_ACCESS)


def _prepare_direct(
    process: "KProcess",
    request: "DeviceControlRequest",
    irp: Irp,
    location: IoStackLocation,
    operation: int,
) -> int:
    output_length = location.output_buffer_length
    if output_length and request.output_inline:
        return STATUS_INVALID_PARAMETER  # there are no pages to lock
    status = _make_system_buffer(process, request, irp, location, 0)
    if status != STATUS_SUCCESS or not output_length:
        return status
    mdl = allocate_mdl(irp.processor, request.output_address, output_length, irp)
    if mdl is None:
        return STATUS_INSUFFICIENT_RESOURCES
    probe_and_lock_pages(mdl, USER_MODE, operation)
    return STATUS_SUCCESS


def prepare_neither(
    process: "KProcess", request: "DeviceControlRequest", irp: Irp, location: IoStackLocation
) -> int:
    """METHOD_NEITHER: the caller's raw addresses, unchecked."""
    if request.input is not None or request.output_inline:
        return STATUS_INVALID_PARAMETER  # bytes in a message have no address
    if not process.charge_pool(irp.size):
        return STATUS_QUOTA_EXCEEDED
    irp.quota_process = process
    irp.quota_charged = irp.size
    location.type3_input_buffer = request.input_address
    irp.user_buffer = request.output_address
    return STATUS_SUCCESS


def _make_system_buffer(
    process: "KProcess",
    request: "DeviceControlRequest",
    irp: Irp,
    location: IoStackLocation,
    output_length: int,
) -> int:
    # Charge the IRP and its buffer, and copy the input in: one copy, or two from private memory.
    input_length = location.input_buffer_length
    length = input_length if input_length > output_length else output_length
    charge = irp.size + length
    if not process.charge_pool(charge):
        return STATUS_QUOTA_EXCEEDED
    irp.quota_process = process
    irp.quota_charged = charge
    if not length:
        return STATUS_SUCCESS
    irp.flags = _BUFFER_FLAGS
    if not input_length:
        irp.system_buffer = bytearray(length)
        return STATUS_SUCCESS
    data = request.input
    if data is None:
        data = _fetch_input(process, request, irp, input_length)
    if input_length == length:
        irp.system_buffer = bytearray(data)
    else:
        irp.system_buffer = buffer = bytearray(length)
        buffer[:input_length] = data
    counters = irp.io.copy_counters
    counters.copies += 1
    counters.bytes_copied += input_length
    return STATUS_SUCCESS


def _fetch_input(
    process: "KProcess", request: "DeviceControlRequest", irp: Irp, length: int
) -> bytes | memoryview:
    # Arena bytes are copied straight into the system buffer; private ones have to be fetched.
    space = process.address_space
    view: memoryview | None = space.arena_view(request.input_address, length)
    if view is not None:
        return view
    data: bytes = space.read(request.input_address, length)
    irp.io.copy_counters.count(length)
    return data


PREPARE: Final[tuple[Prepare, ...]] = (
    prepare_buffered,
    prepare_in_direct,
    prepare_out_direct,
    prepare_neither,
)
