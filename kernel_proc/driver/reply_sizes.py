"""How long the answer of each verb can be: room for it is required before the verb is begun.

So no object is made, and none destroyed, whose answer the caller could not be given.
"""

from typing import Any, Final, get_args

from shared import verb_codes as code
from shared import verb_messages as messages
from shared.message_codec import encode

_TEXT: Final = 64  # characters of a firmware version, with much room

_REPLIES: Final[dict[int, type[Any]]] = {
    code.IOCTL_OPEN_CONTEXT: messages.OpenContext,
    code.IOCTL_QUERY_DEVICE: messages.QueryDevice,
    code.IOCTL_QUERY_PORT: messages.QueryPort,
    code.IOCTL_QUERY_GID: messages.QueryGid,
    code.IOCTL_QUERY_PKEY: messages.QueryPkey,
    code.IOCTL_ALLOC_PD: messages.Object,
    code.IOCTL_REG_MR: messages.Registered,
    code.IOCTL_REREG_MR: messages.Registered,
    code.IOCTL_CREATE_AH: messages.AhCreated,
    code.IOCTL_CREATE_CQ: messages.CqCreated,
    code.IOCTL_RESIZE_CQ: messages.CqCreated,
    code.IOCTL_DESTROY_CQ: messages.Destroyed,
    code.IOCTL_CREATE_SRQ: messages.SrqCreated,
    code.IOCTL_QUERY_SRQ: messages.SrqAttributes,
    code.IOCTL_DESTROY_SRQ: messages.Destroyed,
    code.IOCTL_CREATE_QP: messages.QpCreated,
    code.IOCTL_QUERY_QP: messages.QpAttributes,
    code.IOCTL_DESTROY_QP: messages.Destroyed,
    code.IOCTL_OPEN_XRCD: messages.Object,
    code.IOCTL_ALLOC_MW: messages.WindowMade,
    code.IOCTL_QUERY_DEVICE_EX: messages.QueryDeviceEx,
    code.IOCTL_QUERY_CLOCK: messages.DeviceClock,
    code.IOCTL_ALLOC_DM: messages.Object,
    code.IOCTL_COPY_FROM_DM: messages.DmContents,
    code.IOCTL_REG_DM_MR: messages.Registered,
    code.IOCTL_EXPORT_CONTEXT: messages.Object,
    code.IOCTL_IMPORT_CONTEXT: messages.Object,
    code.IOCTL_IMPORT_PD: messages.Object,
    code.IOCTL_IMPORT_MR: messages.MrImported,
    code.IOCTL_IMPORT_DM: messages.DmImported,
    code.IOCTL_GET_CA_FATAL_EVENT: messages.Event,
    code.IOCTL_GET_CA_PORT_EVENT: messages.Event,
    code.IOCTL_GET_CQ_COMP_EVENT: messages.Event,
    code.IOCTL_GET_CQ_ASYNC_EVENT: messages.Event,
    code.IOCTL_GET_QP_ASYNC_EVENT: messages.Event,
    code.IOCTL_GET_SRQ_ASYNC_EVENT: messages.Event,
}


def _longest(cls: type[Any]) -> int:
    """Return the length of a message whose every field is as long as it can be."""
    hints = cls.__annotations__
    values: list[Any] = []
    for name in cls._fields:
        kind, measure = get_args(hints[name])
        if kind is int:
            values.append((1 << measure) - 1)
        elif kind is bytes:
            values.append(bytes(measure))
        else:
            values.append("9" * min(measure, _TEXT))
    return len(encode(cls(*values)))


LONGEST_REPLY: Final[dict[int, int]] = {ioctl: _longest(cls) for ioctl, cls in _REPLIES.items()}
