"""A driver for cases W11, W13 and K30, asked through the door.

It counts what it is sent, keeps a number in each file object, returns a string, and takes or
declines fast I/O.
"""

import struct
from collections import Counter
from typing import Any, Final

from kernel_proc.io_manager import wdm
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, ctl_code
from shared.nt_status import STATUS_INVALID_DEVICE_REQUEST, STATUS_SUCCESS

DEVICE: Final = "wire_cases"
_DEVICE_TYPE: Final = 0x8011

TEXT: Final = b"Wine is not an emulator\0"

#: W11: TEXT, as much as fits.
QUERY_TEXT: Final = ctl_code(_DEVICE_TYPE, 0x800, METHOD_BUFFERED, 0)
#: W13: how many CREATE, CLEANUP and CLOSE, and this file's number.
QUERY_COUNTS: Final = ctl_code(_DEVICE_TYPE, 0x801, METHOD_BUFFERED, 0)
COUNTS: Final = struct.Struct("<4I")
#: K30: taken by fast I/O, or declined and then done by an IRP; each by both methods.
FAST: Final = {m: ctl_code(_DEVICE_TYPE, 0x802, m, 0) for m in (METHOD_BUFFERED, METHOD_NEITHER)}
DECLINED: Final = {
    m: ctl_code(_DEVICE_TYPE, 0x803, m, 0) for m in (METHOD_BUFFERED, METHOD_NEITHER)
}
#: Who answered, Wait, input and output address as they came, and whether those of fast I/O before.
SEEN: Final = struct.Struct("<2I2Q2Q")
BY_FAST_IO: Final = 1
BY_IRP: Final = 2


class WireCases:
    """The driver."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.declined = (0, 0)

    def count(self, device: Any, irp: Any) -> int:
        """Count an IRP, and number a new file."""
        location = wdm.get_current_irp_stack_location(irp)
        self.counts[location.major_function] += 1
        if location.major_function == wdm.IRP_MJ_CREATE:
            assert location.file_object is not None
            location.file_object.fs_context = self.counts[wdm.IRP_MJ_CREATE]
        return finish(irp, b"")

    def control(self, device: Any, irp: Any) -> int:
        """Answer a request that came as an IRP."""
        location = wdm.get_current_irp_stack_location(irp)
        code = location.io_control_code
        if code == QUERY_TEXT:
            return finish(irp, TEXT[: location.output_buffer_length])
        if code == QUERY_COUNTS:
            majors = (wdm.IRP_MJ_CREATE, wdm.IRP_MJ_CLEANUP, wdm.IRP_MJ_CLOSE)
            assert location.file_object is not None
            counts = [self.counts[major] for major in majors]
            return finish(irp, COUNTS.pack(*counts, location.file_object.fs_context))
        if code not in DECLINED.values():
            irp.status, irp.information = STATUS_INVALID_DEVICE_REQUEST, 0
            wdm.complete_request(irp)
            return STATUS_INVALID_DEVICE_REQUEST
        if code & 3 == METHOD_BUFFERED:
            assert irp.system_buffer is not None
            return finish(irp, SEEN.pack(BY_IRP, 0, 0, 0, *self.declined))
        addresses = location.type3_input_buffer, irp.user_buffer
        data = SEEN.pack(BY_IRP, 0, *addresses, *self.declined)
        wdm.write_user_buffer(irp, irp.user_buffer, data)
        return finish(irp, b"", len(data))

    def fast_io(
        self,
        file: Any,
        wait: bool,
        input_address: int,
        input_length: int,
        output_address: int,
        output_length: int,
        code: int,
        iosb: Any,
        device: Any,
    ) -> bool:
        """Take a FAST code, with the caller's raw addresses; decline all others."""
        if code not in FAST.values():
            self.declined = (input_address, output_address)
            return False
        data = SEEN.pack(BY_FAST_IO, wait, input_address, output_address, 0, 0)
        file.process.address_space.write(output_address, data[:output_length])
        iosb.status, iosb.information = STATUS_SUCCESS, len(data)
        return True


def finish(irp: Any, data: bytes, information: int | None = None) -> int:
    """Complete with `data` in the system buffer."""
    if data:
        irp.system_buffer[: len(data)] = data
    irp.status = STATUS_SUCCESS
    irp.information = len(data) if information is None else information
    wdm.complete_request(irp)
    return STATUS_SUCCESS


def driver_entry(driver: wdm.DriverObject) -> int:
    """Make the device."""
    cases = WireCases()
    device = wdm.create_device(driver, DEVICE, _DEVICE_TYPE)
    for major in (wdm.IRP_MJ_CREATE, wdm.IRP_MJ_CLEANUP, wdm.IRP_MJ_CLOSE):
        driver.major_function[major] = cases.count
    driver.major_function[wdm.IRP_MJ_DEVICE_CONTROL] = cases.control
    driver.fast_io_device_control = cases.fast_io
    driver.driver_unload = lambda _: wdm.delete_device(device)
    return STATUS_SUCCESS
