"""The bytes of messages: a head with stream, sequence number, length and checksum, then a pattern.

Whoever knows stream, number and length knows every byte; who does not, can still tell from the
head whose bytes these are. A message too short for a head is pattern alone.
"""

import ctypes
import random
import struct
import zlib
from typing import Final

from user_proc.stress.findings import CORRUPT, Finding

_HEAD: Final = struct.Struct("<IIQII")  # magic, stream, sequence, length, checksum of the rest
_MAGIC: Final = 0x5354_5253
_PATTERN: Final = random.Random(_MAGIC).randbytes(1 << 17)
_STEP: Final = 37  # so that neighbours in a stream differ everywhere
_STARTS: Final = 1 << 15

LONGEST: Final = len(_PATTERN) - _STARTS


def _body(stream: int, sequence: int, length: int) -> bytes:
    start = (stream * 8191 + sequence * _STEP) % _STARTS
    return _PATTERN[start : start + length]


def payload(stream: int, sequence: int, length: int) -> bytes:
    """Return the bytes of a message."""
    if length < _HEAD.size:
        return _body(stream, sequence, length)
    body = _body(stream, sequence, length - _HEAD.size)
    return _HEAD.pack(_MAGIC, stream, sequence, length, zlib.crc32(body)) + body


def store(address: int, stream: int, sequence: int, length: int) -> None:
    """Put a message's bytes at an address of this process."""
    if length:
        ctypes.memmove(address, payload(stream, sequence, length), length)


def check(address: int, stream: int, sequence: int, length: int, where: str) -> None:
    """Raise Finding unless exactly that message lies there."""
    found = ctypes.string_at(address, length) if length else b""
    if found != payload(stream, sequence, length):
        raise Finding(
            CORRUPT,
            f"{where}: message {sequence} of stream {stream}, {length} bytes, is {_what(found)}",
        )


def _what(found: bytes) -> str:
    """Say what bytes are that are not what they should be."""
    if len(found) >= _HEAD.size:
        magic, stream, sequence, length, checksum = _HEAD.unpack_from(found)
        if magic == _MAGIC:
            whole = length == len(found) and zlib.crc32(found[_HEAD.size :]) == checksum
            return (
                f"{'the whole' if whole else 'a damaged or cut'} message {sequence} "
                f"of stream {stream}, {length} bytes"
            )
    return f"none: {found[:32].hex()}"
