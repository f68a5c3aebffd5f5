"""Why a verb was refused, as a sentence: the one table from VerbReason, object and detail to words.

Spec: shared/verb_reasons.py.
"""

from collections.abc import Callable
from typing import Final

from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type

_QP_STATES: Final = {int(state): state.name.removeprefix("IBV_QPS_") for state in ibv_qp_state}
_QP_TYPES: Final = {int(kind): kind.name.removeprefix("IBV_QPT_") for kind in ibv_qp_type}
_MTUS: Final = {code: 128 << code for code in range(1, 6)}

Text = str | Callable[[int, int], str]


def _type(number: int) -> str:
    return _QP_TYPES.get(number, f"type {number}")


def _c_int(number: int) -> int:
    """Give an int that the driver has as 32 bits without a sign."""
    return number - (1 << 32) if number >> 31 == 1 else number


def _state(number: int) -> str:
    return _QP_STATES.get(number, f"state {number}")


def _attributes(mask: int) -> str:
    """Name the bits of an attribute mask."""
    names = [bit.name for bit in ibv_qp_attr_mask if mask & bit]
    rest = mask & ~sum(ibv_qp_attr_mask)
    return ", ".join([*names, hex(rest)] if rest else names)


def _transition(packed: int) -> tuple[str, str]:
    """Give a transition and the type of queue pair it is for."""
    move = f"{_state(packed >> 8 & 0xFF)} to {_state(packed & 0xFF)}"
    return move, _type(packed >> 16)


def _missing(packed: int, mask: int) -> str:
    move, kind = _transition(packed)
    return f"{move} needs {_attributes(mask)} for {kind}"


def _not_allowed(packed: int, mask: int) -> str:
    move, kind = _transition(packed)
    return f"{move} does not take {_attributes(mask)} for {kind}"


def _no_transition(packed: int, _: int) -> str:
    move, kind = _transition(packed)
    return f"there is no transition {move} for {kind}"


def _bad_state(which: int, value: int) -> str:
    return f"{'cur_qp_state' if which else 'qp_state'} {value} is no state"


def _path_mtu(asked: int, most: int) -> str:
    if asked in _MTUS:
        return f"path_mtu {_MTUS[asked]} is more than the port's {_MTUS.get(most, most)}"
    return f"path_mtu {asked} is no ibv_mtu"


def _command(_: int, detail: int) -> str:
    return f"the device refused command {detail >> 8:#x} with status {detail & 0xFF:#x}"


_TEXTS: Final[dict[str, Text]] = {
    "NONE": "",
    "MALFORMED": "the driver did not understand the request: the library is of another version",
    "DEVICE_FATAL": (
        "the device has failed: close the context, and open it again after "
        "'softhca kernel reset-hca'"
    ),
    "NO_SUCH_OBJECT": "the context has no object {object}",
    "WRONG_KIND": "object {object} is of another kind",
    "IN_USE": lambda _, users: (
        "an object made on it still exists: close it first"
        if users == 1
        else f"{users} objects made on it still exist: close them first"
    ),
    "OUT_OF_NUMBERS": "all {detail} the device can have are in use",
    "OUT_OF_SHARE": "this process has {detail}, as many as one may (hca_percent_per_process)",
    "BAD_WINDOW_TYPE": "type {detail} is no ibv_mw_type",
    "WINDOWS_BOUND": "memory windows are bound to it: invalidate or close them first",
    "BEYOND_DEVICE_MEMORY": "the device has {detail} bytes of its own, fewer than {object}",
    "DEVICE_MEMORY_TAKEN": "{detail} bytes of device memory are left, fewer than {object}",
    "OUTSIDE_DEVICE_MEMORY": "the range ends at byte {object}, the memory at {detail}",
    "BAD_DM_ALIGNMENT": "log_align_req {object} is more than {detail}",
    "DEVICE_MEMORY_IS_ZERO_BASED": "access {detail:#x} lacks IBV_ACCESS_ZERO_BASED",
    "REREG_OF_DEVICE_MEMORY": "a region over device memory is registered anew, not changed",
    "NOT_EXPORTED": "descriptor {object} names no context that was exported",
    "OF_ANOTHER_DOMAIN": "region {object} is not of this protection domain",
    "BAD_PORT_SETTING": "a port cannot have {detail:#x} there",
    "REREG_OF_IMPORTED": "a region is changed by who registered it, not by who imported it",
    "EXPORTED_ALREADY": "descriptor {object} names a context already, or its context has another",
    "OUT_OF_HANDLES": "this process has {detail} objects, as many as it may",
    "OUT_OF_DOORBELLS": "all {detail} doorbells of this process are in use",
    "COMMAND_FAILED": _command,
    "COMMAND_TIMEOUT": "the device did not answer command {detail:#x} in time",
    "OUT_OF_MEMORY": lambda in_one_piece, length: (
        f"the kernel has no {length} bytes of memory the device can reach"
        + (" in one piece" if in_one_piece else "")
    ),
    "OUT_OF_TRANSLATIONS": "the device has no room for {detail} more page translations",
    "LENGTH_ZERO": "the length is 0",
    "RANGE_WRAPS": "{object:#x} and {detail:#x} bytes after it reach past the last address",
    "NOT_MAPPED": lambda where, detail: (
        f"the memory at {where:#x} {'cannot be written' if detail else 'is not mapped'}"
    ),
    "TOO_MANY_LOCKED_PAGES": "{detail} more pages are more than this process may lock",
    "NOT_IN_ONE_ARENA": "{detail} bytes at {object:#x} do not lie in one arena",
    "UNKNOWN_ACCESS_BITS": "access bits {detail:#x} are unknown",
    "ACCESS_NEEDS_LOCAL_WRITE": (
        "access {detail:#x}: IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need "
        "IBV_ACCESS_LOCAL_WRITE"
    ),
    "ACCESS_NOT_SUPPORTED": "the device does not support access bits {detail:#x}",
    "UNKNOWN_REREG_FLAGS": "flags {object:#x} are not IBV_REREG_MR_CHANGE_* only, or are 0",
    "REREG_NO_RANGE": "IBV_REREG_MR_CHANGE_TRANSLATION needs an address and a length",
    "REREG_ACCESS_WITHOUT_FLAG": "access {object:#x} was given without IBV_REREG_MR_CHANGE_ACCESS",
    "REREG_FAILED": lambda command, _: (
        "the region is unusable and must be closed"
        + (f": {_command(0, command)}" if command else "")
    ),
    "IOVA_MISALIGNED": "iova {detail:#x} and the address differ within a page",
    "NO_SUCH_PORT": "there is no port {object}: the device has ports 1 to {detail}",
    "NO_SUCH_INDEX": "there is no index {object}: the table has {detail} entries",
    "UNKNOWN_CAPABILITY_BITS": "capability bits {detail:#x} are unknown",
    "MAD_FAILED": "the port answered attribute {object:#x} with status {detail:#x}",
    "BAD_SERVICE_LEVEL": "sl {detail} is not 0 to 15",
    "BAD_STATIC_RATE": "static_rate {detail} is no ibv_rate",
    "BAD_LID": "dlid {detail:#x} is no LID one can send to",
    "BAD_PATH_BITS": "src_path_bits {detail} is more than the port's LMC allows",
    "BAD_FLOW_LABEL": "flow_label {detail:#x} has more than 20 bits",
    "BAD_HOP_LIMIT_OR_CLASS": "hop limit or traffic class {detail} has more than 8 bits",
    "BAD_GID": "a GID of {detail} bytes was given, not of 16",
    "BAD_CQE": lambda cqe, most: f"cqe {_c_int(cqe)} is not 1 to {most}",
    "BAD_COMP_VECTOR": lambda vector, count: (
        f"comp_vector {_c_int(vector)} is not 0 to {count - 1}"
    ),
    "BUFFER_TOO_SMALL": "the queue needs {detail} bytes of memory, it was given {object}",
    "BUFFER_MISALIGNED": "the queue's memory at {object:#x} is not aligned to {detail}",
    "CREATE_FLAGS_NOT_SUPPORTED": "the device does not support create_flags {detail:#x}",
    "SEND_OPS_NOT_SUPPORTED": (
        "the device or this type of queue pair does not support send_ops_flags {detail:#x}"
    ),
    "CQ_HOLDS_MORE": "more than {object} completions wait to be polled",
    "BAD_MAX_WR": "max_wr {object} is more than {detail}, or is 0",
    "BAD_MAX_SGE": "max_sge {object} is more than {detail}",
    "BAD_MAX_INLINE": "max_inline_data {object} is more than {detail}",
    "PD_NEEDED": "a protection domain is needed",
    "SEND_CQ_NEEDED": "a completion queue for sends (scq) is needed",
    "RECEIVE_CQ_NEEDED": "a completion queue for receives (rcq) is needed",
    "XRCD_NEEDED": "an XRC domain is needed",
    "XRC_CQ_NEEDED": "an XRC shared receive queue needs a completion queue",
    "NOT_FOR_THIS_TYPE": "object {object} is not for a queue of this type ({detail})",
    "SRQ_TYPE_NOT_SUPPORTED": "the device does not support shared receive queues of type {detail}",
    "SRQ_RESIZE_NOT_SUPPORTED": "the device cannot resize a shared receive queue (to {detail})",
    "SRQ_LIMIT_ABOVE_SIZE": "srq_limit {object} is more than the {detail} requests it holds",
    "QP_TYPE_NOT_SUPPORTED": lambda _, kind: (
        f"the device does not support queue pairs of type {_QP_TYPES.get(kind, kind)}"
    ),
    "UNKNOWN_ATTRIBUTES": "attribute mask bits {detail:#x} are unknown",
    "BAD_STATE": _bad_state,
    "CUR_STATE_NOT_ALLOWED": lambda _, state: (
        f"IBV_QP_CUR_STATE is taken in RTR, RTS, SQD and SQE only, not in {_state(state)}"
    ),
    "NO_SUCH_TRANSITION": _no_transition,
    "ATTRIBUTES_MISSING": _missing,
    "ATTRIBUTES_NOT_ALLOWED": _not_allowed,
    "ALTERNATE_PATH_NOT_SUPPORTED": lambda _, mask: (
        f"the device has no path migration, so no {_attributes(mask)}"
    ),
    "BAD_PORT": "there is no port {object}: the device has ports 1 to {detail}",
    "BAD_PATH_PORT": "ah_attr.port_num is {object}, the queue pair's port is {detail}",
    "BAD_PKEY_INDEX": "pkey_index {object} is not below {detail}",
    "BAD_SGID_INDEX": "sgid_index {object} is not below {detail}",
    "EMPTY_SGID_INDEX": "there is no GID at sgid_index {object}",
    "BAD_PATH_MTU": _path_mtu,
    "BAD_TIMEOUT": "timeout {object} is more than {detail}",
    "BAD_RETRY_COUNT": "retry_cnt {object} is more than {detail}",
    "BAD_RNR_RETRY": "rnr_retry {object} is more than {detail}",
    "BAD_RNR_TIMER": "min_rnr_timer {object} is more than {detail}",
    "BAD_RD_ATOMIC": "max_rd_atomic {object} is more than {detail}",
    "BAD_DEST_RD_ATOMIC": "max_dest_rd_atomic {object} is more than {detail}",
    "CONTROLLED_QKEY": "qkey {detail:#x} has bit 31 set: controlled Q_Keys are privileged",
    "BAD_DESCRIPTOR": "{object} is no open file descriptor of this process",
    "DOMAIN_EXISTS": "the file has an XRC domain already, and O_EXCL was given",
    "NO_DOMAIN": "the file has no XRC domain, and O_CREAT was not given",
    "NOT_UD": lambda _, kind: f"multicast is for UD queue pairs, this one is {_type(kind)}",
    "NOT_MULTICAST_GID": "the GID begins with {detail:#04x}, a multicast GID with 0xff",
    "NOT_MULTICAST_LID": "LID {object:#x} is not 0xc000 to 0xfffe",
    "NOT_ATTACHED": "the queue pair is not attached to that group",
    "GROUP_FULL": "the group has {detail} queue pairs, as many as it may",
    "MULTICAST_TABLE_FULL": "the device has {detail} multicast groups, as many as it may",
    "STILL_ATTACHED": lambda _, groups: (
        f"it is attached to {groups} multicast group{'s' if groups > 1 else ''}: detach it first"
    ),
    "CQ_WITHOUT_CHANNEL": "the completion queue was made without a channel",
    "NO_DOORBELLS": "this process has not asked for its doorbell segment",
    "WOULD_WAIT": "the call would wait above APC_LEVEL",
    "RESIZE_UNCERTAIN": (
        "the device did not say whether it has moved the queue, whose memory stays in use: close it"
    ),
    "NOT_PER_OBJECT": "the event belongs to the device, not to an object",
}


def reason_text(number: int, object: int, detail: int) -> str:  # noqa: A002 - the field's name
    """Give the sentence for a refusal; a reason of a later version goes by its number."""
    try:
        text = _TEXTS[VerbReason(number).name]
    except (KeyError, ValueError):
        return f"reason {number} (object {object}, detail {detail})"
    if callable(text):
        return text(object, detail)
    return text.format(object=object, detail=detail)
