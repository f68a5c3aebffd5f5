"""The kernel's trace ring, switched and read by device controls.

Rules: dispatch routines at PASSIVE_LEVEL.
Spec: shared/ioctl_codes.py, shared/trace_points.py.
"""

from typing import Final

from kernel_proc.io_manager.irp import IoStackLocation, Irp
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import IOCTL_TRACE_CONTROL, IOCTL_TRACE_FETCH
from shared.nt_status import STATUS_INVALID_PARAMETER
from shared.trace_points import POINT_SIZE, pack_points, trace

TRACE_CODES: Final = frozenset({IOCTL_TRACE_CONTROL, IOCTL_TRACE_FETCH})
_OFF: Final = (0).to_bytes(4, "little")
_ON: Final = (1).to_bytes(4, "little")


def control_trace(irp: Irp, location: IoStackLocation) -> int:
    """Do what one of TRACE_CODES asks; return Information, or raise RaisedStatus."""
    if location.io_control_code == IOCTL_TRACE_CONTROL:
        _switch(bytes(irp.system_buffer or b"")[: location.input_buffer_length])
        return 0
    points = trace.last(location.output_buffer_length // POINT_SIZE)
    packed = pack_points(points)
    if packed:
        irp.system_buffer[: len(packed)] = packed
    return len(packed)


def _switch(wanted: bytes) -> None:
    if wanted == _ON:
        trace.clear()
    elif wanted != _OFF:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "neither 0 nor 1")
    trace.enabled = wanted == _ON
