"""Driver objects and the device objects they make.

Spec: WDK, DRIVER_OBJECT; DEVICE_OBJECT; IoCreateDevice; IoDeleteDevice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import DispatchRoutine, Irp
from kernel_proc.io_manager.irp_flags import DO_EXCLUSIVE, IRP_MJ_MAXIMUM_FUNCTION
from kernel_proc.io_manager.registry import io_manager_of
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_OBJECT_NAME_COLLISION,
    STATUS_OBJECT_NAME_INVALID,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.fast_io import FastIoDeviceControl
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.processor import Processor


class DriverObject:
    """A driver: its dispatch table and its devices.

    Every entry of `major_function` a driver does not fill completes its IRP with
    STATUS_INVALID_DEVICE_REQUEST. `fast_io_device_control` is optional.
    """

    __slots__ = (
        "devices",
        "driver_unload",
        "fast_io_device_control",
        "io",
        "major_function",
        "name",
        "processor",
    )

    def __init__(self, processor: "Processor", name: str) -> None:
        self.processor = processor
        self.io: IoManager = io_manager_of(processor)
        self.name = name
        self.major_function: list[DispatchRoutine] = [invalid_device_request] * (
            IRP_MJ_MAXIMUM_FUNCTION + 1
        )
        self.fast_io_device_control: FastIoDeviceControl | None = None
        self.driver_unload: Callable[[DriverObject], None] | None = None
        self.devices: list[DeviceObject] = []

    def __str__(self) -> str:
        return f"driver {self.name!r}"


class DeviceObject:
    """A device: named or not, alone or in a stack of attached ones.

    `stack_size` locations are what an IRP sent to it needs; `attached_device` is the next one
    above, `attached_to` the next below.
    """

    __slots__ = (
        "attached_device",
        "attached_to",
        "delete_pending",
        "device_extension",
        "device_type",
        "driver_object",
        "flags",
        "io",
        "major_function",
        "name",
        "open_count",
        "processor",
        "stack_size",
    )

    def __init__(self, driver: DriverObject, name: str | None, device_type: int) -> None:
        self.driver_object = driver
        self.io = driver.io
        self.processor = driver.processor
        self.major_function = driver.major_function
        self.name = name
        self.device_type = device_type
        self.device_extension: Any = None
        self.flags = 0
        self.stack_size = 1
        self.attached_device: DeviceObject | None = None
        self.attached_to: DeviceObject | None = None
        self.open_count = 0
        self.delete_pending = False

    def __str__(self) -> str:
        return f"device {self.name!r}" if self.name else f"device of {self.driver_object}"

    def inspect(self) -> dict[str, Any]:
        """Return what the device is and who has it open."""
        return {
            "name": self.name,
            "driver": self.driver_object.name,
            "device_type": self.device_type,
            "stack_size": self.stack_size,
            "open_count": self.open_count,
            "delete_pending": self.delete_pending,
        }


def create_device(
    driver: DriverObject,
    name: str | None,
    device_type: int,
    *,
    exclusive: bool = False,
    extension: Any = None,
) -> DeviceObject:
    """Make a device of a driver (WDK: IoCreateDevice); raise RaisedStatus for a bad name.

    Names are compared without regard to case; a device without a name can only be attached.
    """
    driver.processor.require_irql(APC_LEVEL, "IoCreateDevice")
    if name is not None:
        if not name or not name.isprintable():
            raise RaisedStatus(STATUS_OBJECT_NAME_INVALID, f"device name {name!r}")
        if name.lower() in driver.io.devices:
            raise RaisedStatus(STATUS_OBJECT_NAME_COLLISION, f"device name {name!r}")
    device = DeviceObject(driver, name, device_type)
    device.device_extension = extension
    if exclusive:
        device.flags |= DO_EXCLUSIVE
    driver.devices.append(device)
    if name is not None:
        driver.io.devices[name.lower()] = device
    return device


def delete_device(device: DeviceObject) -> None:
    """Take a device away (WDK: IoDeleteDevice).

    Nobody can open it any more; files that are open keep it until they are closed.
    """
    device.processor.require_irql(APC_LEVEL, "IoDeleteDevice")
    device.delete_pending = True
    if device.name is not None and device.io.devices.get(device.name.lower()) is device:
        del device.io.devices[device.name.lower()]
    if device in device.driver_object.devices:
        device.driver_object.devices.remove(device)


def invalid_device_request(device: DeviceObject, irp: Irp) -> int:
    """Complete what a driver has no routine for."""
    irp.status = STATUS_INVALID_DEVICE_REQUEST
    irp.information = 0
    complete_request(irp)
    return STATUS_INVALID_DEVICE_REQUEST
