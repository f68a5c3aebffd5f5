"""The first message of a lifeline: taken, judged, and its descriptors accounted for.

Rules: in a lane's OS thread, because the descriptors that come along can be anything.
Spec: shared/messages.py (Hello).
"""

import socket
from typing import Final, NamedTuple

from kernel_proc.server.packet import Packet, PacketError, close_all, receive_packet
from kernel_proc.server.peer import PeerRefused, check_memory_descriptors
from shared.envelope import MIN_VERSION, VERSION
from shared.message_codec import MessageError, decode_as
from shared.messages import Hello, Refused
from shared.nt_status import (
    STATUS_INVALID_PARAMETER,
    STATUS_REVISION_MISMATCH,
)

_DESCRIPTORS: Final = 2
_LONGEST_REASON: Final = 1000


class Greeting(NamedTuple):
    """A Hello that may be admitted; both descriptors are the receiver's, and files of procfs."""

    hello: Hello
    memory: int
    maps: int


def hear_hello(connection: socket.socket, pid: int) -> Greeting | Refused | None:
    """Take the first message of process `pid`; None if it has left without one."""
    try:
        packet = receive_packet(connection)
    except PacketError as error:
        return Refused(error.status, str(error))
    if packet is None or not packet.data:
        return None
    try:
        return Greeting(_check(packet, pid), *packet.descriptors)
    except MessageError:
        refused = Refused(STATUS_INVALID_PARAMETER, "the first message was no Hello")
    except PeerRefused as error:
        refused = Refused(error.status, str(error)[:_LONGEST_REASON])
    except _ForeignVersion as error:
        refused = Refused(STATUS_REVISION_MISMATCH, str(error))
    close_all(packet.descriptors)
    return refused


class _ForeignVersion(Exception):
    pass


def _check(packet: Packet, pid: int) -> Hello:
    hello = decode_as(Hello, packet.data)
    if len(packet.descriptors) != _DESCRIPTORS:
        raise PeerRefused(
            f"Hello needs 2 descriptors (/proc/self/mem and /proc/self/maps), "
            f"not {len(packet.descriptors)}"
        )
    check_memory_descriptors(pid, *packet.descriptors)
    if not hello.min_version <= VERSION or not hello.max_version >= MIN_VERSION:
        raise _ForeignVersion(
            f"the kernel speaks protocol {MIN_VERSION} to {VERSION}, "
            f"the process {hello.min_version} to {hello.max_version}"
        )
    return hello
