"""The verbs as control codes of the HCA's device, and how each answer begins.

Every code is METHOD_BUFFERED. The input is a message of `verb_messages`. The IRP of a verb that is
refused still completes with STATUS_SUCCESS: the refusal is data. The output begins with
VERB_RESULT; when its errno is 0, the verb's reply message follows, if the verb has one.

The notification requests at the end are pended in the driver until their event comes.

Spec: WinOF core/al/kernel/al_dev.h (all METHOD_BUFFERED, any access).
"""

import struct
from enum import IntEnum
from typing import Final

from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_BUFFERED, ctl_code

HCA_DEVICE: Final = "mthca0"
HCA_DEVICE_TYPE: Final = 0x8003
#: The same driver's device for what concerns the HCA as a whole; open also while it is dead.
HCA_CONTROL_DEVICE: Final = "mthca0_control"

# errno, reason (verb_reasons), object (a handle or number), detail (its meaning is the reason's)
VERB_RESULT: Final = struct.Struct("<IIQQ")

#: Room for any reply.
VERB_OUTPUT_LENGTH: Final = 2048


def _verb(function: int) -> int:
    return ctl_code(HCA_DEVICE_TYPE, 0x800 + function, METHOD_BUFFERED, FILE_ANY_ACCESS)


IOCTL_OPEN_CONTEXT: Final = _verb(0)
IOCTL_QUERY_DEVICE: Final = _verb(1)
IOCTL_QUERY_PORT: Final = _verb(2)
IOCTL_QUERY_GID: Final = _verb(3)
IOCTL_QUERY_PKEY: Final = _verb(4)
IOCTL_MODIFY_PORT: Final = _verb(5)
IOCTL_ALLOC_PD: Final = _verb(6)
IOCTL_DEALLOC_PD: Final = _verb(7)
IOCTL_REG_MR: Final = _verb(8)
IOCTL_REREG_MR: Final = _verb(9)
IOCTL_DEREG_MR: Final = _verb(10)
IOCTL_CREATE_AH: Final = _verb(11)
IOCTL_DESTROY_AH: Final = _verb(12)
IOCTL_CREATE_CQ: Final = _verb(13)
IOCTL_RESIZE_CQ: Final = _verb(14)
IOCTL_DESTROY_CQ: Final = _verb(15)
IOCTL_CREATE_SRQ: Final = _verb(16)
IOCTL_MODIFY_SRQ: Final = _verb(17)
IOCTL_QUERY_SRQ: Final = _verb(18)
IOCTL_DESTROY_SRQ: Final = _verb(19)
IOCTL_CREATE_QP: Final = _verb(20)
IOCTL_MODIFY_QP: Final = _verb(21)
IOCTL_QUERY_QP: Final = _verb(22)
IOCTL_DESTROY_QP: Final = _verb(23)
IOCTL_OPEN_XRCD: Final = _verb(24)
IOCTL_CLOSE_XRCD: Final = _verb(25)
IOCTL_ATTACH_MCAST: Final = _verb(26)
IOCTL_DETACH_MCAST: Final = _verb(27)
IOCTL_ALLOC_MW: Final = _verb(28)
IOCTL_DEALLOC_MW: Final = _verb(29)
IOCTL_QUERY_DEVICE_EX: Final = _verb(32)
IOCTL_QUERY_CLOCK: Final = _verb(33)
IOCTL_ALLOC_DM: Final = _verb(34)
IOCTL_FREE_DM: Final = _verb(35)
IOCTL_COPY_TO_DM: Final = _verb(36)
IOCTL_COPY_FROM_DM: Final = _verb(37)
IOCTL_REG_DM_MR: Final = _verb(38)
IOCTL_EXPORT_CONTEXT: Final = _verb(39)
IOCTL_IMPORT_CONTEXT: Final = _verb(40)
IOCTL_IMPORT_PD: Final = _verb(41)
IOCTL_IMPORT_MR: Final = _verb(42)
IOCTL_IMPORT_DM: Final = _verb(43)

IOCTL_GET_CA_FATAL_EVENT: Final = _verb(0x40)
IOCTL_GET_CA_PORT_EVENT: Final = _verb(0x41)
IOCTL_GET_CQ_COMP_EVENT: Final = _verb(0x42)
IOCTL_GET_CQ_ASYNC_EVENT: Final = _verb(0x43)
IOCTL_GET_QP_ASYNC_EVENT: Final = _verb(0x44)
IOCTL_GET_SRQ_ASYNC_EVENT: Final = _verb(0x45)

#: Of the control device: no input, VERB_RESULT as output. Contexts of before stay dead.
IOCTL_RESET_HCA: Final = _verb(0x80)
#: Of the control device: INSPECT_QUEUE_PAIR as input; behind VERB_RESULT what the QP of that number
#: was last asked to do, as JSON. EIO if the HCA does not answer, EINVAL if it has no such QP.
IOCTL_INSPECT_QUEUE_PAIR: Final = _verb(0x81)
#: Of the control device: SET_PORT as input, VERB_RESULT as output: what a subnet manager sets.
IOCTL_SET_PORT: Final = _verb(0x82)


class PortSetting(IntEnum):
    """What of a port is set; of the tables also at which place."""

    PKEY = 1
    GUID = 2  # of a GID; that at place 0 is the port's own
    LID = 3
    GID_PREFIX = 4
    REREGISTER = 5  # no value: clients are asked to register anew


#: Port, PortSetting, place in the table, value.
SET_PORT: Final = struct.Struct("<III4xQ")
INSPECT_QUEUE_PAIR: Final = struct.Struct("<I")
#: Room for any queue pair's requests.
INSPECT_OUTPUT_LENGTH: Final = 2 << 20

VERB_NAMES: Final[dict[int, str]] = {
    IOCTL_OPEN_CONTEXT: "open_context",
    IOCTL_QUERY_DEVICE: "query_device",
    IOCTL_QUERY_PORT: "query_port",
    IOCTL_QUERY_GID: "query_gid",
    IOCTL_QUERY_PKEY: "query_pkey",
    IOCTL_MODIFY_PORT: "modify_port",
    IOCTL_ALLOC_PD: "alloc_pd",
    IOCTL_DEALLOC_PD: "dealloc_pd",
    IOCTL_REG_MR: "reg_mr",
    IOCTL_REREG_MR: "rereg_mr",
    IOCTL_DEREG_MR: "dereg_mr",
    IOCTL_CREATE_AH: "create_ah",
    IOCTL_DESTROY_AH: "destroy_ah",
    IOCTL_CREATE_CQ: "create_cq",
    IOCTL_RESIZE_CQ: "resize_cq",
    IOCTL_DESTROY_CQ: "destroy_cq",
    IOCTL_CREATE_SRQ: "create_srq",
    IOCTL_MODIFY_SRQ: "modify_srq",
    IOCTL_QUERY_SRQ: "query_srq",
    IOCTL_DESTROY_SRQ: "destroy_srq",
    IOCTL_CREATE_QP: "create_qp",
    IOCTL_MODIFY_QP: "modify_qp",
    IOCTL_QUERY_QP: "query_qp",
    IOCTL_DESTROY_QP: "destroy_qp",
    IOCTL_OPEN_XRCD: "open_xrcd",
    IOCTL_CLOSE_XRCD: "close_xrcd",
    IOCTL_ATTACH_MCAST: "attach_mcast",
    IOCTL_DETACH_MCAST: "detach_mcast",
    IOCTL_ALLOC_MW: "alloc_mw",
    IOCTL_DEALLOC_MW: "dealloc_mw",
    IOCTL_QUERY_DEVICE_EX: "query_device_ex",
    IOCTL_QUERY_CLOCK: "query_clock",
    IOCTL_ALLOC_DM: "alloc_dm",
    IOCTL_FREE_DM: "free_dm",
    IOCTL_COPY_TO_DM: "copy_to_dm",
    IOCTL_COPY_FROM_DM: "copy_from_dm",
    IOCTL_REG_DM_MR: "reg_dm_mr",
    IOCTL_EXPORT_CONTEXT: "export_context",
    IOCTL_IMPORT_CONTEXT: "import_context",
    IOCTL_IMPORT_PD: "import_pd",
    IOCTL_IMPORT_MR: "import_mr",
    IOCTL_IMPORT_DM: "import_dm",
    IOCTL_GET_CA_FATAL_EVENT: "get_ca_fatal_event",
    IOCTL_GET_CA_PORT_EVENT: "get_ca_port_event",
    IOCTL_GET_CQ_COMP_EVENT: "get_cq_comp_event",
    IOCTL_GET_CQ_ASYNC_EVENT: "get_cq_async_event",
    IOCTL_GET_QP_ASYNC_EVENT: "get_qp_async_event",
    IOCTL_GET_SRQ_ASYNC_EVENT: "get_srq_async_event",
}
