"""Rows as columns of plain text: nothing is cut off or wrapped, whatever the terminal's width.

A column is as wide as its widest value and numbers stand to the right. What a process called itself
is shown without what a terminal would obey.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

_GAP: Final = "  "


class Column(NamedTuple):
    """The key of a value and the title it stands under.

    `show` makes the text of a value that is there; `may_go` leaves out a column without any text.
    """

    key: str
    title: str
    show: Callable[[Any], str] | None = None
    may_go: bool = False


def text_of(value: Any, show: Callable[[Any], str] | None = None) -> str:
    """Return a value as it stands in a table; empty for what is not there."""
    if value is None:
        return ""
    if show is not None:
        text = show(value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "?" for one in text)


def lines_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Give the heading and a line for each row; only the heading for no rows."""
    blocks = []
    for column in columns:
        values = [row.get(column.key) for row in rows]
        texts = [text_of(value, column.show) for value in values]
        if column.may_go and not any(texts):
            continue
        texts.insert(0, column.title)
        width = max(map(len, texts))
        pad = str.rjust if all(map(_is_number, values)) else str.ljust
        blocks.append([pad(text, width) for text in texts])
    for parts in zip(*blocks, strict=True):
        yield _GAP.join(parts).rstrip()


def labelled(pairs: Sequence[tuple[str, Any]], indent: int = 0) -> Iterator[str]:
    """Give a line for each label and its value, the values below each other."""
    width = max((len(label) for label, _ in pairs), default=0)
    space = " " * indent
    for label, value in pairs:
        yield f"{space}{label:<{width}}{_GAP}{text_of(value)}".rstrip()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
