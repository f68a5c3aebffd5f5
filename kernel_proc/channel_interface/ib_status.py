"""What a call of the channel interface answers: the names of IBAL's ib_api_status_t.

Rules: SUCCESS is 0; the other numbers are the order in which the names stand here.
Spec: WinOF inc/iba/ib_types.h (ib_api_status_t), inc/iba/ib_ci.h.
"""

from enum import IntEnum


class IbStatus(IntEnum):
    """The statuses this driver gives."""

    SUCCESS = 0
    INSUFFICIENT_RESOURCES = 1
    INSUFFICIENT_MEMORY = 2
    INVALID_PARAMETER = 3
    INVALID_SETTING = 4
    NOT_FOUND = 5  # of poll: there is no completion
    TIMEOUT = 6
    INVALID_PERMISSION = 7
    UNSUPPORTED = 8
    MAX_MCAST_QPS_REACHED = 9
    INVALID_QP_STATE = 10
    INVALID_STATE = 11  # the call is for a lower IRQL, or the HCA is dead
    RESOURCE_BUSY = 12
    INVALID_MAX_WRS = 13
    INVALID_MAX_SGE = 14
    INVALID_CQ_SIZE = 15
    INVALID_GID = 16
    INVALID_LID = 17
    INVALID_PORT = 18
    INVALID_INDEX = 19
    INVALID_WR_TYPE = 20
    INVALID_HANDLE = 21  # of a control verb, whichever kind of object was meant
    INVALID_AV_HANDLE = 22
    INVALID_CQ_HANDLE = 23
    INVALID_QP_HANDLE = 24
    INVALID_SRQ_HANDLE = 25
    ERROR = 26
