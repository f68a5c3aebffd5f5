"""Hostile messages as recipes: what is done to a valid one, as plain data that a file can hold.

A message is `[tag, version, fields...]` in msgpack, or plain bytes where a code has a layout of its
own. A recipe is a list of steps, applied in order; those that change fields come to nothing on
plain bytes. The same recipe means the same on every run, whatever handles and addresses the valid
message has, so that what was found can be kept.

    ["set", i, value]    field i becomes a value of any type; {"hex": "00ff"} are bytes
    ["near", i, d]       field i becomes d more, if it is a number
    ["of", i, kind]      field i becomes the handle of an object of that kind
    ["drop", i]          field i is left out
    ["add", value]       a further field stands at the end
    ["tag", n], ["version", n], ["whole", value]   these, or the whole array, are others
    ["flip", at, mask]   a byte is changed; ["cut", n] the last n are gone; ["more", hex] some more
    ["room", n]          there are n bytes for the answer
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from hypothesis import strategies as st

Step = list[Any]
Recipe = list[Step]

CORPUS = Path(__file__).parent / "corpus"
KINDS = ("PD", "MR", "MW", "AH", "CQ", "SRQ", "QP", "UD", "XRCD", "DM")
MOST_FIELDS = 36

#: Where integers break: 0, sizes of pages, signs and widths, and what no count may be.
NUMBERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 255, 256, 4095, 4096, 4097, 65535, 65536,
    (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 4096, (1 << 32) - 2, (1 << 32) - 1,
    1 << 32, (1 << 47) - 4096, 1 << 47, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1,
)  # fmt: skip
NEAR = (-65536, -4097, -4096, -64, -8, -2, -1, 1, 2, 8, 63, 64, 4095, 4096, 1 << 20, 1 << 31)
ODD = (
    None, True, False, -1, -(1 << 63), 1.5, float("inf"), "", "x", "\x00" * 40, "\u20ac" * 2000,
    [], [[]], [1, 2], {}, {"a": 1}, {"hex": ""}, {"hex": "00"}, {"hex": "ff" * 16},
    {"hex": "fe80" + "00" * 14}, {"hex": "ab" * 17}, {"hex": "00" * 2000},
)  # fmt: skip


class Sent(NamedTuple):
    """What a recipe makes of a message: the bytes, and the room for the answer."""

    data: bytes
    room: int


def made(valid: Any, room: int, recipe: Sequence[Step], handles: Mapping[str, int]) -> Sent:
    """Apply a recipe to a valid message: fields in a list, bytes, or None for no input."""
    fields = list(valid) if isinstance(valid, list) else None
    data = b"" if fields is not None or valid is None else bytes(valid)
    whole: Any = fields
    for name, *rest in recipe:
        if name in _OF_FIELDS:
            if isinstance(whole, list):
                whole = _OF_FIELDS[name](whole, rest, handles)
        elif name == "room":
            room = rest[0]
    if fields is not None:
        data = bytes(msgpack.packb(_plain(whole)))
    for name, *rest in recipe:
        if name in _OF_BYTES:
            data = _OF_BYTES[name](data, rest)
    return Sent(data, room)


def _plain(value: Any) -> Any:
    """Put bytes for their spelling."""
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _set(fields: list[Any], rest: Step, handles: Mapping[str, int]) -> list[Any]:
    return _with(fields, rest[0], rest[1])


def _near(fields: list[Any], rest: Step, handles: Mapping[str, int]) -> list[Any]:
    place = _place(fields, rest[0])
    old = fields[place] if place is not None else None
    if type(old) is not int:
        return fields
    return _with(fields, rest[0], min(max(old + rest[1], -(1 << 63)), (1 << 64) - 1))


def _of(fields: list[Any], rest: Step, handles: Mapping[str, int]) -> list[Any]:
    return _with(fields, rest[0], handles.get(rest[1], 0))


def _drop(fields: list[Any], rest: Step, handles: Mapping[str, int]) -> list[Any]:
    place = _place(fields, rest[0])
    return fields if place is None else fields[:place] + fields[place + 1 :]


def _with(fields: list[Any], number: int, value: Any) -> list[Any]:
    place = _place(fields, number)
    return fields if place is None else [*fields[:place], value, *fields[place + 1 :]]


def _place(fields: list[Any], number: int) -> int | None:
    """Where a field stands, its number taken modulo how many there are."""
    count = len(fields) - 2
    return 2 + number % count if count > 0 else None


def _flip(data: bytes, rest: Step) -> bytes:
    if not data:
        return data
    at = rest[0] % len(data)
    return data[:at] + bytes([data[at] ^ rest[1]]) + data[at + 1 :]


_OF_FIELDS = {
    "set": _set, "near": _near, "of": _of, "drop": _drop,
    "add": lambda fields, rest, _: [*fields, rest[0]],
    "tag": lambda fields, rest, _: [rest[0], *fields[1:]],
    "version": lambda fields, rest, _: [*fields[:1], rest[0], *fields[2:]],
    "whole": lambda fields, rest, _: rest[0],
}  # fmt: skip
_OF_BYTES = {
    "flip": _flip,
    "cut": lambda data, rest: data[: max(0, len(data) - rest[0])],
    "more": lambda data, rest: data + bytes.fromhex(rest[0]),
}

_place_number = st.integers(0, MOST_FIELDS)
_number = st.sampled_from(NUMBERS)
_odd = st.sampled_from(ODD)
_field_steps = st.one_of(
    st.tuples(st.just("set"), _place_number, _number),
    st.tuples(st.just("set"), _place_number, _number),
    st.tuples(st.just("near"), _place_number, st.sampled_from(NEAR)),
    st.tuples(st.just("of"), _place_number, st.sampled_from(KINDS)),
    st.tuples(st.just("set"), _place_number, _odd),
    st.tuples(st.just("drop"), _place_number),
    st.tuples(st.just("add"), _odd | _number),
    st.tuples(st.just("tag"), st.integers(0, 80)),
    st.tuples(st.just("version"), st.sampled_from((0, 2, 255))),
    st.tuples(st.just("whole"), _odd | _number),
)
_byte_steps = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 400), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(1, 60)),
    st.tuples(st.just("more"), st.binary(min_size=1, max_size=24).map(bytes.hex)),
    st.tuples(st.just("room"), st.sampled_from((0, 1, 23, 24, 25, 40, 2047, 2048, 4096, 65536))),
)
#: What is done to one message. One change is what reaches furthest, so most have one.
recipes = st.lists(st.one_of(_field_steps, _field_steps, _byte_steps).map(list), max_size=3)


def kept(name: str) -> list[Any]:
    """Return what is kept in a file of the corpus."""
    found = json.loads((CORPUS / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found
