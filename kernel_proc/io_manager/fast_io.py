"""Fast I/O: a device control tried without an IRP.

The driver gets the caller's raw addresses, whatever method the code says, and either finishes at
once or declines; then an IRP is made as if nothing had happened. A request whose bytes travelled
in the message has no addresses and goes straight to an IRP. What is finished here queues no user
APC: there is no IRP to be one.

Rules: PASSIVE_LEVEL, the caller's thread; the routine guards every access itself.
Spec: WDK, FAST_IO_DISPATCH; Operations That Can Be IRP-Based or Fast I/O.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel_proc.io_manager.completion_port import SIZE_OF_PACKET, PoolCharge
from kernel_proc.io_manager.irp import IoStatusBlock
from shared.ioctl_codes import METHOD_IN_DIRECT, METHOD_OUT_DIRECT, method_of
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES
from shared.trace_points import FAST_IO, trace

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.request import DeviceControlRequest
    from kernel_proc.scheduling.event import Event
    from kernel_proc.scheduling.kthread import KThread

# (file, wait, input address, input length, output address, output length, control code,
#  status block, device) -> whether it is done
FastIoDeviceControl = Callable[
    ["FileObject", bool, int, int, int, int, int, IoStatusBlock, "DeviceObject"], bool
]


def try_fast_io(
    routine: FastIoDeviceControl,
    device: "DeviceObject",
    file: "FileObject",
    thread: "KThread",
    request: "DeviceControlRequest",
    event: "Event | None",
) -> int | None:
    """Offer a request to the driver; return its status if it took it, the result delivered.

    None if the driver declined. The probe of a direct method's buffer may raise RaisedStatus.
    """
    if request.input is not None or request.output_inline:
        return None
    _probe(thread, request)
    verifier = device.io.verifier
    disabled = (thread.kernel_apc_disable, thread.special_apc_disable)
    iosb = IoStatusBlock()
    try:
        done = routine(
            file,
            True,
            request.input_address,
            request.input_length,
            request.output_address,
            request.output_length,
            request.control_code,
            iosb,
            device,
        )
    except Exception as error:
        device.processor.unhandled_exception(error, f"the fast I/O routine of {device}")
    if verifier is not None:
        verifier.check_fast_io_returned(thread, disabled, routine)
    if trace.enabled:
        trace.record(FAST_IO, request.trace_id)
    return _deliver(file, thread, request, event, iosb) if done else None


def _probe(thread: "KThread", request: "DeviceControlRequest") -> None:
    method = method_of(request.control_code)
    process = thread.process
    if request.output_length and process is not None:
        if method == METHOD_IN_DIRECT:
            process.address_space.probe_for_read(request.output_address, request.output_length)
        elif method == METHOD_OUT_DIRECT:
            process.address_space.probe_for_write(request.output_address, request.output_length)


def _deliver(
    file: "FileObject",
    thread: "KThread",
    request: "DeviceControlRequest",
    event: "Event | None",
    iosb: IoStatusBlock,
) -> int:
    request.user_apc = False
    request.iosb_written = True
    request.iosb_status = status = iosb.status
    request.information = iosb.information
    port = file.completion_port if request.apc_context else None
    if event is None and port is None:
        return status
    if not file.synchronous and request.on_written is not None:
        request.on_written(request)
    if event is not None:
        event.set()
    if port is not None:
        process = thread.process
        if process is None or not process.charge_pool(SIZE_OF_PACKET):
            return STATUS_INSUFFICIENT_RESOURCES
        charge = PoolCharge(process, SIZE_OF_PACKET)
        port.post(file.completion_key, request.apc_context, status, iosb.information, charge)
    return status
