"""Rows as columns of plain text: nothing is cut off.

A column is as wide as its widest value and numbers stand to the right. Where lines have a width,
columns that are too many go into further blocks, each of which begins with the first columns again.
What a process called itself is shown without what a terminal would obey.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

_GAP: Final = "  "
_REPEATED: Final = 2  # columns that tell rows apart


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


def terminal_width() -> int | None:
    """Return how wide the terminal on standard output is; None if that is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines_of(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], width: int | None = None
) -> Iterator[str]:
    """Give the heading and a line for each row; only the heading for no rows.

    With a width that is too small for all columns there are blocks of lines, an empty one between.
    """
    texts = _texts(columns, rows)
    for number, block in enumerate(_blocks(texts, width)):
        if number:
            yield ""
        for parts in zip(*block, strict=True):
            yield _GAP.join(parts).rstrip()


def _texts(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return for each column its title and its values, all as wide as the widest."""
    found = []
    for column in columns:
        values = [row.get(column.key) for row in rows]
        texts = [text_of(value, column.show) for value in values]
        if column.may_go and not any(texts):
            continue
        counted = column.show is not None and all(text.isdecimal() for text in texts)
        texts.insert(0, column.title)
        width = max(map(len, texts))
        pad = str.rjust if counted or all(map(_is_number, values)) else str.ljust
        found.append([pad(text, width) for text in texts])
    return found


def _blocks(texts: Sequence[list[str]], width: int | None) -> Iterator[list[list[str]]]:
    """Share out columns to blocks of at most that width, if a column more fits beside the first."""
    first = list(texts[:_REPEATED])
    block = list(first)
    for column in texts[_REPEATED:]:
        total = sum(len(one[0]) + len(_GAP) for one in block) + len(column[0])
        if width is not None and total > width and len(block) > _REPEATED:
            yield block
            block = list(first)
        block.append(column)
    yield block


def labelled(pairs: Sequence[tuple[str, Any]], indent: int = 0) -> Iterator[str]:
    """Give a line for each label and its value, the values below each other."""
    width = max((len(label) for label, _ in pairs), default=0)
    space = " " * indent
    for label, value in pairs:
        yield f"{space}{label:<{width}}{_GAP}{text_of(value)}".rstrip()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
