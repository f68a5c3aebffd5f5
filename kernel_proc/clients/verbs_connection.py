"""How kernel code comes to the verbs: it opens the HCA's device and asks for the driver's table.

Rules: PASSIVE_LEVEL in a kernel thread. What a client made is gone with its file.
Spec: channel_interface/verbs_table.py; WDK, IoGetDeviceObjectPointer.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernel_proc.channel_interface.verbs_table import IOCTL_INTERNAL_QUERY_VERBS, VerbsTable
from kernel_proc.io_manager.create_close import get_device_object_pointer
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import get_next_irp_stack_location
from kernel_proc.io_manager.stack_location import IoStatusBlock
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import FILE_READ_ACCESS, FILE_WRITE_ACCESS
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_NO_SUCH_DEVICE,
    STATUS_PENDING,
    nt_success,
)
from shared.verb_codes import HCA_DEVICE

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.namespace import IoManager


def open_verbs(io: "IoManager") -> "tuple[FileObject, VerbsTable]":
    """Open the HCA's device; return the file, whose last reference ends it all, and the table.

    RaisedStatus if there is no HCA, or it is dead.
    """
    thread = io.processor.current_thread
    assert thread is not None, "not in a thread"
    status, file, device = get_device_object_pointer(
        io, thread, HCA_DEVICE, FILE_READ_ACCESS | FILE_WRITE_ACCESS
    )
    if file is None or device is None:
        raise RaisedStatus(status, "the HCA's device cannot be opened")
    try:
        found: list[VerbsTable] = []
        ask_driver(device, IOCTL_INTERNAL_QUERY_VERBS, None, found, file)
    except BaseException:
        file.dereference()
        raise
    return file, found[0]


@contextlib.contextmanager
def opened_verbs(io: "IoManager") -> Iterator[VerbsTable]:
    """Do the same; the file is closed at the end."""
    file, table = open_verbs(io)
    try:
        yield table
    finally:
        file.dereference()


def ask_driver(
    device: "DeviceObject",
    code: int,
    argument: object,
    found: list[Any],
    file: "FileObject | None" = None,
) -> None:
    """Send an internal request whose answer the driver appends to `found`."""
    event, iosb = Event(device.processor, notification=True), IoStatusBlock()
    irp = build_device_io_control_request(code, device, argument, 0, found, 0, True, event, iosb)
    if irp is None:
        raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, "internal request to the HCA driver")
    get_next_irp_stack_location(irp).file_object = file
    status = call_driver(device, irp)
    if status == STATUS_PENDING:
        event.wait()
        status = iosb.status
    if not nt_success(status) or not found:
        raise RaisedStatus(status or STATUS_NO_SUCH_DEVICE, "internal request to the HCA driver")
