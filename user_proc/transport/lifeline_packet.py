"""One packet of the lifeline and the descriptors that came with it.

`socket.recv_fds` of Python 3.11 ignores its flags, so that received descriptors would be inherited
by every program started later; hence recvmsg.

Rules: the descriptors are the caller's to close.
Spec: unix(7), SCM_RIGHTS; recvmsg(2), MSG_CMSG_CLOEXEC, MSG_TRUNC, MSG_CTRUNC.
"""

import array
import os
import socket
from collections.abc import Iterable
from typing import Final

from shared.message_codec import MAX_MESSAGE, MessageError

_INT: Final = array.array("i").itemsize
_MAX_DESCRIPTORS: Final = 4
_ROOM: Final = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT)
_CUT: Final = socket.MSG_TRUNC | socket.MSG_CTRUNC


class DescriptorsLost(Exception):
    """A packet came without all of its descriptors; `data` is whole."""

    def __init__(self, data: bytes) -> None:
        super().__init__("too many open files")
        self.data = data


def receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a packet; no bytes when the peer has gone, MessageError if it was cut.

    DescriptorsLost if only the descriptors were: this process has no place for them.
    """
    data, ancillary, flags, _ = connection.recvmsg(MAX_MESSAGE, _ROOM, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(value[: len(value) - len(value) % _INT])
    descriptors = found.tolist()
    if flags & _CUT:
        close_all(descriptors)
        if flags & socket.MSG_TRUNC:
            raise MessageError("it was cut")
        raise DescriptorsLost(data)
    return data, descriptors


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors nobody takes over."""
    for descriptor in descriptors:
        os.close(descriptor)
