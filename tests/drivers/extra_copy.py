"""A filter above the no-op device that copies the input of every buffered request once more.

A kernel loads it by `--driver THIS_FILE:driver_entry`.
"""

from kernel_proc.io_manager import wdm
from shared.ioctl_codes import NOOP_DEVICE
from shared.nt_status import STATUS_SUCCESS


def driver_entry(driver: wdm.DriverObject) -> int:
    below = driver.io.devices[NOOP_DEVICE]

    def pass_on(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        if irp.system_buffer:
            irp.system_buffer = bytearray(irp.system_buffer)
            driver.io.copy_counters.count(len(irp.system_buffer))
        wdm.skip_current_irp_stack_location(irp)
        return wdm.call_driver(below, irp)

    for function in range(len(driver.major_function)):
        driver.major_function[function] = pass_on
    filter_device = wdm.create_device(driver, "extra-copy", below.device_type)
    wdm.attach_device_to_device_stack(filter_device, below)
    return STATUS_SUCCESS
