"""The verbs' table on the screen and as CSV: views of a run document, made from it alone.

Rules: the heading says whose numbers these are before the first number is seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from user_proc.bench.table_view import (
    answer_lines,
    figure,
    floor_lines,
    in_columns,
    machine_line,
    mark_lines,
    microseconds_or_dash,
    show,
)
from user_proc.bench.verbs.verb_results import CONTROL_MIX
from user_proc.bench.wording import payload_text
from user_proc.run_document import HEADING

Row = Mapping[str, Any]

CSV_COLUMNS: Final = (
    "verb",
    "client",
    "latency_model",
    "processes",
    "bytes",
    "layout",
    "memory",
    "verbs_per_operation",
    "count",
    "blocks",
    "p50_us",
    "p90_us",
    "p99_us",
    "max_us",
    "mean_us",
    "ops_per_s",
    "commands",
    "command_us",
    "asked_us",
    "device_us",
    "boundary_us",
    "floor",
    "floor_p50_us",
    "floor_ops_per_s",
    "ratio",
    "ratio_of",
)
_COLUMNS: Final = (
    ("p50 us", 9), ("p99", 9), ("ops/s", 8), ("driver", 9), ("asked", 9), ("device", 9),
    ("ratio ", 10),
)  # fmt: skip
_NARROW: Final = 100  # below this width a verb's line is spared some of them
_SPARED: Final = ("p99", "ops/s", "asked")
_PLACE_HEAD: Final = (
    f"  {'':<10}{'reg p50 us':>12}{'p99':>11}{'driver':>11}{'us/page':>9}{'commands':>10}"
    f"{'dereg p50':>11}{'count':>7}"
)
_MIX_HEAD: Final = (
    f"  {'processes':<11}{'verbs/s':>9}{'echoes/s':>10}{'ratio':>7}{'mix ms':>9}{'p99':>9}"
    f"{'cpu user':>10}{'kernel':>9}{'mixes':>8}"
)
_PAGE: Final = 4096
_LEAST_COLUMN: Final = 13  # the longest command's name


def print_verbs(document: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Print the view; where the output is no terminal it is plain text."""
    show(lambda width: render(document, width), to_stderr=to_stderr)


def render(document: Mapping[str, Any], width: int) -> RenderableType:
    """Return the whole view of a run document for so many columns."""
    rows = list(document["rows"])
    settings = document["settings"]
    return Group(
        Text(HEADING, style="bold"),
        Text(machine_line(document["provenance"])),
        *(Text(line) for line in _reading_lines(settings)),
        *(Text(line) for line in mark_lines(document["provenance"]["marks"])),
        *_verb_lines([row for row in rows if row["bytes"] is None], width),
        *_registration_lines([row for row in rows if row["bytes"] is not None]),
        *_mix_lines([row for row in rows if row["verb"] == CONTROL_MIX]),
        *_kernel_lines(document["kernel"]),
        *floor_lines(list(document["floors"])),
        *answer_lines(document["answers"]),
        *(Text(f"Not measured: {line}") for line in settings["not_measured"]),
    )


def _reading_lines(settings: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Each verb timed with perf_counter_ns, its message made and read within; "
        f"{settings['blocks']} blocks, each beside a block of its floor; p50 is the median of "
        "block medians; - stands where fewer than ten samples lie beyond, ! behind a row with a "
        "mark of its own."
    )
    yield (
        "driver: what the driver waited for the verb's commands; asked: what the latency model "
        "asked of the HCA; device: how long they were in execution there. ratio: p50 over the "
        "floor's, of a mix verbs a second over echoes a second. us/page: reg p50 over the pages "
        "of 4 KiB; count: samples. More in docs/benchmark-verbs.md."
    )


def _cell(value: float | None) -> str:
    return microseconds_or_dash(value)


def _ratio(value: float) -> str:
    """Write a ratio with as many digits as its samples can carry."""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.2f}x"


def _mark(row: Row) -> str:
    return "!" if row["marks"] else " "


def _verb_lines(rows: Sequence[Row], width: int) -> Iterator[Text]:
    verbs = [row for row in rows if row["verb"] != CONTROL_MIX]
    for (model, client), group in groupby(
        verbs, key=lambda row: (row["latency_model"], row["client"])
    ):
        floor = "echo of 64 B" if client == "user" else "an event handed to a thread and back"
        how = "by IOCTL" if client == "user" else "by direct call"
        yield Text()
        yield Text(f"{client} client, {how}; latency model {model}; floor: {floor}", style="bold")
        narrow = width < _NARROW
        yield Text(_line("", [name for name, _ in _COLUMNS], narrow) + "  commands", style="dim")
        for row in group:
            line = _line(row["verb"], _cells(row), narrow) + "  "
            yield _hanging(line, commands_text(row["commands"]), width)


def _cells(row: Row) -> Iterator[str]:
    yield from (_cell(row["p50_us"]), _cell(row["p99_us"]), figure(row["ops_per_s"], 0))
    yield from (_cell(row[name]) for name in ("command_us", "asked_us", "device_us"))
    yield f"{_ratio(row['ratio'])}{_mark(row)}"


def _line(first: str, cells: Iterable[str], narrow: bool) -> str:
    return f"  {first:<15}" + in_columns(cells, _COLUMNS, _SPARED if narrow else ())


def _hanging(line: str, text: str, width: int) -> Text:
    """Put text behind a line, broken into a column of its own if there is room for one."""
    room = width - len(line)
    if room < _LEAST_COLUMN:
        return Text(line + text)
    return Text(line + ("\n" + " " * len(line)).join(wrap(text, room)))


def commands_text(names: Sequence[str]) -> str:
    """Return the commands in order, repeated ones counted."""
    parts = [(name, len(list(same))) for name, same in groupby(names)]
    return " ".join(name if count == 1 else f"{name}x{count}" for name, count in parts) or "none"


def _registration_lines(rows: Sequence[Row]) -> Iterator[Text]:
    places: dict[tuple[str, str], dict[int, dict[str, Row]]] = {}
    for row in rows:
        sizes = places.setdefault((row["memory"], row["layout"]), {})
        sizes.setdefault(row["bytes"], {})[row["verb"]] = row
    for (memory, layout), sizes in sorted(places.items()):
        yield Text()
        yield Text(f"registration of {memory} memory, page frames {layout}", style="bold")
        yield Text(_PLACE_HEAD, style="dim")
        for size, verbs in sorted(sizes.items()):
            made, ended = verbs["reg_mr"], verbs["dereg_mr"]
            each = made["p50_us"] * _PAGE / size
            yield Text(
                f"  {payload_text(size):<10}{_cell(made['p50_us']):>12}{_cell(made['p99_us']):>11}"
                f"{_cell(made['command_us']):>11}{each:>9.3f}{len(made['commands']):>10}"
                f"{_cell(ended['p50_us']):>11}{made['count']:>6}{_mark(made)}"
            )


def _mix_lines(rows: Sequence[Row]) -> Iterator[Text]:
    if not rows:
        return
    verbs = rows[0]["verbs_per_operation"]
    yield Text()
    yield Text(
        f"control mix: PD, 4 KiB MR, CQ, RC QP to RTS, query, all destroyed: {verbs} verbs, "
        f"{len(rows[0]['commands'])} commands; latency model {rows[0]['latency_model']}",
        style="bold",
    )
    yield Text(_MIX_HEAD, style="dim")
    for row in rows:
        p99 = row["p99_us"]
        yield Text(
            f"  {row['processes']:<11}{figure(row['ops_per_s'], 0):>9}"
            f"{figure(row['floor_ops_per_s'], 0):>10}{row['ratio']:>6.2f}{_mark(row)}"
            f"{_cell(row['p50_us'] / 1000):>9}{_cell(p99 / 1000 if p99 else None):>9}"
            f"{_cell(_a_verb(row, 'cpu_user_us')):>10}{_cell(_a_verb(row, 'cpu_kernel_us')):>9}"
            f"{row['count']:>8}"
        )
    yield Text("  cpu: processor time a verb in us, of the user processes and the kernel process")


def _a_verb(row: Row, name: str) -> float | None:
    value: float | None = row[name]
    return None if value is None else value / row["verbs_per_operation"]


def _kernel_lines(life: Mapping[str, Any]) -> Iterator[Text]:
    yield Text()
    yield Text("opening the HCA's device", style="bold")
    line = (
        f"  open {life['open_device_ms']:.2f} ms, at most {life['open_device_max_ms']:.2f} ms "
        f"({life['opens']} opens)"
    )
    if life["start_and_connect_ms"] is not None:
        line += (
            f"; kernel start until a user process is ready {life['start_and_connect_ms']:.0f} ms"
        )
    yield Text(line)
