"""W1 to W8: the driver of the status matrix, and the 459 combinations it is asked for.

The driver does what the caller's three words say, completes inside its dispatch routine with
Information 3, and has written `ghijkl` over the caller's `abcdef`. A kernel loads it by
`--driver THIS_FILE:driver_entry`.
"""

import struct
from typing import Any, Final

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DriverObject, create_device, delete_device
from kernel_proc.io_manager.irp import get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
)
from kernel_proc.memory.mdl import map_locked_pages
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_BUFFER_OVERFLOW,
    STATUS_NOT_IMPLEMENTED,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    nt_error,
)

DEVICE: Final = "status_matrix"
_DEVICE_TYPE: Final = 0x8003

STATUSES: Final = (
    STATUS_SUCCESS,
    STATUS_PENDING,
    STATUS_TIMEOUT,
    0x0EADBEEF,
    0x4EADBEEF,
    STATUS_BUFFER_OVERFLOW,
    0x8EADBEEF,
    STATUS_NOT_IMPLEMENTED,
    0xCEADBEEF,
)
METHODS: Final = (METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER)
COMBINATIONS: Final = [
    (ret, iosb, pending)
    for ret in STATUSES
    for iosb in STATUSES
    for pending in (0, 1)
    if not (ret == STATUS_PENDING and not pending)
]
WORDS: Final = struct.Struct("<III")


def code(method: int) -> int:
    """The control code for one method."""
    return ctl_code(_DEVICE_TYPE, 0x800, method, 0)


def expected_data(method: int, iosb: int) -> bytes:
    """W1, W2: what the caller's six bytes are afterwards."""
    if method != METHOD_BUFFERED:
        return b"ghijkl"
    return b"abcdef" if nt_error(iosb) else b"ghidef"


def is_delivered(iosb: int, pending: int) -> bool:
    """W5, W6: whether an overlapped caller is told at all."""
    return bool(pending) or not nt_error(iosb)


def return_status(device: Any, irp: Any) -> int:
    """Do as the input says."""
    location = get_current_irp_stack_location(irp)
    space = irp.thread.process.address_space
    method = location.io_control_code & 3
    if method == METHOD_NEITHER:
        data = space.read(location.type3_input_buffer, WORDS.size)
    else:
        data = bytes(irp.system_buffer[: WORDS.size])
    ret, iosb, pending = WORDS.unpack(data)
    if pending:
        mark_irp_pending(irp)
    if method == METHOD_BUFFERED:
        irp.system_buffer[:6] = b"ghijkl"
    elif method == METHOD_OUT_DIRECT:
        map_locked_pages(irp.mdl_address).write(0, b"ghijkl")
    else:
        space.write(irp.user_buffer, b"ghijkl")
    irp.status = iosb
    irp.information = 3
    complete_request(irp)
    return int(ret)


def _succeed(device: Any, irp: Any) -> int:
    complete_request(irp)
    return STATUS_SUCCESS


def driver_entry(driver: DriverObject) -> int:
    """Make the device."""
    device = create_device(driver, DEVICE, _DEVICE_TYPE)
    for major in (IRP_MJ_CREATE, IRP_MJ_CLEANUP, IRP_MJ_CLOSE):
        driver.major_function[major] = _succeed
    driver.major_function[IRP_MJ_DEVICE_CONTROL] = return_status
    driver.driver_unload = lambda _: delete_device(device)
    return STATUS_SUCCESS
