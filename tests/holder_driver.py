"""A driver whose device keeps every request until it is told to go on or cancelled."""

import time
from typing import Final

from kernel_proc.io_manager.cancellation import (
    acquire_cancel_spin_lock,
    release_cancel_spin_lock,
    set_cancel_routine,
)
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DeviceObject, DriverObject, create_device
from kernel_proc.io_manager.irp import Irp, get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
)
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.scheduling.dpc import Dpc
from shared.clock import now_ns
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_CANCELLED, STATUS_PENDING, STATUS_SUCCESS

HOLDER_DEVICE: Final = "holder"

#: Kept until released or cancelled.
HOLD: Final = ctl_code(0x8003, 0x800, METHOD_BUFFERED, 0)
#: An exception leaves the dispatch routine.
BREAK: Final = ctl_code(0x8003, 0x801, METHOD_BUFFERED, 0)
#: The processor is held for the milliseconds in the input, by the thread or by a DPC.
HOG: Final = ctl_code(0x8003, 0x802, METHOD_BUFFERED, 0)
#: Kept for ever, whatever is cancelled.
KEEP: Final = ctl_code(0x8003, 0x804, METHOD_BUFFERED, 0)
HOG_IN_DPC: Final = ctl_code(0x8003, 0x803, METHOD_BUFFERED, 0)


class Holder:
    """The driver, and what it holds."""

    def __init__(self, io: IoManager) -> None:
        self.held: list[Irp] = []
        self.cleanups = 0
        self.closes = 0
        self._until_ns = 0
        self._processor = io.processor
        driver = DriverObject(io.processor, HOLDER_DEVICE)
        driver.major_function[IRP_MJ_CREATE] = self._succeed
        driver.major_function[IRP_MJ_CLEANUP] = self._cleanup
        driver.major_function[IRP_MJ_CLOSE] = self._close
        driver.major_function[IRP_MJ_DEVICE_CONTROL] = self._control
        create_device(driver, HOLDER_DEVICE, 0x8003)

    def _succeed(self, device: DeviceObject, irp: Irp) -> int:
        irp.status, irp.information = STATUS_SUCCESS, 0
        complete_request(irp)
        return STATUS_SUCCESS

    def _cleanup(self, device: DeviceObject, irp: Irp) -> int:
        self.cleanups += 1
        return self._succeed(device, irp)

    def _close(self, device: DeviceObject, irp: Irp) -> int:
        self.closes += 1
        return self._succeed(device, irp)

    def _control(self, device: DeviceObject, irp: Irp) -> int:
        code = get_current_irp_stack_location(irp).io_control_code
        if code == BREAK:
            raise ZeroDivisionError("the driver is broken")
        if code in (HOG, HOG_IN_DPC):
            self._until_ns = now_ns() + int.from_bytes(irp.system_buffer[:4], "little") * 1_000_000
            if code == HOG:
                self._hog()
            else:
                Dpc(self._processor, self._hog).insert()
            return self._succeed(device, irp)
        mark_irp_pending(irp)
        if code == KEEP:
            self.held.append(irp)
            return STATUS_PENDING
        irql = acquire_cancel_spin_lock(self._processor)
        set_cancel_routine(irp, self._cancel)
        self.held.append(irp)
        release_cancel_spin_lock(self._processor, irql)
        return STATUS_PENDING

    def _hog(self, *_: object) -> None:
        while now_ns() < self._until_ns:
            time.sleep(0.005)  # the OS thread has no other work meanwhile; others have the machine

    def _cancel(self, device: DeviceObject | None, irp: Irp) -> None:
        self.held.remove(irp)
        release_cancel_spin_lock(self._processor, irp.cancel_irql)
        irp.status, irp.information = STATUS_CANCELLED, 0
        complete_request(irp)

    def release(self, status: int = STATUS_SUCCESS, information: int = 0) -> None:
        """Complete the oldest request held."""
        irp = self.held.pop(0)
        irql = acquire_cancel_spin_lock(self._processor)
        set_cancel_routine(irp, None)
        release_cancel_spin_lock(self._processor, irql)
        irp.status, irp.information = status, information
        complete_request(irp)
