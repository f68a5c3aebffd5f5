"""What the launcher and its guardian say to each other: one msgpack array per packet.

Rules: both ends are ours and of one version; a packet that is none is an error of the program.
Spec: unix(7), SOCK_SEQPACKET.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

MAX_PACKET: Final = 192 * 1024


class Spawn(NamedTuple):
    """Start a process in a session of its own; `number` names it from now on."""

    number: int
    command: Sequence[str]
    environment: dict[str, str]
    folder: str
    log: str
    cpus: Sequence[int]


class SignalThem(NamedTuple):
    """Send a signal to every process of their sessions."""

    numbers: Sequence[int]
    signal: int


class Finish(NamedTuple):
    """End everything that is left, then yourself: SIGTERM, so much time, SIGKILL."""

    grace_ms: int


class Started(NamedTuple):
    """It runs."""

    number: int
    pid: int


class NotStarted(NamedTuple):
    """It could not be started."""

    number: int
    sentence: str


class Ended(NamedTuple):
    """It has ended, and whatever of its session had not."""

    number: int
    code: int  # minus the signal if one ended it
    user_s: float
    system_s: float
    max_rss_bytes: int
    voluntary_switches: int
    involuntary_switches: int
    left_behind: int


Packet = Spawn | SignalThem | Finish | Started | NotStarted | Ended
_KINDS: Final[tuple[type[Any], ...]] = (Spawn, SignalThem, Finish, Started, NotStarted, Ended)


def encode_packet(packet: Packet) -> bytes:
    """Return a packet's bytes; ValueError if it is too large."""
    data = bytes(msgpack.packb([_KINDS.index(type(packet)), *packet]))
    if len(data) > MAX_PACKET:
        raise ValueError(f"a packet of {len(data)} bytes: {MAX_PACKET} are the most")
    return data


def decode_packet(data: bytes) -> Packet:
    """Return the packet of these bytes."""
    kind, *values = msgpack.unpackb(data)
    packet: Packet = _KINDS[kind](*values)
    return packet
