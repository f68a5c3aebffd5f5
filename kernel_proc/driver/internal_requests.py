"""What kernel code asks the driver: the table of verbs, the journal of commands.

Rules: the journal at <= DISPATCH_LEVEL, the table at PASSIVE_LEVEL; completed at once.
Spec: channel_interface/verbs_table.py, channel_interface/command_journal.py.
"""

from typing import TYPE_CHECKING

from kernel_proc.channel_interface.command_journal import (
    IOCTL_INTERNAL_READ_JOURNAL,
    CommandJournal,
)
from kernel_proc.channel_interface.verbs_table import IOCTL_INTERNAL_QUERY_VERBS
from kernel_proc.driver import kernel_client
from kernel_proc.io_manager.completion import complete_request
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.driver.hca_extension import HcaExtension
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp


def internal_device_control(device: "DeviceObject", irp: "Irp") -> int:
    """Serve a kernel client; a code that is not one of ours is a verb."""
    location = irp.stack[irp.current_location]
    code = location.io_control_code
    if code == IOCTL_INTERNAL_READ_JOURNAL:
        extension: HcaExtension = device.device_extension
        irp.user_buffer.append(journal_after(extension, location.type3_input_buffer))
        irp.status = STATUS_SUCCESS
        irp.information = 0
        complete_request(irp)
        return STATUS_SUCCESS
    if code == IOCTL_INTERNAL_QUERY_VERBS:
        # The client may run in a user's thread, but its queues are the kernel's.
        assert location.file_object is not None
        location.file_object.fs_context.ring_for_kernel()
    return kernel_client.internal_device_control(device, irp)


def journal_after(extension: "HcaExtension", verb: int) -> CommandJournal:
    """Return the commands of the verbs after a number, as far as they are remembered."""
    life = extension.life
    records = [record for record in life.channel.journal if record.verb > verb]
    return CommandJournal(life.verbs, records)
