"""Fast I/O: a device control tried without an IRP.

The driver gets the caller's raw addresses, whatever method the code says, and either finishes at
once or declines; then an IRP is made as if nothing had happened. A request whose bytes travelled
in the message has no addresses and goes straight to an IRP.

Rules: PASSIVE_LEVEL, the caller's thread; the routine guards every access itself.
Spec: WDK, FAST_IO_DISPATCH; Operations That Can Be IRP-Based or Fast I/O.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel_proc.io_manager.irp import IoStatusBlock
from shared.ioctl_codes import METHOD_IN_DIRECT, METHOD_OUT_DIRECT, method_of

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
) -> bool:
    """Offer a request to the driver; True if it took it, with the result delivered.

    The probe of a direct method's buffer may raise RaisedStatus.
    """
    if request.input is not None or request.output_inline:
        return False
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
    if done:
        _deliver(file, thread, request, event, iosb)
    return done


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
) -> None:
    request.iosb_written = True
    request.iosb_status = iosb.status
    request.information = iosb.information
    if event is not None:
        event.set()
    if file.completion_port is not None and request.apc_context:
        file.completion_port.post(
            file.completion_key, request.apc_context, iosb.status, iosb.information
        )
