"""Loading the HCA driver: its two devices, their dispatch table, and the bring-up.

Rules: PASSIVE_LEVEL; returns before the HCA is up.
Spec: WDK, Writing a DriverEntry Routine.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel_proc.driver import control_device, dispatch
from kernel_proc.driver.buffer_allocator import DEFAULT_ALLOCATION
from kernel_proc.driver.hca_extension import HcaExtension
from kernel_proc.driver.internal_requests import internal_device_control
from kernel_proc.driver.limits import Profile
from kernel_proc.driver.notification import Notification
from kernel_proc.io_manager.driver_object import DriverObject, create_device, delete_device
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
)
from shared.verb_codes import HCA_CONTROL_DEVICE, HCA_DEVICE, HCA_DEVICE_TYPE

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import DispatchRoutine, Irp
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.memory.dma_adapter import DmaAdapter
    from kernel_proc.memory.kernel_memory import KernelMemory


def load(
    io: "IoManager",
    link: "DeviceLink",
    memory: "KernelMemory",
    log: Callable[[str], object],
    profile: Profile | None = None,
    *,
    adapter: "DmaAdapter",
    allocation: str = DEFAULT_ALLOCATION,
    polls_commands: bool = False,
) -> DriverObject:
    """Make the driver and its devices, and begin to bring the HCA up.

    `link` is on the bus that `memory` and `adapter` belong to, and becomes the driver's to stop.
    `allocation` names how the driver gets memory it shares with the HCA. With
    `polls_commands` the end of a command is looked for in the register, one command at a time;
    else an event tells it.
    """
    driver = DriverObject(io.processor, HCA_DEVICE)
    extension = HcaExtension(
        io,
        link,
        memory,
        log,
        Notification,
        profile or Profile(),
        adapter=adapter,
        allocation=allocation,
        polls_commands=polls_commands,
    )
    opened, control = control_device.create_or_close, control_device.device_control
    driver.major_function[IRP_MJ_CREATE] = _either(dispatch.create, opened)
    driver.major_function[IRP_MJ_CLEANUP] = _either(dispatch.cleanup, opened)
    driver.major_function[IRP_MJ_CLOSE] = _either(dispatch.close, opened)
    driver.major_function[IRP_MJ_DEVICE_CONTROL] = _either(dispatch.device_control, control)
    driver.major_function[IRP_MJ_INTERNAL_DEVICE_CONTROL] = _either(
        internal_device_control, control
    )
    driver.driver_unload = unload
    create_device(driver, HCA_DEVICE, HCA_DEVICE_TYPE, extension=extension)
    create_device(
        driver,
        HCA_CONTROL_DEVICE,
        HCA_DEVICE_TYPE,
        extension=control_device.HcaControl(extension, driver.processor),
    )
    extension.start()
    return driver


def _either(of_hca: "DispatchRoutine", of_control: "DispatchRoutine") -> "DispatchRoutine":
    """Return the dispatch routine that serves both devices."""

    def dispatched(device: "DeviceObject", irp: "Irp") -> int:
        is_control = type(device.device_extension) is control_device.HcaControl
        return of_control(device, irp) if is_control else of_hca(device, irp)

    return dispatched


def unload(driver: DriverObject) -> None:
    """Take the HCA down and the devices away; no file is open any more (WDK: DriverUnload)."""
    for device in reversed(driver.devices[:]):
        if isinstance(device.device_extension, HcaExtension):
            device.device_extension.stop()
        delete_device(device)


def extension_of(driver: DriverObject) -> HcaExtension:
    """Return the device extension of a loaded driver."""
    extension: HcaExtension = driver.devices[0].device_extension
    return extension
