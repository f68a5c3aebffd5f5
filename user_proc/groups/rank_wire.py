"""What a rank and its launcher say to each other: frames of a length and one msgpack array.

A frame is a little-endian u32 and so many bytes; the bytes are an array `[tag, fields...]`. What a
rank publishes travels as bytes that the launcher never looks into.

Rules: pure; any thread. `decode` and `FrameReader.feed` raise FrameError and nothing else, whatever
the bytes.
Spec: msgpack specification, array format family.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

PROTOCOL: Final = 1
MAX_FRAME: Final = 64 * 1024
MAX_VALUE: Final = 32 * 1024
MAX_TEXT: Final = 200
MAX_FIGURES: Final = 32
MAX_WAIT_MS: Final = 24 * 3600 * 1000

#: The environment a rank finds itself by.
ENV_SOCKET: Final = "SOFTHCA_RANK_SOCKET"
ENV_TOKEN: Final = "SOFTHCA_RANK_TOKEN"
ENV_GROUP: Final = "SOFTHCA_GROUP"
ENV_RANK: Final = "SOFTHCA_RANK"
ENV_SIZE: Final = "SOFTHCA_GROUP_SIZE"
ENV_KERNEL: Final = "SOFTHCA_NAME"  # which the verbs look at, too
ENV_PROCESS: Final = "SOFTHCA_PROCESS"  # what the kernel calls its sessions
LAUNCH_VARIABLES: Final = (
    ENV_SOCKET, ENV_TOKEN, ENV_GROUP, ENV_RANK, ENV_SIZE, ENV_KERNEL, ENV_PROCESS,
)  # fmt: skip

_LENGTH: Final = struct.Struct("<I")
_U16: Final = 1 << 16


class FrameError(ValueError):
    """The bytes are no frame, or no message, of this protocol."""


class Hello(NamedTuple):
    """The first message: which rank this is; the token proves it."""

    version: int
    group: str
    rank: int
    token: str


class Publish(NamedTuple):
    """A value under a key of this rank; it replaces the one before."""

    key: str
    value: bytes


class Lookup(NamedTuple):
    """Another rank's value, as soon as it is there."""

    group: str
    rank: int
    key: str
    timeout_ms: int


class Barrier(NamedTuple):
    """Wait until all have come here."""

    name: str
    timeout_ms: int


class Report(NamedTuple):
    """Figures, by name; the last ones count."""

    figures: dict[str, float]


class Reach(NamedTuple):
    """This rank has come to a point."""

    point: str


class Answer(NamedTuple):
    """The launcher's answer: OK with a value, or why not."""

    status: int
    value: bytes
    sentence: str


OK: Final = 0
REFUSED: Final = 1
TIMED_OUT: Final = 2
GONE: Final = 3

Message = Hello | Publish | Lookup | Barrier | Report | Reach | Answer

_TEXT: Final = (str, MAX_TEXT + 1)
_WAIT: Final = (int, MAX_WAIT_MS + 1)
_FIELDS: Final[dict[type[Any], tuple[int, tuple[tuple[type, int], ...]]]] = {
    Hello: (1, ((int, _U16), _TEXT, (int, _U16), _TEXT)),
    Publish: (2, (_TEXT, (bytes, MAX_VALUE + 1))),
    Lookup: (3, (_TEXT, (int, _U16), _TEXT, _WAIT)),
    Barrier: (4, (_TEXT, _WAIT)),
    Report: (5, ((dict, MAX_FIGURES + 1),)),
    Reach: (6, (_TEXT,)),
    Answer: (7, ((int, _U16), (bytes, MAX_VALUE + 1), (str, 2000))),
}
_BY_TAG: Final = {tag: (cls, fields) for cls, (tag, fields) in _FIELDS.items()}


def _check(cls: type[Any], values: Sequence[Any]) -> None:
    for name, field, value in zip(cls._fields, _FIELDS[cls][1], values, strict=True):
        if not _fits(value, *field):
            raise FrameError(f"{cls.__name__}.{name} is of another type, or out of range")
        if isinstance(value, dict):
            _check_figures(value)


def _fits(value: Any, kind: Any, limit: int) -> bool:
    if type(value) is not kind:
        return False
    size: int = value if kind is int else len(value)
    return 0 <= size < limit


def _check_figures(figures: dict[Any, Any]) -> None:
    for name, value in figures.items():
        if type(name) is not str or not 0 < len(name) <= MAX_TEXT:
            raise FrameError("a figure's name is a short text")
        if type(value) is not float or not math.isfinite(value):
            raise FrameError("a figure is a finite number")


def encode(message: Message) -> bytes:
    """Return a message as a frame; FrameError if a field has the wrong type or size."""
    _check(type(message), message)
    try:
        body = msgpack.packb([_FIELDS[type(message)][0], *message], strict_types=True)
    except ValueError as error:  # a text with lone surrogates
        raise FrameError(f"{type(message).__name__} cannot be packed: {error}") from error
    return _LENGTH.pack(len(body)) + bytes(body)


def decode(body: bytes) -> Message:
    """Return the message of a frame's bytes; fields after those known here are ignored."""
    try:
        array = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except ValueError as error:
        raise FrameError(f"not msgpack: {str(error) or type(error).__name__}") from error
    if type(array) is not list or not array or type(array[0]) is not int:
        raise FrameError("a message is an array that begins with a tag")
    if array[0] not in _BY_TAG:
        raise FrameError(f"unknown message tag {array[0]}")
    cls, fields = _BY_TAG[array[0]]
    if len(array) < 1 + len(fields):
        raise FrameError(f"{cls.__name__} has {len(fields)} fields, {len(array) - 1} came")
    values = array[1 : 1 + len(fields)]
    _check(cls, values)
    message: Message = cls(*values)
    return message


class FrameReader:
    """Cuts a stream into frames; holds no more than one frame and what came with it."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what has come; return the frames that are whole. FrameError for a false length."""
        self._data += data
        frames = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if not 0 < length <= MAX_FRAME:
                raise FrameError(f"a frame has 1 to {MAX_FRAME} bytes, this one {length}")
            end = _LENGTH.size + length
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return frames
