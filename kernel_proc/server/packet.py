"""One message and its descriptors over a SOCK_SEQPACKET socket.

What a peer hands over can be anything: a file of a file system that does not answer, a socket
that lingers. Closing such a descriptor may take for ever, or fail; so may closing a connection
that has one queued, and receiving what cannot be kept.

Rules: descriptors of a packet that is refused here are closed here. `receive_packet` and
`close_all` of what a peer sent are for a lane; `has_ended` and `send_packet` never wait.
Spec: unix(7), SCM_RIGHTS; recvmsg(2), MSG_TRUNC, MSG_CTRUNC; close(2).
"""

import array
import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from shared.message_codec import MAX_MESSAGE, encode
from shared.messages import Message
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_INVALID_PARAMETER

#: What is told to whom the kernel has no descriptor to spare for.
NO_DESCRIPTORS_LEFT: Final = (
    "the kernel has no descriptors left: end some of its processes, "
    "or start it with a higher limit (ulimit -n)"
)

_MOST_DESCRIPTORS: Final = 8  # room to see, and close, more than any message carries
_INT_SIZE: Final = array.array("i").itemsize
_ANCILLARY_SPACE: Final = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT_SIZE)


class PacketError(Exception):
    """A packet was cut or carried what it may not; the text says why. The connection goes on."""

    def __init__(self, reason: str, status: int = STATUS_INVALID_PARAMETER) -> None:
        super().__init__(reason)
        self.status: Final = status


class Packet(NamedTuple):
    """What arrived; the descriptors are the receiver's to close. No bytes: the peer has left."""

    data: bytes
    descriptors: tuple[int, ...]


def has_ended(connection: socket.socket) -> bool:
    """Tell whether the peer has left, or says goodbye by an empty packet; takes nothing."""
    try:
        data, _, flags, _ = connection.recvmsg(1, 0, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:  # reset: it left with mail unread
        return True
    return not data and not flags & socket.MSG_CTRUNC  # CTRUNC: it carries descriptors


def receive_packet(connection: socket.socket) -> Packet | None:
    """Take the next packet; None if there is none."""
    try:
        data, ancillary, flags, _ = connection.recvmsg(
            MAX_MESSAGE + 1, _ANCILLARY_SPACE, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # reset: it left with mail unread
        return Packet(b"", ())
    descriptors = _descriptors(ancillary)
    if flags & socket.MSG_CTRUNC:
        close_all(descriptors)
        if len(descriptors) < _MOST_DESCRIPTORS:  # there was room to take more
            raise PacketError(NO_DESCRIPTORS_LEFT, STATUS_INSUFFICIENT_RESOURCES)
        raise PacketError("a message carries too many descriptors")
    if flags & socket.MSG_TRUNC or len(data) > MAX_MESSAGE:
        close_all(descriptors)
        raise PacketError(f"a message has at most {MAX_MESSAGE} bytes")
    if not data and descriptors:
        close_all(descriptors)
        raise PacketError("a message without bytes carries descriptors")
    return Packet(data, descriptors)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT_SIZE])
    return tuple(found)


def send_packet(
    connection: socket.socket, message: Message, descriptors: Sequence[int] = ()
) -> bool:
    """Send a message; False if the peer does not read or has left. Closes no descriptor."""
    ancillary = []
    if descriptors:
        rights = array.array("i", descriptors)
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights))
    try:
        connection.sendmsg([encode(message)], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors that nobody takes over; what closing reports is their owner's loss."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
