"""The direct-call client: the same operation by the driver's exported routines, without an IRP.

Rules: PASSIVE_LEVEL, one operation at a time; an instance is one operation, called again and again.
Spec: WDK, Creating Device Interfaces That Export Functions.
"""

from typing import TYPE_CHECKING

from kernel_proc.channel_interface.direct_calls import (
    IOCTL_INTERNAL_QUERY_DIRECT_CALLS,
    DirectCalls,
    DirectRequest,
)
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import Irp
from kernel_proc.io_manager.stack_location import IoStatusBlock
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject


def query_direct_calls(device: "DeviceObject") -> DirectCalls:
    """Ask the driver for its table, by the one IRP a client of direct calls sends."""
    found: list[DirectCalls] = []
    event, iosb = Event(device.processor, notification=True), IoStatusBlock()
    irp: Irp | None = build_device_io_control_request(
        IOCTL_INTERNAL_QUERY_DIRECT_CALLS, device, None, 0, found, 0, True, event, iosb
    )
    if irp is None:
        raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, "query for direct calls")
    status = call_driver(device, irp)
    if status == STATUS_PENDING:
        event.wait()
        status = iosb.status
    if status != STATUS_SUCCESS:
        raise RaisedStatus(status, "query for direct calls")
    return found[0]


class DirectCall:
    """A request made each time, queued by the driver, ended by its callback."""

    __slots__ = ("_callback", "_completion", "_done", "_payload", "_result", "_status", "_submit")

    def __init__(self, device: "DeviceObject", completion: int, payload: int) -> None:
        self._submit = query_direct_calls(device).submit
        self._completion = completion
        self._payload = memoryview(bytes(payload)) if payload else None
        self._result = memoryview(bytearray(payload)) if payload else None
        self._done = Event(device.processor, notification=False)
        self._status = STATUS_SUCCESS
        self._callback = self._completed if completion else self._completed_inline

    def __call__(self) -> None:
        """Perform one operation."""
        request = DirectRequest(self._completion, self._payload, self._result, self._callback)
        if self._submit(request) == STATUS_PENDING:
            self._done.wait()
        if self._status != STATUS_SUCCESS:
            raise RaisedStatus(self._status, "benchmark request")

    def _completed(self, request: DirectRequest) -> None:
        self._status = request.status
        self._done.set()

    def _completed_inline(self, request: DirectRequest) -> None:
        self._status = request.status

    def close(self) -> None:
        """Free what is kept between operations: nothing."""
