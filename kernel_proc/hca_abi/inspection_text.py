"""What an HCA tells of itself, as bytes: lines of JSON, each a part of one tree of plain values.

    8 bytes          the length of all this, in native order; stored last, 0 until then
    lines            [["qps", "1029"], {...}] : at these keys of the tree stands this value

So it can be written and read in pieces, each of which takes no time worth mentioning. A last line
with the key "left_out" counts the parts there was no room for.

Spec: RFC 8259.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any, Final

#: Keys from the root of the tree, and what stands there.
Part = tuple[tuple[str, ...], object]

LENGTH: Final = struct.Struct("=Q")
LEFT_OUT: Final = "left_out"


def line_of(part: Part) -> bytes:
    """Return a part as its line."""
    return json.dumps(part, separators=(",", ":")).encode() + b"\n"


def part_of(line: bytes) -> Part:
    """Return the part a line holds; ValueError for what is none."""
    part = json.loads(line)
    if not isinstance(part, list) or len(part) != 2:
        raise ValueError("a line that is no part")
    keys, value = part
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError("a part without a place")
    return tuple(keys), value


def put(tree: dict[str, Any], part: Part) -> None:
    """Put a part into its place; ValueError if the place lies in what is no tree."""
    keys, value = part
    place = tree
    for key in keys[:-1]:
        below = place.setdefault(key, {})
        if not isinstance(below, dict):
            raise ValueError(f"there is nothing below {key!r}")
        place = below
    place[keys[-1]] = value


def tree_of(parts: Iterable[Part]) -> dict[str, Any]:
    """Put parts together, none of which misses its place."""
    tree: dict[str, Any] = {}
    for part in parts:
        put(tree, part)
    return tree
