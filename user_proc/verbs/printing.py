"""The form of every `__str__`: one line a field, label padded, value left-aligned."""

from collections.abc import Iterable

Line = tuple[str, object]


def lines(width: int, fields: Iterable[Line], indent: int = 0) -> str:
    """Print fields with labels padded to `width`."""
    space = " " * indent
    return "".join(f"{space}{label:{width}}: {value!s:<20}\n" for label, value in fields)
