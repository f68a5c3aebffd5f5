"""Where the keys of a TOML text stand: the standard reader keeps no line numbers.

Rules: pure; a text that was read without error. What is not found has no line, never a false one.
Spec: TOML 1.0, keys, tables and arrays of tables.
"""

import re
from collections.abc import Iterator
from typing import Final

_KEY: Final = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED: Final = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_TABLE: Final = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?$")
_ARRAY: Final = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]\s*(?:#.*)?$")
_PAIR: Final = re.compile(rf"\s*({_DOTTED})\s*=")
_ONE: Final = re.compile(_KEY)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'[^']*'|#.*")


def key_lines(text: str) -> dict[str, int]:
    """Return the line of each key and table, by its path such as `group[0].after`."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in _plain_lines(text):
        if found := _ARRAY.match(line):
            name = _path(found.group(1), counts)
            counts[name] = counts.get(name, -1) + 1
            table = f"{name}[{counts[name]}]"
            lines.setdefault(table, number)
        elif found := _TABLE.match(line):
            table = _path(found.group(1), counts)
            lines.setdefault(table, number)
        elif found := _PAIR.match(line):
            key = ".".join(_parts(found.group(1)))
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def line_of(path: str, lines: dict[str, int]) -> int | None:
    """Return the line of a key, or of the nearest table around it."""
    while path:
        if path in lines:
            return lines[path]
        shorter = path.rpartition(".")[0]
        if path.endswith("]"):
            shorter = path.rpartition("[")[0]
        path = shorter
    return None


def _parts(dotted: str) -> list[str]:
    return [one.strip("\"'") for one in _ONE.findall(dotted)]


def _path(dotted: str, counts: dict[str, int]) -> str:
    """Return a table's path: a table below an array belongs to the array's last member."""
    path = ""
    *above, last = _parts(dotted)
    for part in above:
        path = f"{path}.{part}" if path else part
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return f"{path}.{last}" if path else last


def _plain_lines(text: str) -> Iterator[tuple[int, str]]:
    """Give the lines that begin a key or table: none within a long string or an array."""
    quote = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not quote and depth == 0:
            yield number, line
        rest = line
        while True:
            if quote:
                _, closing, rest = rest.partition(quote)
                if not closing:
                    break
                quote = ""
            places = [(rest.find(mark), mark) for mark in ('"""', "'''") if mark in rest]
            if not places:
                depth += _opened(rest) if depth or not _is_heading(rest) else 0
                break
            place, quote = min(places)
            depth += _opened(rest[:place])
            rest = rest[place + len(quote) :]


def _is_heading(line: str) -> bool:
    return _TABLE.match(line) is not None or _ARRAY.match(line) is not None


def _opened(line: str) -> int:
    """Return how many brackets a line opens and does not close."""
    bare = _STRING.sub("", line)
    return bare.count("[") - bare.count("]")
