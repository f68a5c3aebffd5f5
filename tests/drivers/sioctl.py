"""S1 to S3: a driver that does as the public sioctl sample does, in its older and present form.

One control code for each transfer method. The older form returns as much of its message as fits,
the present one refuses an output buffer that is not longer than the message without its NUL.
"""

from typing import Final

from kernel_proc.io_manager import wdm

OLD_DEVICE: Final = "sioctl_old"
DEVICE: Final = "sioctl"
DEVICE_TYPE: Final = 40000
METHODS: Final = (
    wdm.METHOD_BUFFERED,
    wdm.METHOD_IN_DIRECT,
    wdm.METHOD_OUT_DIRECT,
    wdm.METHOD_NEITHER,
)
CODES: Final = {
    method: wdm.ctl_code(DEVICE_TYPE, 0x900 + number, method, wdm.FILE_ANY_ACCESS)
    for number, method in enumerate(METHODS)
}
MESSAGE: Final = b"This String is from Device Driver !!!\0"


def control(present: bool, irp: wdm.Irp) -> int:
    """Check the lengths, spoil the system buffer, and answer as the method allows."""
    location = wdm.get_current_irp_stack_location(irp)
    room = location.output_buffer_length
    too_short = present and room < len(MESSAGE)
    if not location.input_buffer_length or not room or too_short:
        return wdm.finish_request(irp, wdm.STATUS_INVALID_PARAMETER)
    if location.io_control_code not in CODES.values():
        return wdm.finish_request(irp, wdm.STATUS_INVALID_DEVICE_REQUEST)
    method = location.io_control_code & 3
    answer = MESSAGE[:room]
    if method == wdm.METHOD_BUFFERED:
        irp.system_buffer[: len(answer)] = answer
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(answer))
    if method == wdm.METHOD_NEITHER:
        try:
            wdm.write_user_buffer(irp, irp.user_buffer, answer)
        except wdm.RaisedStatus as fault:
            return wdm.finish_request(irp, fault.status)
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(answer))
    irp.system_buffer[:] = bytes(len(irp.system_buffer))  # never seen by the caller
    if method == wdm.METHOD_OUT_DIRECT:
        wdm.map_locked_pages(irp.mdl_address).write(0, answer)
    return wdm.finish_request(irp, wdm.STATUS_SUCCESS, irp.mdl_address.byte_count)


def driver_entry(driver: wdm.DriverObject) -> int:
    """Make a device of each form."""
    old = wdm.create_device(driver, OLD_DEVICE, DEVICE_TYPE)
    present = wdm.create_device(driver, DEVICE, DEVICE_TYPE)

    def succeed(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS)

    def device_control(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        return control(device is present, irp)

    def unload(_: wdm.DriverObject) -> None:
        wdm.delete_device(old)
        wdm.delete_device(present)

    table = driver.major_function
    table[wdm.IRP_MJ_CREATE] = table[wdm.IRP_MJ_CLEANUP] = table[wdm.IRP_MJ_CLOSE] = succeed
    table[wdm.IRP_MJ_DEVICE_CONTROL] = device_control
    driver.driver_unload = unload
    return wdm.STATUS_SUCCESS
