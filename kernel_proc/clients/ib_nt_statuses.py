"""The NTSTATUS of a verb that the channel interface refused: the one table from IBAL's statuses.

Spec: WinOF core/al/kernel/al_proxy.c (ib_to_ntstatus).
"""

from typing import Final

from kernel_proc.channel_interface.ib_status import IbStatus
from shared import nt_status as nt

_PARAMETERS: Final = (
    IbStatus.INVALID_PARAMETER,
    IbStatus.INVALID_SETTING,
    IbStatus.INVALID_MAX_WRS,
    IbStatus.INVALID_MAX_SGE,
    IbStatus.INVALID_CQ_SIZE,
    IbStatus.INVALID_GID,
    IbStatus.INVALID_LID,
    IbStatus.INVALID_PORT,
    IbStatus.INVALID_INDEX,
    IbStatus.INVALID_WR_TYPE,
)
_HANDLES: Final = (
    IbStatus.INVALID_HANDLE,
    IbStatus.INVALID_AV_HANDLE,
    IbStatus.INVALID_CQ_HANDLE,
    IbStatus.INVALID_QP_HANDLE,
    IbStatus.INVALID_SRQ_HANDLE,
)
_NT_STATUSES: Final[dict[IbStatus, int]] = {
    **dict.fromkeys(_PARAMETERS, nt.STATUS_INVALID_PARAMETER),
    **dict.fromkeys(_HANDLES, nt.STATUS_INVALID_HANDLE),
    IbStatus.SUCCESS: nt.STATUS_SUCCESS,
    IbStatus.INSUFFICIENT_RESOURCES: nt.STATUS_INSUFFICIENT_RESOURCES,
    IbStatus.MAX_MCAST_QPS_REACHED: nt.STATUS_INSUFFICIENT_RESOURCES,
    IbStatus.INSUFFICIENT_MEMORY: nt.STATUS_NO_MEMORY,
    IbStatus.NOT_FOUND: nt.STATUS_NOT_FOUND,
    IbStatus.TIMEOUT: nt.STATUS_IO_TIMEOUT,  # STATUS_TIMEOUT counts as a success
    IbStatus.INVALID_PERMISSION: nt.STATUS_ACCESS_DENIED,
    IbStatus.UNSUPPORTED: nt.STATUS_INVALID_DEVICE_REQUEST,
    IbStatus.INVALID_QP_STATE: nt.STATUS_CONNECTION_INVALID,
    IbStatus.INVALID_STATE: nt.STATUS_INVALID_DEVICE_STATE,
    IbStatus.RESOURCE_BUSY: nt.STATUS_DEVICE_BUSY,
    IbStatus.ERROR: nt.STATUS_UNSUCCESSFUL,
}


def nt_status_of(status: IbStatus) -> int:
    """Return the NTSTATUS a kernel client completes a request with for a verb of this status."""
    return _NT_STATUSES[status]
