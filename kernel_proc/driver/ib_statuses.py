"""The IBAL status of a refused verb, from its reason, else its errno.

Spec: WinOF inc/iba/ib_types.h, inc/iba/ib_al.h (the statuses each call lists).
"""

import errno
from typing import Final

from kernel_proc.channel_interface.ib_status import IbStatus
from shared.verb_reasons import VerbReason

_BY_REASON: Final = {
    VerbReason.NO_SUCH_OBJECT: IbStatus.INVALID_HANDLE,
    VerbReason.WRONG_KIND: IbStatus.INVALID_HANDLE,
    VerbReason.PD_NEEDED: IbStatus.INVALID_HANDLE,
    VerbReason.SEND_CQ_NEEDED: IbStatus.INVALID_CQ_HANDLE,
    VerbReason.RECEIVE_CQ_NEEDED: IbStatus.INVALID_CQ_HANDLE,
    VerbReason.WOULD_WAIT: IbStatus.INVALID_STATE,
    VerbReason.BAD_CQE: IbStatus.INVALID_CQ_SIZE,
    VerbReason.CQ_HOLDS_MORE: IbStatus.INVALID_CQ_SIZE,
    VerbReason.BAD_MAX_WR: IbStatus.INVALID_MAX_WRS,
    VerbReason.BAD_MAX_SGE: IbStatus.INVALID_MAX_SGE,
    VerbReason.NO_SUCH_PORT: IbStatus.INVALID_PORT,
    VerbReason.BAD_PORT: IbStatus.INVALID_PORT,
    VerbReason.BAD_PATH_PORT: IbStatus.INVALID_PORT,
    VerbReason.NO_SUCH_INDEX: IbStatus.INVALID_INDEX,
    VerbReason.BAD_PKEY_INDEX: IbStatus.INVALID_INDEX,
    VerbReason.BAD_SGID_INDEX: IbStatus.INVALID_INDEX,
    VerbReason.BAD_GID: IbStatus.INVALID_GID,
    VerbReason.NOT_MULTICAST_GID: IbStatus.INVALID_GID,
    VerbReason.BAD_LID: IbStatus.INVALID_LID,
    VerbReason.NOT_MULTICAST_LID: IbStatus.INVALID_LID,
    VerbReason.NO_SUCH_TRANSITION: IbStatus.INVALID_QP_STATE,
    VerbReason.CUR_STATE_NOT_ALLOWED: IbStatus.INVALID_QP_STATE,
    VerbReason.GROUP_FULL: IbStatus.MAX_MCAST_QPS_REACHED,
}
_BY_ERRNO: Final = {
    errno.EINVAL: IbStatus.INVALID_PARAMETER,
    errno.ENOMEM: IbStatus.INSUFFICIENT_RESOURCES,
    errno.EFAULT: IbStatus.INVALID_PERMISSION,
    errno.EBUSY: IbStatus.RESOURCE_BUSY,
    errno.EOPNOTSUPP: IbStatus.UNSUPPORTED,
    errno.EIO: IbStatus.INVALID_STATE,
    errno.EAGAIN: IbStatus.RESOURCE_BUSY,
}


def status_of(number: int, reason: int) -> IbStatus:
    """Return the status of a refusal with this errno and reason."""
    by_reason = _BY_REASON.get(VerbReason(reason))
    return _BY_ERRNO.get(number, IbStatus.ERROR) if by_reason is None else by_reason
