"""Messages to bytes and back: one msgpack array per frame, strictly typed, 64 KiB at most.

Rules: any thread; keeps nothing. `decode` raises MessageError and nothing else, whatever the bytes.
Spec: msgpack specification, array format family.
"""

from dataclasses import fields
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from shared.messages import Message as SystemMessage
from shared.verb_messages import VerbMessage

MAX_MESSAGE: Final = 64 * 1024

Message = SystemMessage | VerbMessage

_M = TypeVar("_M")


class MessageError(ValueError):
    """The bytes are no message of ours, or the object does not fit one."""


class _Field(NamedTuple):
    """What one position of a message must hold."""

    name: str
    kind: type
    limit: int  # of an int: the first value too large; else characters or bytes


class _Shape(NamedTuple):
    """A message class and its fields in wire order."""

    cls: type[Any]
    version: int
    fields: tuple[_Field, ...]


def _field(name: str, hint: Any) -> _Field:
    """Read `Annotated[int, bits]`, `Annotated[str, characters]` or `Annotated[bytes, bytes]`."""
    kind, measure = get_args(hint)
    return _Field(name, kind, 1 << measure if kind is int else measure)


def _shape(cls: type[Any]) -> _Shape:
    hints = get_type_hints(cls, include_extras=True)
    return _Shape(cls, cls.version, tuple(_field(f.name, hints[f.name]) for f in fields(cls)))


def _shapes() -> dict[int, _Shape]:
    """Index every member of the union `Message` by its tag."""
    shapes: dict[int, _Shape] = {}
    for cls in get_args(Message):
        if get_origin(cls) is not None or cls.tag in shapes:
            raise TypeError(f"{cls} has no tag of its own")
        shapes[cls.tag] = _shape(cls)
    return shapes


_SHAPES: Final = _shapes()


def _fits(field: _Field, value: Any) -> bool:
    if field.kind is int:
        return type(value) is int and 0 <= value < field.limit
    return (
        isinstance(value, (str, bytes)) and type(value) is field.kind and len(value) <= field.limit
    )


def _refuse(shape: _Shape, field: _Field, value: object) -> NoReturn:
    where = f"{shape.cls.__name__}.{field.name}"
    if type(value) is not field.kind:
        raise MessageError(f"{where} is {type(value).__name__}, not {field.kind.__name__}")
    if field.kind is int:
        raise MessageError(f"{where} = {value} is out of range")
    unit = "characters" if field.kind is str else "bytes"
    raise MessageError(f"{where} is longer than {field.limit} {unit}")


def encode(message: Message) -> bytes:
    """Pack a message; MessageError if a field has the wrong type or range."""
    shape = _SHAPES.get(getattr(message, "tag", -1))
    if shape is None or type(message) is not shape.cls:
        raise MessageError(f"{type(message).__name__} is no message")
    array: list[object] = [message.tag, shape.version]
    for field in shape.fields:
        value = getattr(message, field.name)
        if not _fits(field, value):
            _refuse(shape, field, value)
        array.append(value)
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
    shape = _SHAPES.get(tag)
    if shape is None:
        raise MessageError(f"unknown message tag {tag}")
    name = shape.cls.__name__
    if version != shape.version:
        raise MessageError(f"{name} has version {version}; version {shape.version} is understood")
    if len(array) < 2 + len(shape.fields):
        raise MessageError(f"{name} has {len(array) - 2} fields, {len(shape.fields)} are needed")
    values = array[2 : 2 + len(shape.fields)]
    for field, value in zip(shape.fields, values, strict=True):
        if not _fits(field, value):
            _refuse(shape, field, value)
    message: Message = shape.cls(*values)
    return message


def decode_as(cls: type[_M], data: bytes | bytearray | memoryview) -> _M:
    """Unpack a message that must be of this class."""
    message = decode(data)
    if not isinstance(message, cls):
        raise MessageError(f"{type(message).__name__} where {cls.__name__} is due")
    return message
