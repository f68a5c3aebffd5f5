"""The table on the screen: a view of a run document, made from the document alone.

Rules: the heading says whose numbers these are before the first number is seen.
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from user_proc.bench.stage_view import stage_lines
from user_proc.bench.wording import microseconds, payload_text
from user_proc.run_document import HEADING

PLAIN_WIDTH: Final = 100
_DASH: Final = "-"
_NARROW: Final = 100  # a terminal below this width is spared three of them
_FIRST: Final = 10
_COLUMNS: Final = (
    ("payload", 7), ("p50 us", 8), ("p90", 8), ("p99", 7), ("p99.9", 7), ("ops/s", 10),
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

_MEANINGS: Final = {
    "overloaded": "a row fell behind its schedule: its times are those of a growing queue, "
    "and are not to be compared",
    "copies": "a row made more or fewer copies than its method has",
    "unsteady": "a floor moved by more than a tenth while measured: compare ratios rather "
    "than times",
    "unpinned": "processes were free to change cores (--pin CPU,CPU holds them)",
    "virtual": "a virtual machine: other guests may take time from it",
    "busy": "other programs were running: expect longer tails",
}


def figure(value: float | None, places: int = 1) -> str:
    """Return a figure, or a dash where it rests on too few samples."""
    return _DASH if value is None else f"{value:,.{places}f}"


def microseconds_or_dash(value: float | None) -> str:
    """Return microseconds with about three digits, or a dash."""
    return _DASH if value is None else microseconds(value)


def _how(row: Mapping[str, Any]) -> str:
    """Name how a row is completed, and what else differs from one request at a time."""
    words = [row["completion"]]
    if row["depth"] > 1:
        words.append(f"x{row['depth']}")
    if row["processes"] > 1:
        words.append(f"p{row['processes']}")
    if row["verifier"]:
        words.append("v")
    return " ".join(words)


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
        yield Text(_line(_how(row), _cells(row), narrow))


def _line(first: str, cells: Iterable[str], narrow: bool) -> str:
    """Return cells in columns: the first to the left, the others to the right."""
    return f"  {first:<{_FIRST}}" + in_columns(cells, _COLUMNS, _SPARED if narrow else ())


def in_columns(
    cells: Iterable[str], columns: Iterable[tuple[str, int]], spared: Container[str]
) -> str:
    """Return cells at the right of their columns, a blank between them however long they are."""
    return "".join(
        f" {cell:>{width - 1}}"
        for cell, (heading, width) in zip(cells, columns, strict=True)
        if heading not in spared
    )


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield payload_text(row["payload"])
    yield from (
        microseconds_or_dash(row[name]) for name in ("p50_us", "p90_us", "p99_us", "p999_us")
    )
    yield figure(row["ops_per_s"], 0)
    yield f"{row['copies']:g}"
    yield from (microseconds_or_dash(row[name]) for name in ("cpu_user_us", "cpu_kernel_us"))
    yield microseconds_or_dash(row["floor_p50_us"])
    ratio = _DASH if row["ratio"] is None else f"{row['ratio']:.2f}x"
    yield ratio + ("!" if row["marks"] else " ")


def floor_lines(floors: list[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the floors, one line each."""
    yield Text()
    yield Text("floors: what this machine takes without an I/O request", style="bold")
    yield Text(
        f"  {'':<14}{'payload':>11}{'p50 us':>9}{'p99':>9}{'least':>9}{'moved':>8}", style="dim"
    )
    for floor in floors:
        figures = (microseconds_or_dash(floor[name]) for name in ("p50_us", "p99_us", "min_us"))
        yield Text(
            f"  {floor['name'] + _at_a_time(floor):<16}{payload_text(floor['payload']):>9}"
            + "".join(f"{text:>9}" for text in figures)
            + f"{floor['moved'] * 100:>6.0f} %"
        )


def _at_a_time(floor: Mapping[str, Any]) -> str:
    depth = f" x{floor['depth']}" if floor["depth"] > 1 else ""
    return f"{depth} p{floor['processes']}" if floor["processes"] > 1 else depth


def answer_lines(answers: list[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield what the run says in words, as its last lines."""
    for answer in answers:
        yield Text()
        yield Text(answer["question"], style="bold")
        yield Text(answer["answer"])


def machine_line(provenance: Mapping[str, Any]) -> str:
    """Name machine and versions."""
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
    warmup = document["provenance"]["warmup"]["operations_per_row_and_round"]
    yield (
        f"Full round trips, each timed with perf_counter_ns; {settings['blocks']} blocks in "
        f"{settings['rounds']} fresh processes per row, floor and row in turn, warmed up by "
        f"{warmup} operations a round that are not counted; p50 is the median of block medians; "
        "- stands where fewer than ten samples lie beyond; ! behind a row with a mark of its own. "
        "copies: of the payload, in the kernel; cpu user and kernel: processor time of the two "
        "sides in us a request; ratio: p50 over its floor's. More in docs/benchmark.md."
    )
    yield _loop_line(settings)
    yield from mark_lines(document["provenance"]["marks"])


def mark_lines(marks: Iterable[str]) -> Iterator[str]:
    """Say what the marks of a run mean."""
    for mark in marks:
        yield f"{mark}: {_MEANINGS.get(mark, 'see docs/benchmark.md')}."


def _loop_line(settings: Mapping[str, Any]) -> str:
    if settings["loop"] == "open":
        return (
            f"Open loop: {settings['rate_per_s']:g} starts a second, each request timed from its "
            "intended start, late or not."
        )
    return (
        "Closed loop: the next request starts when the last has ended; x16: 16 in flight; p4: "
        "from 4 processes at a time; v: the kernel in verifier mode."
    )


def _schedule_lines(rows: list[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield how each row of an open loop kept its schedule."""
    scheduled = [row for row in rows if row["open_loop"] is not None]
    if not scheduled:
        return
    yield Text()
    yield Text("open loop: how the schedule was kept", style="bold")
    yield Text(
        f"  {'':<42}{'starts/s':>9}{'latest us':>11}{'backlog':>9}{'behind':>9}", style="dim"
    )
    for row in scheduled:
        kept = row["open_loop"]
        name = f"{row['path']} {row['method']} {row['completion']} {payload_text(row['payload'])}"
        yield Text(
            f"  {name:<42}{figure(kept['started_per_s'], 0):>9}"
            f"{microseconds_or_dash(kept['late_max_us']):>11}{kept['backlog_max']:>9}"
            f"{kept['behind'] * 100:>7.1f} %" + (" overloaded" if kept["overloaded"] else "")
        )


def _kernel_lines(life: Mapping[str, Any] | None) -> Iterator[Text]:
    if life is None:
        return
    yield Text("")
    yield Text("a kernel without requests", style="bold")
    yield Text(
        f"  start to ready {life['start_ms']:.0f} ms, connect and open a device "
        f"{life['connect_and_open_ms']:.1f} ms, the HCA "
        f"{life['connect_and_open_context_ms']:.1f} ms (medians of {life['starts']})"
    )
    yield Text(
        f"  idle with {life['idle_sessions']} armed completion queues for {life['idle_s']:.0f} s: "
        f"{life['idle_cpu_percent']:.3f} % of a core"
    )


def render(document: Mapping[str, Any], width: int) -> RenderableType:
    """Return the whole view of a run document for so many columns."""
    return Group(
        Text(HEADING, style="bold"),
        Text(machine_line(document["provenance"])),
        *(Text(line) for line in _reading_lines(document)),
        *_row_lines(list(document["rows"]), width < _NARROW),
        *_schedule_lines(list(document["rows"])),
        *floor_lines(list(document["floors"])),
        *_kernel_lines(document.get("kernel")),
        *stage_lines(document.get("stages", [])),
        *answer_lines(document.get("answers", [])),
    )


def print_table(document: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Print the view; where the output is no terminal it is plain text, as wide as COLUMNS says."""
    show(lambda width: render(document, width), to_stderr=to_stderr)


def show(view: Callable[[int], RenderableType], *, to_stderr: bool = False) -> None:
    """Print what `view` makes of a width; plain text as wide as COLUMNS says if on no terminal."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=_plain_width(), no_color=True)
    console.print(view(console.width))


def _plain_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else PLAIN_WIDTH
