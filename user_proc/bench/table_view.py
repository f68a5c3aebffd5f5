"""The table on the screen: a view of a run document, made from the document alone.

Rules: the heading says whose numbers these are before the first number is seen.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

HEADING: Final = (
    "Numbers of an emulator in software on this machine: not of hardware, not of Windows."
)
PLAIN_WIDTH: Final = 118
_DASH: Final = "-"
_KIB: Final = 1024


def payload_text(payload: int) -> str:
    """Return a size as people write it: bytes below 1 KiB, whole KiB or MiB above."""
    for unit, size in (("MiB", _KIB * _KIB), ("KiB", _KIB)):
        if payload >= size and payload % size == 0:
            return f"{payload // size} {unit}"
    return f"{payload} B"


def figure(value: float | None, places: int = 1) -> str:
    """Return a figure, or a dash where it rests on too few samples."""
    return _DASH if value is None else f"{value:,.{places}f}"


def _microseconds(value: float | None) -> str:
    """Return microseconds with about three meaningful digits."""
    if value is None:
        return _DASH
    return figure(value, 2 if value < 10 else 1 if value < 1000 else 0)


def _rows_table(rows: list[Mapping[str, Any]]) -> Table:
    """Return the rows, a line between groups that differ in more than payload."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for name in ("client", "path", "method", "memory", "completion"):
        table.add_column(name, no_wrap=True)
    for name in ("payload", "p50 us", "p90", "p99", "p99.9", "ops/s", "copies"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cpu u+k us", justify="right", no_wrap=True)
    table.add_column("floor", no_wrap=True)
    for name in ("us", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    previous: tuple[Any, ...] | None = None
    for row in rows:
        group = tuple(row[name] for name in ("client", "path", "method", "memory"))
        if previous is not None and group != previous:
            table.add_row()
        previous = group
        table.add_row(*_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (row[name] for name in ("client", "path", "method", "memory", "completion"))
    yield payload_text(row["payload"])
    yield from (_microseconds(row[name]) for name in ("p50_us", "p90_us", "p99_us", "p999_us"))
    yield figure(row["ops_per_s"], 0)
    yield f"{row['copies']:g}"
    yield f"{figure(row['cpu_user_us'], 0)}+{figure(row['cpu_kernel_us'], 0)}"
    yield row["floor"]
    yield _microseconds(row["floor_p50_us"])
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
    yield ratio + ("!" if row["marks"] else "")


def _floors_table(floors: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    table.add_column("floor", no_wrap=True)
    table.add_column("payload", justify="right")
    for name in ("p50 us", "p99", "min", "moved"):
        table.add_column(name, justify="right")
    for floor in floors:
        table.add_row(
            floor["name"],
            payload_text(floor["payload"]),
            *(_microseconds(floor[name]) for name in ("p50_us", "p99_us", "min_us")),
            f"{floor['moved'] * 100:.0f} %",
        )
    return table


def _machine_line(provenance: Mapping[str, Any]) -> str:
    machine, python = provenance["machine"], provenance["python"]
    packages = provenance["packages"]
    return (
        f"{machine['processor'] or 'unknown processor'}, {machine['cores']} cores, governor "
        f"{machine['governor'] or 'unknown'}, {machine['system']} {machine['kernel']}; "
        f"{python['implementation']} {python['version']}, libzmq {packages['libzmq']}; load "
        f"{provenance['load_before'][0]:g} before, {provenance['load_after'][0]:g} after"
    )


def _reading_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield how to read the table, and what the marks of this run mean for it."""
    settings = document["settings"]
    yield (
        f"Full round trips, one at a time, each timed with perf_counter_ns; {settings['blocks']} "
        f"blocks in {settings['rounds']} fresh processes per row, floor and row in turn; p50 is "
        "the median of block medians; - stands where fewer than ten samples lie beyond."
    )
    meanings = {
        "unsteady": "a floor moved by more than a tenth while measured (rows with !): "
        "compare ratios rather than times",
        "unpinned": "processes were free to change cores (--pin CPU,CPU holds them)",
        "virtual": "a virtual machine: other guests may take time from it",
        "overloaded": "something else was running: expect longer tails",
    }
    marks = document["provenance"]["marks"]
    for mark in marks:
        yield f"{mark}: {meanings.get(mark, 'see docs/benchmark.md')}."


def render(document: Mapping[str, Any]) -> RenderableType:
    """Return the whole view of a run document."""
    return Group(
        Text(HEADING, style="bold"),
        Text(_machine_line(document["provenance"])),
        *(Text(line) for line in _reading_lines(document)),
        Text(),
        _rows_table(list(document["rows"])),
        Text(),
        _floors_table(list(document["floors"])),
    )


def print_table(document: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Print the view; where the output is no terminal it is plain text of a fixed width."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=PLAIN_WIDTH, no_color=True)
    console.print(render(document), soft_wrap=False)
