"""The control device of a kernel's HCA, as the commands that are about the HCA open it.

Rules: imported when it is called; main thread only.
Spec: shared/verb_codes.py (HCA_CONTROL_DEVICE).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.nt_status import STATUS_OBJECT_NAME_NOT_FOUND
from shared.verb_codes import HCA_CONTROL_DEVICE
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess


class NoHca(SofthcaError):
    """The kernel runs without an HCA."""


@contextmanager
def hca_control(name: str) -> Iterator[DeviceHandle]:
    """Have the control device of a kernel's HCA open; NoHca if there is none."""
    with UserProcess.connect(name) as process:
        try:
            device = process.open_device(HCA_CONTROL_DEVICE)
        except NtStatusError as error:
            if error.status != STATUS_OBJECT_NAME_NOT_FOUND:
                raise
            raise NoHca(f"the kernel {name!r} runs without an HCA") from error
        with device:
            yield device
