"""Faults of a running kernel: set, taken back, listed.

Rules: a thread that may call the kernel. FaultRefused says in one sentence why not.
"""

import json
from typing import Any

from shared.fault_messages import Fault
from shared.fault_points import (
    FAULT_DEVICE,
    FAULT_OUTPUT_LENGTH,
    IOCTL_CLEAR_FAULTS,
    IOCTL_LIST_FAULTS,
    IOCTL_SET_FAULT,
)
from shared.message_codec import encode
from user_proc.errors import ProtocolError, SofthcaError
from user_proc.process import UserProcess


class FaultRefused(SofthcaError):
    """The kernel cannot do what was asked."""


def set_fault(process: UserProcess, fault: Fault) -> int:
    """Set a fault; return its number."""
    return int(_asked(process, IOCTL_SET_FAULT, encode(fault))["number"])


def clear_faults(process: UserProcess, point: str = "") -> int:
    """Take back the faults of a point, or all; return how many there were."""
    return int(_asked(process, IOCTL_CLEAR_FAULTS, point.encode())["cleared"])


def list_faults(process: UserProcess) -> tuple[list[dict[str, Any]], str]:
    """Return every fault that is set, with its calls and hits; and why those may be old."""
    answer = _ask(process, IOCTL_LIST_FAULTS, b"")
    return answer["faults"], answer.get("error", "")


def _asked(process: UserProcess, code: int, given: bytes) -> dict[str, Any]:
    answer = _ask(process, code, given)
    if "error" in answer:
        raise FaultRefused(answer["error"])
    return answer


def _ask(process: UserProcess, code: int, given: bytes) -> dict[str, Any]:
    output = bytearray(FAULT_OUTPUT_LENGTH)
    with process.open_device(FAULT_DEVICE) as device:
        length = device.device_io_control(code, given or None, output)
    try:
        answer: dict[str, Any] = json.loads(output[:length])
    except ValueError as error:
        raise ProtocolError(f"what the kernel says of its faults cannot be read: {error}") from None
    return answer
