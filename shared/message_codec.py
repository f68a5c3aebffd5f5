"""Messages to bytes and back: one msgpack array per frame, strictly typed, 64 KiB at most.

Rules: any thread; keeps nothing. `decode` raises MessageError and nothing else, whatever the bytes.
Spec: msgpack specification, array format family.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, get_args

import msgpack

from shared.fault_messages import FAULT_MESSAGES, Fault
from shared.messages import SYSTEM_MESSAGES
from shared.messages import Message as SystemMessage
from shared.verb_messages import VERB_MESSAGES, VerbMessage

MAX_MESSAGE: Final = 64 * 1024

Message = SystemMessage | VerbMessage | Fault

_M = TypeVar("_M")


class MessageError(ValueError):
    """The bytes are no message of ours, or the object does not fit one."""


class _Field(NamedTuple):
    """What one position of a message must hold."""

    name: str
    kind: Any  # int, str or bytes
    limit: int  # the first value, or number of characters or bytes, that is too large


class _Shape(NamedTuple):
    """A message class and its fields in wire order."""

    cls: type[Any]
    tag: int
    version: int
    fields: tuple[_Field, ...]


def _field(name: str, hint: Any) -> _Field:
    """Read `Annotated[int, bits]`, `Annotated[str, characters]` or `Annotated[bytes, bytes]`."""
    kind, measure = get_args(hint)
    return _Field(name, kind, 1 << measure if kind is int else measure + 1)


def _shape(cls: type[Any], tag: int, version: int) -> _Shape:
    hints = cls.__annotations__  # none is a string
    return _Shape(cls, tag, version, tuple(_field(name, hints[name]) for name in cls._fields))


def _shapes() -> dict[type[Any], _Shape]:
    messages = {**SYSTEM_MESSAGES, **VERB_MESSAGES, **FAULT_MESSAGES}
    return {cls: _shape(cls, tag, version) for cls, (tag, version) in messages.items()}


_SHAPES: Final = _shapes()
_BY_TAG: Final = {shape.tag: shape for shape in _SHAPES.values()}


def _check(shape: _Shape, values: Sequence[Any]) -> None:
    for field, value in zip(shape.fields, values, strict=True):
        _, kind, limit = field
        if type(value) is not kind or not 0 <= (value if kind is int else len(value)) < limit:
            _refuse(shape, field, value)


def _refuse(shape: _Shape, field: _Field, value: object) -> NoReturn:
    where = f"{shape.cls.__name__}.{field.name}"
    if type(value) is not field.kind:
        raise MessageError(f"{where} is {type(value).__name__}, not {field.kind.__name__}")
    if field.kind is int:
        raise MessageError(f"{where} = {value} is out of range")
    unit = "characters" if field.kind is str else "bytes"
    raise MessageError(f"{where} is longer than {field.limit - 1} {unit}")


def encode(message: Message) -> bytes:
    """Pack a message; MessageError if a field has the wrong type or range."""
    shape = _SHAPES.get(type(message))
    if shape is None:
        raise MessageError(f"{type(message).__name__} is no message")
    _check(shape, message)
    array: list[object] = [shape.tag, shape.version, *message]
    try:
        data = msgpack.packb(array, use_bin_type=True, strict_types=True)
    except ValueError as error:  # a text with lone surrogates
        raise MessageError(f"{shape.cls.__name__} cannot be packed: {error}") from error
    return bytes(data)


def _unpack(data: bytes | bytearray | memoryview) -> list[object]:
    if len(data) > MAX_MESSAGE:
        raise MessageError(f"a message has at most {MAX_MESSAGE} bytes, this one {len(data)}")
    try:
        array = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except ValueError as error:
        raise MessageError(f"not msgpack: {str(error) or type(error).__name__}") from error
    if type(array) is not list or len(array) < 2:
        raise MessageError("a message is an array of a tag, a version, and fields")
    return array


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Unpack any message; fields after those known here are ignored."""
    array = _unpack(data)
    tag, version = array[0], array[1]
    if type(tag) is not int or type(version) is not int:
        raise MessageError("tag and version are integers")
    shape = _BY_TAG.get(tag)
    if shape is None:
        raise MessageError(f"unknown message tag {tag}")
    name = shape.cls.__name__
    if version != shape.version:
        raise MessageError(f"{name} has version {version}; version {shape.version} is understood")
    if len(array) < 2 + len(shape.fields):
        raise MessageError(f"{name} has {len(array) - 2} fields, {len(shape.fields)} are needed")
    values = array[2 : 2 + len(shape.fields)]
    _check(shape, values)
    message: Message = shape.cls._make(values)
    return message


def decode_as(cls: type[_M], data: bytes | bytearray | memoryview) -> _M:
    """Unpack a message that must be of this class."""
    message = decode(data)
    if not isinstance(message, cls):
        raise MessageError(f"{type(message).__name__} where {cls.__name__} is due")
    return message
