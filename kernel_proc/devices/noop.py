"""The no-op device: a driver that does nothing, in every way a driver can finish a request.

A request is completed inside its dispatch routine, from a DPC that drains a list, or by its
hardware, whose line is raised after STATUS_PENDING was returned: ISR, DPC, completion. A blocking
request waits for DPC or hardware in its dispatch routine.

A second device, made by a driver that also offers fast I/O, knows the fast codes beside all
others: a driver that offers it is asked first for every request with addresses, and the requests
of the first device do not pay for that.

Rules: dispatch routines at PASSIVE_LEVEL in the caller's thread.
Spec: shared/ioctl_codes.py; WDK, Writing DispatchDeviceControl Routines; Writing an ISR.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.channel_interface.direct_calls import (
    IOCTL_INTERNAL_QUERY_DIRECT_CALLS,
    DirectRequest,
)
from kernel_proc.devices.noop_direct import NoopDirect
from kernel_proc.devices.noop_fast import fast_device_control
from kernel_proc.devices.noop_hardware import NoopHardware
from kernel_proc.devices.noop_payload import (
    fail,
    ignore,
    touch_buffered,
    touch_in_direct,
    touch_neither,
    touch_out_direct,
)
from kernel_proc.devices.pended_requests import PendedRequests
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DeviceObject, DriverObject, create_device
from kernel_proc.io_manager.irp import IoStackLocation, Irp
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_DEVICE,
    NOOP_DEVICE_TYPE,
    NOOP_FAST_DEVICE,
    noop_blocking_code,
    noop_code,
    noop_fail_code,
    noop_fast_code,
)
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from shared.trace_points import DEVICE_QUEUED, DPC_ENTERED, INTERRUPT, trace

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

Handle = Callable[[Irp, IoStackLocation], int]


_TOUCHES: Final[dict[int, Handle]] = {
    METHOD_BUFFERED: touch_buffered,
    METHOD_IN_DIRECT: touch_in_direct,
    METHOD_OUT_DIRECT: touch_out_direct,
    METHOD_NEITHER: touch_neither,
}


def _build_requests() -> dict[int, tuple[Handle, int]]:
    """Return for every control code what handles its payload and who completes it."""
    requests: dict[int, tuple[Handle, int]] = {}
    for method, touch in _TOUCHES.items():
        for completion in (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE):
            requests[noop_code(method, completion)] = (touch, completion)
            requests[noop_code(method, completion, touch=False)] = (ignore, completion)
            requests[noop_fail_code(method, completion)] = (fail, completion)
    return requests


_REQUESTS: Final = _build_requests()

# Those of the second device, as IRPs: the fast codes that were declined, or came without addresses.
_FAST_REQUESTS: Final = _REQUESTS | {
    noop_fast_code(method, completion): (touch, completion)
    for method, touch in _TOUCHES.items()
    for completion in (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
}

# What handles the payload of a blocking code, and whom its dispatch routine waits for.
_BLOCKING: Final = {
    noop_blocking_code(method, completion): (touch, completion)
    for method, touch in _TOUCHES.items()
    for completion in (COMPLETION_DPC, COMPLETION_DEVICE)
}


class NoopExtension:
    """What the driver keeps for its device (WDK: device extension)."""

    __slots__ = (
        "_finish_dpc",
        "_finished",
        "_queue_dpc",
        "direct",
        "hardware",
        "interrupt",
        "pended",
    )

    def __init__(self, driver: DriverObject) -> None:
        processor = driver.processor
        self.pended = PendedRequests(processor)
        self.interrupt = Interrupt(processor, self._service)
        self.hardware = NoopHardware(processor, self.interrupt.request)
        self.direct = NoopDirect(processor, self.hardware)
        self._finished: list[int] = []
        self._queue_dpc = Dpc(processor, self._complete_queued)
        self._finish_dpc = Dpc(processor, self._complete_finished)
        self.interrupt.connect()

    def queue(self, irp: Irp) -> int:
        """Pend a request and have the DPC complete it."""
        if trace.enabled:
            _passes(irp, DEVICE_QUEUED)
        if self.pended.insert_queued(irp):
            self._queue_dpc.insert()
        return STATUS_PENDING

    def command(self, irp: Irp) -> int:
        """Pend a request and have the hardware finish it."""
        if trace.enabled:
            _passes(irp, DEVICE_QUEUED)
        tag = self.pended.insert_commanded(irp)
        if tag is not None:
            self.hardware.command(tag)
        return STATUS_PENDING

    def _complete_queued(self, dpc: Dpc, context: Any, argument1: Any, argument2: Any) -> None:
        for irp in self.pended.take_queued():
            if trace.enabled:
                _passes(irp, DPC_ENTERED)
            complete_request(irp)

    def _service(self, interrupt: Interrupt, context: Any) -> bool:
        finished = self.hardware.take_finished()
        if not finished:
            return False
        if trace.enabled:
            for tag in finished:
                _passes(self.pended.commanded.get(tag), INTERRUPT)
        self._finished += finished
        self._finish_dpc.insert()
        return True

    def _complete_finished(self, dpc: Dpc, context: Any, argument1: Any, argument2: Any) -> None:
        # The list is swapped in one step: the ISR may add to it at any time.
        finished, self._finished = self._finished, []
        for tag in finished:
            if tag < 0:
                self.direct.finish(tag)
                continue
            irp = self.pended.take_commanded(tag)
            if irp is not None:
                if trace.enabled:
                    _passes(irp, DPC_ENTERED)
                complete_request(irp)

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {
            **self.pended.inspect(),
            "commands_done": self.hardware.commands_done,
            "spurious_interrupts": self.interrupt.spurious,
        }


def _passes(irp: Irp | None, point: str) -> None:
    """Leave a trace point of a user's request; those of kernel clients have no number."""
    if irp is not None and irp.request is not None:
        trace.record(point, irp.request.trace_id)


def _fast_codes_too(device: DeviceObject, irp: Irp) -> int:
    return _device_control(device, irp, _FAST_REQUESTS)


def _device_control(
    device: DeviceObject, irp: Irp, requests: dict[int, tuple[Handle, int]] = _REQUESTS
) -> int:
    """Handle the payload in the caller's thread, then complete or pend the request."""
    location = irp.stack[irp.current_location]
    request = requests.get(location.io_control_code)
    if request is None:
        return _other_control(device, irp, location)
    handle, completion = request
    try:
        irp.status = status = handle(irp, location)
    except RaisedStatus as fault:
        return _complete(irp, fault.status)
    extension: NoopExtension = device.device_extension
    if completion == COMPLETION_INLINE:
        complete_request(irp)
        return status
    if completion == COMPLETION_DPC:
        return extension.queue(irp)
    return extension.command(irp)


def _other_control(device: DeviceObject, irp: Irp, location: IoStackLocation) -> int:
    """Serve blocking codes; give kernel clients the direct-call table; refuse all others."""
    blocking = _BLOCKING.get(location.io_control_code)
    if blocking is not None:
        return _block(device, irp, location, *blocking)
    if (
        location.io_control_code != IOCTL_INTERNAL_QUERY_DIRECT_CALLS
        or location.major_function != IRP_MJ_INTERNAL_DEVICE_CONTROL
    ):
        return _complete(irp, STATUS_INVALID_DEVICE_REQUEST)
    extension: NoopExtension = device.device_extension
    irp.user_buffer.append(extension.direct.calls)
    return _complete(irp, STATUS_SUCCESS)


def _block(
    device: DeviceObject, irp: Irp, location: IoStackLocation, handle: Handle, completion: int
) -> int:
    """Wait in the dispatch routine until a DPC or the hardware has answered, then complete."""
    try:
        irp.status = status = handle(irp, location)
    except RaisedStatus as fault:
        return _complete(irp, fault.status)
    extension: NoopExtension = device.device_extension
    answered = Event(device.processor, notification=False)
    extension.direct.submit(DirectRequest(completion, None, None, lambda _: answered.set()))
    answered.wait()
    complete_request(irp)
    return status


def _succeed(device: DeviceObject, irp: Irp) -> int:
    return _complete(irp, STATUS_SUCCESS)


def _cleanup(device: DeviceObject, irp: Irp) -> int:
    """Cancel what the file still has outstanding: its last handle is gone."""
    extension: NoopExtension = device.device_extension
    file = irp.stack[irp.current_location].file_object
    if file is not None:
        extension.pended.cancel_file(file)
    return _complete(irp, STATUS_SUCCESS)


def _complete(irp: Irp, status: int) -> int:
    irp.status = status
    irp.information = 0
    complete_request(irp)
    return status


def load(io: "IoManager") -> DriverObject:
    """Make the two drivers and their devices; return the first (WDK: DriverEntry)."""
    driver = _make(io, NOOP_DEVICE, _device_control)
    _make(io, NOOP_FAST_DEVICE, _fast_codes_too).fast_io_device_control = fast_device_control
    return driver


def _make(io: "IoManager", name: str, control: Callable[[DeviceObject, Irp], int]) -> DriverObject:
    driver = DriverObject(io.processor, name)
    driver.major_function[IRP_MJ_CREATE] = _succeed
    driver.major_function[IRP_MJ_CLEANUP] = _cleanup
    driver.major_function[IRP_MJ_CLOSE] = _succeed
    driver.major_function[IRP_MJ_DEVICE_CONTROL] = control
    driver.major_function[IRP_MJ_INTERNAL_DEVICE_CONTROL] = control
    extension = NoopExtension(driver)
    create_device(driver, name, NOOP_DEVICE_TYPE, extension=extension)
    return driver
