"""What an experiment found, on the screen: its question, its rows and its verdict.

A table is at most as wide as a page. What is the same in all rows stands above it; one that is
still too wide is cut into tables by its first column, or into blocks that repeat it.

Rules: made from the run document alone. A value that is a list or an object is in the document
only; a bug check is shown by its code, and named once below.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from user_proc.cli.columns import text_of

PAGE: Final = "docs/experiments-{name}.md"
_WIDTH: Final = 100
_GAP: Final = "  "
_LEAST_ROWS: Final = 4  # of a table that was cut out, on average
_WITH_PARAMETER: Final = (0xC4, 0xC9, 0xE6)  # whose first parameter says what happened

Row = Mapping[str, Any]


class _Column(NamedTuple):
    """A column: its heading, a word to a line, and the text of each row."""

    key: str
    words: list[str]
    texts: list[str]
    number: bool

    @property
    def width(self) -> int:
        return max(map(len, [*self.words, *self.texts]))

    @property
    def is_one_value(self) -> bool:
        return len(self.texts) > 1 and len(set(self.texts)) == 1

    def only(self, wanted: Sequence[bool]) -> "_Column":
        texts = [text for text, wants in zip(self.texts, wanted, strict=True) if wants]
        return self._replace(texts=texts)

    def pad(self, text: str) -> str:
        return text.rjust(self.width) if self.number else text.ljust(self.width)


def experiment_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Give the lines of one experiment."""
    yield from textwrap.wrap(f"{result['name']}: {result['question']}", _WIDTH)
    yield f"How to read it: {PAGE.format(name=result['name'])}"
    yield ""
    yield from table_lines(result["rows"])
    yield ""
    yield from textwrap.wrap(f"Verdict: {result['verdict']}", _WIDTH)


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Give the lines of a table, none wider than a page unless a single value is."""
    before = ""
    for line in _tables(rows, _keys(rows), ""):
        if line or before:
            yield line
        before = line
    stops = {row["bug_check"]["code"]: row["bug_check"]["name"] for row in rows if _stopped(row)}
    if stops:
        named = ", ".join(f"{code:#x} {name}" for code, name in sorted(stops.items()))
        yield ""
        yield from textwrap.wrap(f"Bug checks: {named}.", _WIDTH)


def _keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys with plain values, in the order in which they first appear."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if not any(isinstance(row.get(key), (list, dict)) for row in rows)]


def _tables(rows: Sequence[Row], keys: Sequence[str], above: str) -> Iterator[str]:
    columns = [column for key in keys if any((column := _column(key, rows)).texts)]
    same = [column for column in columns if column.is_one_value]
    varied = [column for column in columns if not column.is_one_value]
    said = [above, *(f"{' '.join(one.words)} {one.texts[0]}" for one in same)]
    if any(said):
        yield from textwrap.wrap(", ".join(filter(None, said)), _WIDTH)
    if _width(varied) <= _WIDTH:
        yield from _block(varied)
        return
    groups = _groups(rows, varied[0])
    if len(rows) >= _LEAST_ROWS * len(groups) and len(groups) > 1:
        for text, members in groups.items():
            yield ""
            left = [column.key for column in varied[1:]]
            yield from _tables(members, left, f"{' '.join(varied[0].words)} {text}")
        return
    yield from _blocks(varied)


def _groups(rows: Sequence[Row], column: _Column) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for text, row in zip(column.texts, rows, strict=True):
        groups.setdefault(text, []).append(row)
    return groups


def _blocks(columns: Sequence[_Column]) -> Iterator[str]:
    """Give as many tables beside each other as fit, below each other, each with the labels.

    A row that has nothing to say in one of them is not in it, unless it is in no other either.
    """
    count = _label_count(columns)
    labels, rest = columns[:count], columns[count:]
    silent = [not any(texts) for texts in zip(*(one.texts for one in rest), strict=True)]
    block: list[_Column] = []
    for column in rest:
        if block and _width([*labels, *block, column]) > _WIDTH:
            yield from _part(labels, block, silent)
            yield ""
            block, silent = [], [False] * len(silent)
        block.append(column)
    yield from _part(labels, block, silent)


def _label_count(columns: Sequence[_Column]) -> int:
    """Return how many of the first columns tell the rows apart, if that leaves half a page."""
    for count in range(1, len(columns)):
        if _width(columns[: count + 1]) > _WIDTH // 2:
            return count
        if len(set(zip(*(column.texts for column in columns[:count]), strict=True))) == len(
            columns[0].texts
        ):
            return count
    return 1


def _part(
    labels: Sequence[_Column], block: Sequence[_Column], silent: Sequence[bool]
) -> Iterator[str]:
    texts_of_rows = zip(*(column.texts for column in block), strict=True)
    shown = [any(texts) or one for texts, one in zip(texts_of_rows, silent, strict=True)]
    yield from _block([column.only(shown) for column in (*labels, *block)])


def _block(columns: Sequence[_Column]) -> Iterator[str]:
    height = max((len(column.words) for column in columns), default=0)
    headings = [[""] * (height - len(column.words)) + column.words for column in columns]
    for line in zip(*headings, strict=True):
        yield _joined(columns, line)
    for texts in zip(*(column.texts for column in columns), strict=True):
        yield _joined(columns, texts)


def _joined(columns: Sequence[_Column], texts: Sequence[str]) -> str:
    padded = (column.pad(text) for column, text in zip(columns, texts, strict=True))
    return _GAP.join(padded).rstrip()


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _column(key: str, rows: Sequence[Row]) -> _Column:
    values = [row.get(key) for row in rows]
    texts = [_outcome(row) if key == "outcome" else text_of(row.get(key), _shown) for row in rows]
    number = all(value is None or _is_number(value) for value in values)
    return _Column(key, key.split("_"), texts if any(texts) else [], number)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _stopped(row: Row) -> bool:
    return isinstance(row.get("bug_check"), Mapping)


def _outcome(row: Row) -> str:
    if not _stopped(row):
        return text_of(row.get("outcome"))
    code, parameter = row["bug_check"]["code"], row["bug_check"]["parameters"][0]
    detail = f"/{parameter:#x}" if code in _WITH_PARAMETER else ""
    return f"bug check {code:#x}{detail}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value.is_integer():
            return f"{value:,.0f}"
        size = abs(value)
        places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
        return f"{value:,.{places}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
