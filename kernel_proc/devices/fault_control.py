"""The device by which faults are set: a door beside all others, and there without an HCA, too.

Any process of the user may set faults: who can reach a kernel at all can stop it, too. What judges
and sets them is made, and imported, at the first request.

Rules: PASSIVE_LEVEL in the caller's thread; a list may wait for the HCA.
Spec: shared/fault_points.py.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DriverObject, create_device
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
)
from shared.fault_points import (
    FAULT_DEVICE,
    FAULT_DEVICE_TYPE,
    IOCTL_CLEAR_FAULTS,
    IOCTL_LIST_FAULTS,
    IOCTL_SET_FAULT,
)
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.io_manager.namespace import IoManager

Answer = dict[str, Any]


class Faults(Protocol):
    """What sets them; an answer with "error" says why not."""

    def set(self, message: bytes) -> Answer:
        """Set one."""

    def clear(self, point: str) -> Answer:
        """Take those of a point back, or all."""

    def list_all(self) -> Answer:
        """Tell of those that are set."""


class FaultControl:
    """The extension of the device."""

    __slots__ = ("_faults", "_make")

    def __init__(self, make: Callable[[], Faults]) -> None:
        self._make = make
        self._faults: Faults | None = None

    def ask(self, code: int, given: bytes) -> Answer | None:
        """Do what a control code says; None for one that is none of ours."""
        if self._faults is None:
            self._faults = self._make()
        faults = self._faults
        if code == IOCTL_SET_FAULT:
            return faults.set(given)
        if code == IOCTL_CLEAR_FAULTS:
            return faults.clear(given.decode("ascii", "replace"))
        return faults.list_all() if code == IOCTL_LIST_FAULTS else None


def load(io: "IoManager", make: Callable[[], Faults]) -> None:
    """Make the driver and its device; `make` gives what sets faults."""
    driver = DriverObject(io.processor, FAULT_DEVICE)
    for major in (IRP_MJ_CREATE, IRP_MJ_CLEANUP, IRP_MJ_CLOSE):
        driver.major_function[major] = _open_or_close
    driver.major_function[IRP_MJ_DEVICE_CONTROL] = _control
    create_device(driver, FAULT_DEVICE, FAULT_DEVICE_TYPE, extension=FaultControl(make))


def _open_or_close(device: "DeviceObject", irp: "Irp") -> int:
    return _complete(irp, STATUS_SUCCESS)


def _control(device: "DeviceObject", irp: "Irp") -> int:
    location = irp.stack[irp.current_location]
    given = bytes(irp.system_buffer or b"")[: location.input_buffer_length]
    answer = device.device_extension.ask(location.io_control_code, given)
    if answer is None:
        return _complete(irp, STATUS_INVALID_DEVICE_REQUEST)
    output: Final = json.dumps(answer, separators=(",", ":")).encode()
    if location.output_buffer_length < len(output):
        return _complete(irp, STATUS_BUFFER_TOO_SMALL)
    irp.system_buffer[: len(output)] = output
    return _complete(irp, STATUS_SUCCESS, len(output))


def _complete(irp: "Irp", status: int, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status
