"""The state of a kernel as JSON, put together in pieces: it can be that of very many objects.

Rules: any IRQL; `pause` is called between two pieces, so a thread can let others run.
Spec: RFC 8259; the same text as `json.dumps` gives, but for blanks.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

_AT_ONCE: Final = 256  # elements of a list that become text together


def state_text(state: Any, pause: Callable[[], object]) -> str:
    """Return plain values as JSON."""
    parts = []
    for part, is_long in _parts(state):
        parts.append(part)
        if is_long:
            pause()
    return "".join(parts)


def _parts(value: Any) -> Iterator[tuple[str, bool]]:
    """Give the text in parts, and of each whether it took a while."""
    if isinstance(value, dict):
        yield from _dict_parts(value)
    elif isinstance(value, list) and not all(map(_is_small, value)):
        yield from _enclosed("[", (_parts(item) for item in value), "]")
    elif isinstance(value, list) and len(value) > _AT_ONCE:
        chunks = (value[at : at + _AT_ONCE] for at in range(0, len(value), _AT_ONCE))
        yield from _enclosed("[", (iter([(json.dumps(c)[1:-1], True)]) for c in chunks), "]")
    else:
        yield json.dumps(value), False


def _dict_parts(value: dict[Any, Any]) -> Iterator[tuple[str, bool]]:
    yield "{", False
    comma = ""
    for key, item in value.items():
        name = key if isinstance(key, str) else json.dumps(key)
        yield f"{comma}{json.dumps(name)}: ", False
        yield from _parts(item)
        comma = ", "
    yield "}", False


def _enclosed(
    opening: str, items: Iterator[Iterator[tuple[str, bool]]], closing: str
) -> Iterator[tuple[str, bool]]:
    comma = opening
    for item in items:
        yield comma, False
        yield from item
        comma = ", "
    yield closing if comma != opening else opening + closing, False


def _is_small(item: Any) -> bool:
    """Tell whether an element becomes text in no time."""
    if isinstance(item, dict):
        return not any(isinstance(part, (list, dict)) and len(part) > 32 for part in item.values())
    return not isinstance(item, list) or len(item) <= _AT_ONCE
