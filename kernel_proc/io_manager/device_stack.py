"""Handing an IRP to a driver, and devices attached above one another.

Rules: call_driver at <= DISPATCH_LEVEL; attaching and detaching at PASSIVE_LEVEL.
Spec: WDK, IoCallDriver; IoAttachDeviceToDeviceStack; IoDetachDevice.
"""

from kernel_proc.io_manager.driver_object import DeviceObject
from kernel_proc.io_manager.irp import Irp
from kernel_proc.scheduling.bugcheck import NO_MORE_IRP_STACK_LOCATIONS
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL


def call_driver(device: DeviceObject, irp: Irp) -> int:
    """Give `irp` to the driver of `device`; return what its dispatch routine returns.

    The IRP is no longer the caller's: it may be complete, and freed, before this returns.
    """
    verifier = device.io.verifier
    if verifier is not None:
        return verifier.call_driver(device, irp)
    if device.processor.irql > DISPATCH_LEVEL:
        device.processor.irql_violation(DISPATCH_LEVEL, "IoCallDriver")
    location = irp.current_location - 1
    irp.current_location = location
    if location <= 0:
        no_more_stack_locations(device, irp)
    stack_location = irp.stack[location]
    stack_location.device_object = device
    try:
        return device.major_function[stack_location.major_function](device, irp)
    except Exception as error:
        device.processor.unhandled_exception(error, f"a dispatch routine of {device}")


def no_more_stack_locations(device: DeviceObject, irp: Irp) -> None:
    """Bug-check 0x35: the IRP was made for fewer drivers than it is sent to."""
    device.processor.bug_check(
        NO_MORE_IRP_STACK_LOCATIONS,
        id(irp),
        detail=f"IoCallDriver to {device} with an IRP of {irp.stack_count} locations",
    )


def attach_device_to_device_stack(
    source: DeviceObject, target: DeviceObject
) -> DeviceObject | None:
    """Put `source` on top of the stack `target` is in; return the device now below it.

    None if that device is being deleted (WDK: IoAttachDeviceToDeviceStack).
    """
    source.processor.require_irql(PASSIVE_LEVEL, "IoAttachDeviceToDeviceStack")
    below = attached_device(target)
    if below.delete_pending:
        return None
    below.attached_device = source
    source.attached_to = below
    source.stack_size = below.stack_size + 1
    return below


def detach_device(target: DeviceObject) -> None:
    """Undo the attachment above `target` (WDK: IoDetachDevice)."""
    target.processor.require_irql(PASSIVE_LEVEL, "IoDetachDevice")
    above = target.attached_device
    if above is not None:
        above.attached_to = None
        target.attached_device = None


def attached_device(device: DeviceObject) -> DeviceObject:
    """Return the top of the stack a device is in (WDK: IoGetAttachedDevice)."""
    while device.attached_device is not None:
        device = device.attached_device
    return device
