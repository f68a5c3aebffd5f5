"""A driver whose device keeps requests until another request lets them go, or they are cancelled.

KEEP         kept; the output will be the input, as far as there is room
RELEASE      input: u32 status; the oldest kept is completed with it; NOT_FOUND if there is none
AWAIT        input: u32 n; completed when n requests are kept
NEED_READ    completed at once, for handles that may read
NEED_WRITE   the same, for handles that may write

A kernel loads it by `--driver THIS_FILE:driver_entry`.
"""

from typing import Final

from kernel_proc.io_manager import wdm
from shared.ioctl_codes import (
    FILE_ANY_ACCESS,
    FILE_READ_ACCESS,
    FILE_WRITE_ACCESS,
    METHOD_BUFFERED,
    ctl_code,
)
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_NOT_FOUND,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

DEVICE: Final = "gate"
_TYPE: Final = 0x8021

KEEP: Final = ctl_code(_TYPE, 0x800, METHOD_BUFFERED, FILE_ANY_ACCESS)
RELEASE: Final = ctl_code(_TYPE, 0x801, METHOD_BUFFERED, FILE_ANY_ACCESS)
AWAIT: Final = ctl_code(_TYPE, 0x802, METHOD_BUFFERED, FILE_ANY_ACCESS)
NEED_READ: Final = ctl_code(_TYPE, 0x803, METHOD_BUFFERED, FILE_READ_ACCESS)
NEED_WRITE: Final = ctl_code(_TYPE, 0x804, METHOD_BUFFERED, FILE_WRITE_ACCESS)


def word(number: int) -> bytes:
    return number.to_bytes(4, "little")


class Gate:
    def __init__(self, driver: wdm.DriverObject) -> None:
        self.kept = wdm.CancelSafeQueue(driver.processor, "kept")
        self.awaiting = wdm.CancelSafeQueue(driver.processor, "awaiting")

    def control(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        code = wdm.get_current_irp_stack_location(irp).io_control_code
        if code == KEEP:
            self.kept.insert(irp)
            self.look()
            return STATUS_PENDING
        if code == AWAIT:
            self.awaiting.insert(irp)
            self.look()
            return STATUS_PENDING
        if code == RELEASE:
            return self.release(irp)
        return finish(
            irp,
            STATUS_SUCCESS if code in (NEED_READ, NEED_WRITE) else STATUS_INVALID_DEVICE_REQUEST,
        )

    def release(self, irp: wdm.Irp) -> int:
        status = int.from_bytes(irp.system_buffer[:4], "little")
        kept = self.kept.remove_next()
        if kept is None:
            return finish(irp, STATUS_NOT_FOUND)
        location = wdm.get_current_irp_stack_location(kept)
        finish(kept, status, min(location.input_buffer_length, location.output_buffer_length))
        return finish(irp, STATUS_SUCCESS)

    def look(self) -> None:
        waiting = self.awaiting.remove_next()
        if waiting is None:
            return
        if len(self.kept.irps) < int.from_bytes(waiting.system_buffer[:4], "little"):
            self.awaiting.insert(waiting)
        else:
            finish(waiting, STATUS_SUCCESS)

    def cleanup(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        file = wdm.get_current_irp_stack_location(irp).file_object
        for queue in (self.kept, self.awaiting):
            while (left := queue.remove_next(file)) is not None:
                queue.complete_canceled_irp(left)
        return finish(irp, STATUS_SUCCESS)


def finish(irp: wdm.Irp, status: int, information: int = 0) -> int:
    irp.status, irp.information = status, information
    wdm.complete_request(irp)
    return status


def _succeed(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    return finish(irp, STATUS_SUCCESS)


def _unload(driver: wdm.DriverObject) -> None:
    for device in list(driver.devices):
        wdm.delete_device(device)


def driver_entry(driver: wdm.DriverObject) -> int:
    gate = Gate(driver)
    driver.major_function[wdm.IRP_MJ_CREATE] = _succeed
    driver.major_function[wdm.IRP_MJ_CLOSE] = _succeed
    driver.major_function[wdm.IRP_MJ_CLEANUP] = gate.cleanup
    driver.major_function[wdm.IRP_MJ_DEVICE_CONTROL] = gate.control
    driver.driver_unload = _unload
    wdm.create_device(driver, DEVICE, _TYPE)
    return STATUS_SUCCESS
