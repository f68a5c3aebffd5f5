"""What an experiment found, on the screen: its question, its rows and its verdict.

Rules: made from the run document alone. A value that is a list or an object is in the document
only.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from user_proc.cli.columns import Column, lines_of

HEADING: Final = (
    "Numbers of an emulator in software on this machine: not of hardware, not of Windows."
)
_WIDTH: Final = 100


def experiment_lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Give the lines of all experiments of a document."""
    yield HEADING
    for result in results:
        yield ""
        yield f"{result['name']}: {result['question']}"
        yield ""
        yield from lines_of(_columns(result["rows"]), result["rows"])
        yield ""
        yield from textwrap.wrap(f"Verdict: {result['verdict']}", _WIDTH)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each key with plain values, in the order in which they first appear."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [
        Column(key, key.replace("_", " "), _shown, may_go=True)
        for key in keys
        if not any(isinstance(row.get(key), (list, dict)) for row in rows)
    ]


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
