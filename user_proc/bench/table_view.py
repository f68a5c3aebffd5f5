"""The table on the screen: a view of a run document, made from the document alone.

Rules: the heading says whose numbers these are before the first number is seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

HEADING: Final = (
    "Numbers of an emulator in software on this machine: not of hardware, not of Windows."
)
PLAIN_WIDTH: Final = 100
_DASH: Final = "-"
_KIB: Final = 1024
_NARROW: Final = 100  # a terminal below this width is spared three of them
_COLUMNS: Final = (
    ("payload", 8), ("p50 us", 8), ("p90", 8), ("p99", 8), ("p99.9", 8), ("ops/s", 10),
    ("copies", 7), ("cpu user", 9), ("kernel", 8), ("floor us", 9), ("ratio ", 8),
)  # fmt: skip
_SPARED: Final = ("p99.9", "ops/s", "copies")
_PATH_WORDS: Final = {
    "irp": "IRP",
    "irp_built": "IRP by IoBuildDeviceIoControlRequest",
    "irp_reused": "IRP reused",
    "direct": "direct call",
    "fast_io": "fast I/O",
    "blocking": "blocking call",
}
_FLOOR_WORDS: Final = {
    "echo": "echo of the same frames by the kernel's loop",
    "thread_switch": "an event handed to another thread and back",
}


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


def _group_title(row: Mapping[str, Any]) -> str:
    """Name what the rows of a group have in common."""
    words = [row["client"], _PATH_WORDS[row["path"]]]
    if row["method"] != "none":
        words.append(f"METHOD_{row['method'].upper()}")
    if row["memory"] != "none":
        words.append(f"{row['memory']} buffers")
    return f"{', '.join(words)}; floor: {_FLOOR_WORDS.get(row['floor'], row['floor'])}"


def _row_lines(rows: list[Mapping[str, Any]], narrow: bool) -> Iterator[Text]:
    """Yield the rows in groups that differ in completion and payload alone."""
    previous: str | None = None
    for row in rows:
        title = _group_title(row)
        if title != previous:
            yield Text()
            yield Text(title, style="bold")
            yield Text(_line("", (heading for heading, _ in _COLUMNS), narrow), style="dim")
            previous = title
        yield Text(_line(row["completion"], _cells(row), narrow))


def _line(first: str, cells: Iterable[str], narrow: bool) -> str:
    """Return cells in columns: the first to the left, the others to the right."""
    return f"  {first:<7}" + "".join(
        f"{cell:>{width}}"
        for cell, (heading, width) in zip(cells, _COLUMNS, strict=True)
        if not (narrow and heading in _SPARED)
    )


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield payload_text(row["payload"])
    yield from (_microseconds(row[name]) for name in ("p50_us", "p90_us", "p99_us", "p999_us"))
    yield figure(row["ops_per_s"], 0)
    yield f"{row['copies']:g}"
    yield from (_microseconds(row[name]) for name in ("cpu_user_us", "cpu_kernel_us"))
    yield _microseconds(row["floor_p50_us"])
    ratio = _DASH if row["ratio"] is None else f"{row['ratio']:.2f}x"
    yield ratio + ("!" if row["marks"] else " ")


def _floor_lines(floors: list[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the floors, one line each."""
    yield Text()
    yield Text("floors: what this machine takes without an I/O request", style="bold")
    yield Text(
        f"  {'':<14}{'payload':>8}{'p50 us':>9}{'p99':>9}{'least':>9}{'moved':>8}", style="dim"
    )
    for floor in floors:
        figures = (_microseconds(floor[name]) for name in ("p50_us", "p99_us", "min_us"))
        yield Text(
            f"  {floor['name']:<14}{payload_text(floor['payload']):>8}"
            + "".join(f"{text:>9}" for text in figures)
            + f"{floor['moved'] * 100:>6.0f} %"
        )


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
        "busy": "other programs were running: expect longer tails",
    }
    marks = document["provenance"]["marks"]
    for mark in marks:
        yield f"{mark}: {meanings.get(mark, 'see docs/benchmark.md')}."


def render(document: Mapping[str, Any], width: int) -> RenderableType:
    """Return the whole view of a run document for so many columns."""
    return Group(
        Text(HEADING, style="bold"),
        Text(_machine_line(document["provenance"])),
        *(Text(line) for line in _reading_lines(document)),
        *_row_lines(list(document["rows"]), width < _NARROW),
        *_floor_lines(list(document["floors"])),
    )


def print_table(document: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Print the view; where the output is no terminal it is plain text of a fixed width."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=PLAIN_WIDTH, no_color=True)
    console.print(render(document, console.width))
