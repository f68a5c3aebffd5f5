"""The kernel-mode IRP client: one IoCallDriver and one IoCompleteRequest for each operation.

Rules: PASSIVE_LEVEL, one operation at a time; an instance is one operation, called again and again.
Spec: WDK, Creating IRPs for Drivers; IoAllocateIrp; IoReuseIrp; IoBuildDeviceIoControlRequest.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import (
    CompletionRoutine,
    Irp,
    allocate_irp,
    free_irp,
    get_next_irp_stack_location,
    reuse_irp,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_INTERNAL_DEVICE_CONTROL
from kernel_proc.io_manager.stack_location import IoStatusBlock
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, noop_code
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_NOT_SUPPORTED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject


class HandBuiltIrp:
    """IoAllocateIrp each time, a completion routine, buffers by reference."""

    __slots__ = (
        "_code",
        "_device",
        "_done",
        "_length",
        "_payload",
        "_result",
        "_routine",
        "_status",
    )

    def __init__(self, device: "DeviceObject", completion: int, payload: int) -> None:
        self._device = device
        self._routine: CompletionRoutine = self._completed  # bound once
        self._code = noop_code(METHOD_NEITHER, completion)
        self._payload = memoryview(bytes(payload))
        self._result = memoryview(bytearray(payload))
        self._length = payload
        self._done = Event(device.processor, notification=False)
        self._status = STATUS_SUCCESS

    def __call__(self) -> None:
        """Perform one operation."""
        device = self._device
        self._send(allocate_irp(device.processor, device.stack_size))

    def _send(self, irp: Irp) -> None:
        location = get_next_irp_stack_location(irp)
        location.major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL
        location.io_control_code = self._code
        location.input_buffer_length = location.output_buffer_length = self._length
        location.type3_input_buffer = self._payload
        irp.user_buffer = self._result
        set_completion_routine(irp, self._routine)
        if call_driver(self._device, irp) == STATUS_PENDING:
            self._done.wait()
        if self._status != STATUS_SUCCESS:
            raise RaisedStatus(self._status, "benchmark request")

    def _completed(self, device: "DeviceObject | None", irp: Irp, context: Any) -> int:
        # Only who was told STATUS_PENDING waits.
        self._status = irp.status
        if irp.pending_returned:
            self._done.set()
        free_irp(irp)
        return STATUS_MORE_PROCESSING_REQUIRED

    def close(self) -> None:
        """Free what is kept between operations: nothing."""


class ReusedIrp(HandBuiltIrp):
    """The same with one IRP, made as new by IoReuseIrp each time."""

    __slots__ = ("_irp",)

    def __init__(self, device: "DeviceObject", completion: int, payload: int) -> None:
        super().__init__(device, completion, payload)
        self._irp = allocate_irp(device.processor, device.stack_size)

    def __call__(self) -> None:
        """Perform one operation."""
        reuse_irp(self._irp, STATUS_NOT_SUPPORTED)
        self._send(self._irp)

    def _completed(self, device: "DeviceObject | None", irp: Irp, context: Any) -> int:
        self._status = irp.status
        if irp.pending_returned:
            self._done.set()
        return STATUS_MORE_PROCESSING_REQUIRED

    def close(self) -> None:
        """Free the IRP."""
        free_irp(self._irp)


class BuiltIrp:
    """IoBuildDeviceIoControlRequest each time: a system buffer, a thread's IRP, its APC."""

    __slots__ = ("_code", "_device", "_event", "_iosb", "_length", "_payload", "_result")

    def __init__(self, device: "DeviceObject", completion: int, payload: int) -> None:
        self._device = device
        self._code = noop_code(METHOD_BUFFERED, completion)
        self._length = payload
        self._payload = memoryview(bytes(payload))
        self._result = memoryview(bytearray(payload))
        self._event = Event(device.processor, notification=True)
        self._iosb = IoStatusBlock()

    def __call__(self) -> None:
        """Perform one operation."""
        event, iosb, length = self._event, self._iosb, self._length
        event.clear()
        irp = build_device_io_control_request(
            self._code, self._device, self._payload, length, self._result, length, True, event, iosb
        )
        if irp is None:
            raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, "benchmark request")
        status = call_driver(self._device, irp)
        if status == STATUS_PENDING:
            event.wait()
            status = iosb.status
        if status != STATUS_SUCCESS:
            raise RaisedStatus(status, "benchmark request")

    def close(self) -> None:
        """Free what is kept between operations: nothing."""
