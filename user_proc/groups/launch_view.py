"""A launch as it runs, on standard error: a live table on a terminal, else a line for each change.

Rules: drawn from the supervisor's thread only, at most twice a second; never on standard output.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from shared.clock import now_ns
from user_proc.groups.launch import NoView, View

_EVERY_NS: Final = 500_000_000
_NOT_TOLD: Final = ("waiting", "starting")
_COLUMNS: Final = ("rank", "state", "pid", "cpu %", "rss", "switches", "ops/s", "starts", "")


class LineView:
    """A plain line whenever a rank's state has changed, for logs and pipes."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Write a line for each rank whose state is another one than last time."""
        for row in rows:
            if row["state"] not in (self._states.get(row["rank"]), *_NOT_TOLD):
                self._states[row["rank"]] = row["state"]
                pid = "" if row["pid"] is None else f" (pid {row['pid']})"
                reason = f": {row['reason']}" if row["reason"] else ""
                print(f"{row['rank']} {row['state']}{pid}{reason}", file=sys.stderr, flush=True)


class TableView:
    """A table that is drawn again and again, and is gone when the launch has ended."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._last_ns = 0

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Draw the table, if the last drawing is half a second old."""
        if now_ns() - self._last_ns >= _EVERY_NS:
            self._last_ns = now_ns()
            self._live.update(table_of(rows), refresh=True)


def table_of(rows: list[dict[str, Any]]) -> Any:
    """Return a table of the ranks for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, justify="left" if title in ("rank", "state", "") else "right")
    for row in rows:
        texts = [row["rank"], row["state"], *_numbers(row), row["reason"]]
        table.add_row(*map(Text, texts))  # what a program has said is no markup
    return table


def _numbers(row: dict[str, Any]) -> list[str]:
    rss = row["rss_bytes"]
    ops = row["ops_per_s"]
    return [
        _text(row["pid"]),
        _text(row["cpu_percent"]),
        "" if rss is None else f"{rss / (1 << 20):.1f} MiB",
        _text(row["switches"]),
        "" if ops is None else f"{ops:,.0f}",
        _text(row["starts"]),
    ]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


@contextmanager
def launch_view(wanted: bool) -> Iterator[View]:
    """Give the view that fits standard error."""
    if not wanted:
        yield NoView()
    elif not sys.stderr.isatty():
        yield LineView()
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield TableView(live)
