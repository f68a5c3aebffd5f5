"""The control device: it can be opened whatever state the HCA is in, and takes one request, reset.

A device of its own, because the HCA's cannot be opened while the HCA is dead. Everybody who can
reach this kernel may ask: they are processes of one user.

Rules: PASSIVE_LEVEL in the caller's thread, which waits in kernel mode until the reset is over; its
end does not break one off. The reset runs in a system thread. Resets come one after the other.
Spec: shared/verb_codes.py (IOCTL_RESET_HCA); WDK, Using Control Device Objects.
"""

import errno
from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.scheduling.kthread import create_system_thread
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_SUCCESS,
)
from shared.verb_codes import IOCTL_RESET_HCA, VERB_RESULT
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_extension import HcaExtension
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp

_DONE: Final = VERB_RESULT.pack(0, VerbReason.NONE, 0, 0)
_STAYS_DEAD: Final = VERB_RESULT.pack(errno.EIO, VerbReason.DEVICE_FATAL, 0, 0)


class HcaControl:
    """The extension of the control device: the HCA it is for."""

    __slots__ = ("hca",)

    def __init__(self, hca: "HcaExtension") -> None:
        self.hca = hca


def create_or_close(device: "DeviceObject", irp: "Irp") -> int:
    """Serve IRP_MJ_CREATE, IRP_MJ_CLEANUP and IRP_MJ_CLOSE: a file here holds nothing."""
    return _complete(irp, STATUS_SUCCESS)


def device_control(device: "DeviceObject", irp: "Irp") -> int:
    """Reset the HCA; the output is VERB_RESULT, EIO if no HCA came up."""
    location = irp.stack[irp.current_location]
    if location.io_control_code != IOCTL_RESET_HCA:
        return _complete(irp, STATUS_INVALID_DEVICE_REQUEST)
    if location.output_buffer_length < VERB_RESULT.size:
        return _complete(irp, STATUS_BUFFER_TOO_SMALL)
    control: HcaControl = device.device_extension
    output = _DONE if _reset(device, control.hca) else _STAYS_DEAD
    irp.system_buffer[: len(output)] = output
    return _complete(irp, STATUS_SUCCESS, len(output))


def _reset(device: "DeviceObject", hca: "HcaExtension") -> bool:
    outcome: list[bool] = []
    processor = device.driver_object.processor
    thread = create_system_thread(
        processor, lambda: outcome.append(hca.reset()), name="reset of the HCA"
    )
    thread.wait()
    return outcome[0]


def _complete(irp: "Irp", status: int, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status
