"""The control device: to reset the HCA, look into it, or set a port as a subnet manager does.

It can be opened whatever state the HCA is in.

A device of its own, because the HCA's cannot be opened while the HCA is dead. Everybody who can
reach this kernel may ask: they are processes of one user.

Rules: PASSIVE_LEVEL in the caller's thread, which waits in kernel mode until the reset is over; its
end does not break one off. The reset runs in a system thread. Resets come one after the other.
Spec: shared/verb_codes.py (IOCTL_RESET_HCA and what follows); WDK, Using Control Device
Objects.
"""

import errno
import json
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.port_settings import set_port
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS,
)
from shared.verb_codes import (
    INSPECT_QUEUE_PAIR,
    IOCTL_INSPECT_QUEUE_PAIR,
    IOCTL_RESET_HCA,
    IOCTL_SET_PORT,
    SET_PORT,
    VERB_RESULT,
)
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_extension import HcaExtension
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.processor import Processor

_DONE: Final = VERB_RESULT.pack(0, VerbReason.NONE, 0, 0)
_TELLING_NS: Final = 2_000_000_000
_STAYS_DEAD: Final = VERB_RESULT.pack(errno.EIO, VerbReason.DEVICE_FATAL, 0, 0)


class HcaControl:
    """The extension of the control device: the HCA it is for; `setting` while a port is set."""

    __slots__ = ("hca", "setting")

    def __init__(self, hca: "HcaExtension", processor: "Processor") -> None:
        self.hca = hca
        self.setting = Mutex(processor)


def create_or_close(device: "DeviceObject", irp: "Irp") -> int:
    """Serve IRP_MJ_CREATE, IRP_MJ_CLEANUP and IRP_MJ_CLOSE: a file here holds nothing."""
    return _complete(irp, STATUS_SUCCESS)


def device_control(device: "DeviceObject", irp: "Irp") -> int:
    """Do what is asked; the output begins with VERB_RESULT: EIO if there is no HCA, or it is mute.

    A queue pair the HCA does not have is EINVAL, NO_SUCH_OBJECT.
    """
    location = irp.stack[irp.current_location]
    hca: HcaExtension = device.device_extension.hca
    if location.io_control_code == IOCTL_RESET_HCA:
        if location.output_buffer_length < VERB_RESULT.size:
            return _complete(irp, STATUS_BUFFER_TOO_SMALL)
        output = _DONE if _reset(device, hca) else _STAYS_DEAD
    elif location.io_control_code == IOCTL_INSPECT_QUEUE_PAIR:
        if location.input_buffer_length != INSPECT_QUEUE_PAIR.size:
            return _complete(irp, STATUS_INVALID_PARAMETER)
        (number,) = INSPECT_QUEUE_PAIR.unpack_from(irp.system_buffer)
        output = _inspect(hca, number)
        if location.output_buffer_length < len(output):
            return _complete(irp, STATUS_BUFFER_TOO_SMALL)
    elif location.io_control_code == IOCTL_SET_PORT:
        if location.input_buffer_length != SET_PORT.size:
            return _complete(irp, STATUS_INVALID_PARAMETER)
        if location.output_buffer_length < VERB_RESULT.size:
            return _complete(irp, STATUS_BUFFER_TOO_SMALL)
        output = _set_port(device, bytes(irp.system_buffer[: SET_PORT.size]))
    else:
        return _complete(irp, STATUS_INVALID_DEVICE_REQUEST)
    irp.system_buffer[: len(output)] = output
    return _complete(irp, STATUS_SUCCESS, len(output))


def _inspect(hca: "HcaExtension", number: int) -> bytes:
    told = hca.inspect_queue_pair(number, _TELLING_NS) if number else {}
    if "error" in told:
        return _STAYS_DEAD
    if not told:
        return VERB_RESULT.pack(errno.EINVAL, VerbReason.NO_SUCH_OBJECT, number, 0)
    return _DONE + json.dumps(told, separators=(",", ":")).encode()


def _set_port(device: "DeviceObject", asked: bytes) -> bytes:
    """Set a port; one after the other, as each reads before it writes."""
    extension: HcaControl = device.device_extension
    extension.setting.wait()
    try:
        set_port(extension.hca.life, *SET_PORT.unpack(asked))
    except VerbRefused as refusal:
        return VERB_RESULT.pack(refusal.errno, refusal.reason, refusal.object, refusal.detail)
    finally:
        extension.setting.release()
    return _DONE


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
