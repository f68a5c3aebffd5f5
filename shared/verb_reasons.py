"""Why a verb was refused: the second field of VERB_RESULT.

The comment of a member says what `object` and `detail` of the answer mean; without one both are 0.
The driver core has 1 to 99, queues and notification 100 to 199.
"""

from enum import IntEnum


class VerbReason(IntEnum):
    """The reason of a refusal; NONE goes with errno 0."""

    NONE = 0

    # The door
    MALFORMED = 1  # the input is not the message this verb takes
    DEVICE_FATAL = 3  # the HCA died, or the context is older than its last reset

    # Objects
    NO_SUCH_OBJECT = 6  # object: the handle
    WRONG_KIND = 7  # object: the handle, which names another kind of object
    IN_USE = 8  # object: the handle; detail: objects that use it
    OUT_OF_NUMBERS = 9  # the device's table is full; detail: its size
    OUT_OF_HANDLES = 10  # detail: objects one process may have
    OUT_OF_DOORBELLS = 11  # the session's doorbell segment is full; detail: its slots

    # Commands
    COMMAND_FAILED = 12  # detail: opcode << 8 | status of the command
    COMMAND_TIMEOUT = 13  # detail: opcode

    # Memory
    OUT_OF_MEMORY = 14  # kernel memory; object: 1 if it is to be in one piece; detail: bytes
    OUT_OF_TRANSLATIONS = 15  # no run of MTT segments so long; detail: entries needed
    LENGTH_ZERO = 16
    RANGE_WRAPS = 17  # object: address; detail: length
    NOT_MAPPED = 18  # object: the address that faulted; detail: 1 if it cannot be written
    TOO_MANY_LOCKED_PAGES = 19  # the process's limit; detail: pages asked
    NOT_IN_ONE_ARENA = 20  # object: address; detail: length
    UNKNOWN_ACCESS_BITS = 21  # detail: the bits
    ACCESS_NEEDS_LOCAL_WRITE = 22  # detail: the access asked
    ACCESS_NOT_SUPPORTED = 23  # detail: the bits
    # Of rereg_mr, `detail` is always how far below 0 the ibv_rereg_mr_err_code lies, whatever the
    # reason: 1 where the region is as it was, 4 where it can only be deregistered.
    UNKNOWN_REREG_FLAGS = 24  # object: the flags
    REREG_NO_RANGE = 25
    REREG_ACCESS_WITHOUT_FLAG = 26  # object: the access given
    REREG_FAILED = 27  # object: opcode << 8 | status of the command that failed, or 0
    IOVA_MISALIGNED = 28  # iova and address differ within a page; detail: iova

    # Device, ports, address handles
    NO_SUCH_PORT = 29  # object: the port; detail: ports
    NO_SUCH_INDEX = 30  # object: the index; detail: length of the table
    UNKNOWN_CAPABILITY_BITS = 31  # detail: the bits
    MAD_FAILED = 32  # object: attribute; detail: status of the datagram
    BAD_SERVICE_LEVEL = 34  # detail: the value, as of the four that follow
    BAD_STATIC_RATE = 35
    BAD_LID = 36
    BAD_PATH_BITS = 37
    BAD_FLOW_LABEL = 38
    BAD_HOP_LIMIT_OR_CLASS = 39
    BAD_GID = 40  # detail: its length in bytes
    OUT_OF_SHARE = 41  # one process may not have more of the device's table; detail: its share
    BAD_WINDOW_TYPE = 42  # detail: the type, which is no ibv_mw_type
    WINDOWS_BOUND = 43  # object: the region's handle
    BEYOND_DEVICE_MEMORY = 60  # object: bytes asked; detail: bytes the device has
    DEVICE_MEMORY_TAKEN = 61  # object: bytes asked; detail: bytes left
    OUTSIDE_DEVICE_MEMORY = 62  # object: where the range ends; detail: the length
    BAD_DM_ALIGNMENT = 63  # object: its log2; detail: the largest
    DEVICE_MEMORY_IS_ZERO_BASED = 64  # detail: the access asked
    REREG_OF_DEVICE_MEMORY = 65  # object: the region's handle
    NOT_EXPORTED = 66  # object: the descriptor
    EXPORTED_ALREADY = 67  # object: the descriptor; or its context is exported by another
    OF_ANOTHER_DOMAIN = 68  # object: the region's handle; detail: the number of the domain given
    REREG_OF_IMPORTED = 69  # object: the region's handle
    BAD_PORT_SETTING = 70  # object: the PortSetting; detail: the value

    # Queues. "Transition" is QP type << 16 | present state << 8 | state asked
    BAD_CQE = 100  # object: entries asked; detail: most entries
    BAD_COMP_VECTOR = 101  # object: the vector; detail: vectors there are
    BUFFER_TOO_SMALL = 102  # object: bytes given; detail: bytes needed
    BUFFER_MISALIGNED = 103  # object: the address; detail: its alignment
    CREATE_FLAGS_NOT_SUPPORTED = 105  # detail: the bits
    SEND_OPS_NOT_SUPPORTED = 106  # detail: the bits
    CQ_HOLDS_MORE = 107  # object: entries asked; more wait to be polled
    BAD_MAX_WR = 108  # object: requests asked; detail: most requests
    BAD_MAX_SGE = 109  # object: elements asked; detail: most elements
    BAD_MAX_INLINE = 110  # object: bytes asked; detail: most bytes
    PD_NEEDED = 111
    SEND_CQ_NEEDED = 112
    RECEIVE_CQ_NEEDED = 113
    XRCD_NEEDED = 114
    XRC_CQ_NEEDED = 115  # an XRC shared receive queue has a CQ
    NOT_FOR_THIS_TYPE = 116  # object: the handle given; detail: the type of queue
    SRQ_TYPE_NOT_SUPPORTED = 117  # detail: the type
    SRQ_RESIZE_NOT_SUPPORTED = 118  # detail: requests asked
    SRQ_LIMIT_ABOVE_SIZE = 119  # object: the limit; detail: requests it holds
    QP_TYPE_NOT_SUPPORTED = 120  # detail: the type

    # Changing a queue pair
    UNKNOWN_ATTRIBUTES = 130  # detail: the bits of the mask
    BAD_STATE = 131  # object: 0 qp_state, 1 cur_qp_state; detail: the value
    CUR_STATE_NOT_ALLOWED = 132  # detail: the present state
    NO_SUCH_TRANSITION = 133  # object: transition
    ATTRIBUTES_MISSING = 134  # object: transition; detail: the bits
    ATTRIBUTES_NOT_ALLOWED = 135  # object: transition; detail: the bits
    ALTERNATE_PATH_NOT_SUPPORTED = 136  # detail: the bits
    BAD_PORT = 137  # object: the port; detail: ports there are
    BAD_PATH_PORT = 138  # object: the path's port; detail: the one it must be
    BAD_PKEY_INDEX = 139  # object: the index; detail: length of the table
    BAD_SGID_INDEX = 140  # object: the index; detail: length of the table
    EMPTY_SGID_INDEX = 141  # object: the index
    BAD_PATH_MTU = 142  # object: the ibv_mtu; detail: the port's
    BAD_TIMEOUT = 143  # object: the value; detail: the largest, as of the four that follow
    BAD_RETRY_COUNT = 144
    BAD_RNR_RETRY = 145
    BAD_RNR_TIMER = 146
    BAD_RD_ATOMIC = 147
    BAD_DEST_RD_ATOMIC = 148  # object: the value; detail: the largest
    CONTROLLED_QKEY = 149  # detail: the key

    # Domains, multicast, notification
    BAD_DESCRIPTOR = 160  # object: the descriptor
    DOMAIN_EXISTS = 161
    NO_DOMAIN = 162
    NOT_UD = 164  # detail: the type of the QP
    NOT_MULTICAST_GID = 165  # detail: its first byte
    NOT_MULTICAST_LID = 166  # object: the LID
    NOT_ATTACHED = 167
    GROUP_FULL = 168  # detail: most queue pairs of a group
    MULTICAST_TABLE_FULL = 169  # detail: entries
    STILL_ATTACHED = 170  # object: the handle; detail: groups
    CQ_WITHOUT_CHANNEL = 171  # object: the handle
    NOT_PER_OBJECT = 172  # object: the handle; the event belongs to the device
    NO_DOORBELLS = 173  # the process has not asked for its doorbell segment
    WOULD_WAIT = 174  # a kernel client called above APC_LEVEL
    # Object: the handle; detail: opcode. The device did not say in which memory the queue is now,
    # so both memories must be kept until it is destroyed.
    RESIZE_UNCERTAIN = 175
