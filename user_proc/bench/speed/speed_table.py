"""The data path's table on the screen and as CSV: views of a run document, made from it alone.

Rules: the heading says whose numbers these are before the first number is seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from user_proc.bench.speed.speed_rows import KERNEL, LATENCY_OPS
from user_proc.bench.table_view import (
    answer_lines,
    figure,
    in_columns,
    machine_line,
    mark_lines,
    microseconds_or_dash,
    show,
)
from user_proc.bench.wording import payload_text
from user_proc.run_document import HEADING

Row = Mapping[str, Any]

CSV_COLUMNS: Final = (
    "op",
    "transport",
    "bytes",
    "qps",
    "depth",
    "processes",
    "mode",
    "load",
    "client",
    "irql",
    "count",
    "blocks",
    "p50_us",
    "p90_us",
    "p99_us",
    "max_us",
    "mean_us",
    "bw_gib_s",
    "msg_per_s",
    "cpu_user_us",
    "chain",
    "spin",
    "floor",
    "floor_p50_us",
    "floor_p99_us",
    "floor_bw_gib_s",
    "ratio",
    "ratio_of",
    "convention",
)
_LATENCY: Final = (
    ("bytes", 8), ("procs", 6), ("p50 us", 9), ("p90", 9), ("p99", 9), ("max", 10),
    ("cpu user", 9), ("floor us", 9), ("ratio ", 10), ("count", 8),
)  # fmt: skip
_STREAM: Final = (
    ("bytes", 8), ("QPs", 5), ("depth", 6), ("procs", 6), ("GiB/s", 8), ("messages/s", 11),
    ("us each", 9), ("cpu user", 9), ("floor us", 9), ("ratio ", 10),
)  # fmt: skip
_SPARED: Final = ("p90", "max", "cpu user", "count", "us each")  # below 100 columns
_NARROW: Final = 100
_FLOOR_WORDS: Final = {
    "relay": "a word one way through a relay",
    "relay_return": "a word to a relay and back",
    "copy": "a copy between the same regions",
    "echo": "half an echo of the kernel's loop",
}
_CONVENTIONS: Final = {
    "round_trip": "from post until polled",
    "half_round_trip": "half a round trip",
    "time_per_message": "time by messages, no percentiles",
}


def print_speed(document: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Print the view; where the output is no terminal it is plain text."""
    show(lambda width: render(document, width), to_stderr=to_stderr)


def render(document: Mapping[str, Any], width: int) -> RenderableType:
    """Return the whole view of a run document for so many columns."""
    rows, narrow = list(document["rows"]), width < _NARROW
    return Group(
        Text(HEADING, style="bold"),
        Text(machine_line(document["provenance"])),
        *(Text(line) for line in _reading_lines(document["settings"])),
        *(Text(line) for line in mark_lines(document["provenance"]["marks"])),
        *_row_lines(rows, narrow),
        *_floor_lines(list(document["floors"])),
        *answer_lines(document["answers"]),
    )


def _reading_lines(settings: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Arena memory, nothing inline; {settings['blocks']} blocks, each beside a block of its "
        "floor under the same load, payloads compared by checksum once a block; p50 is the median "
        "of block medians; - stands where fewer than ten samples lie beyond, ! behind a row with "
        "a mark of its own."
    )
    spared = f" after the first {settings['spin']}" if settings["spin"] else ""
    yield (
        f"Pollers yield the processor at every empty look{spared}. "
        "ratio: p50 over the floor's, of bandwidths the row's over the copy's."
    )
    for rate in settings["load_verbs_per_s"][-1:]:
        yield (
            f"Loaded: {settings['load_clients']} processes did the control mix meanwhile, "
            f"{rate:,} verbs a second."
        )


def _row_lines(rows: Sequence[Row], narrow: bool) -> Iterator[Text]:
    names = ("op", "transport", "mode", "load", "client", "irql", "floor")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
    for key, of_group in groups.items():
        op, transport, mode, load, client, irql, floor = key
        whose = f", kernel client at {irql}" if client == KERNEL else ""
        yield Text()
        yield Text(
            f"{op} {transport}, {mode}, {load}{whose}; {_CONVENTIONS[of_group[0]['convention']]}; "
            f"floor: {_FLOOR_WORDS[floor]}",
            style="bold",
        )
        columns = _LATENCY if op in LATENCY_OPS else _STREAM
        cells = _latency_cells if op in LATENCY_OPS else _stream_cells
        yield Text(_line((name for name, _ in columns), columns, narrow), style="dim")
        for row in sorted(of_group, key=_order):
            yield Text(_line(cells(row), columns, narrow))


def _order(row: Row) -> tuple[int, ...]:
    return row["processes"], row["qps"], row["bytes"]


def _line(cells: Iterable[str], columns: Sequence[tuple[str, int]], narrow: bool) -> str:
    return "  " + in_columns(cells, columns, _SPARED if narrow else ())


def _latency_cells(row: Row) -> Iterator[str]:
    yield payload_text(row["bytes"])
    yield str(row["processes"])
    for name in ("p50_us", "p90_us", "p99_us", "max_us", "cpu_user_us", "floor_p50_us"):
        yield microseconds_or_dash(row[name])
    yield _ratio(row)
    yield str(row["count"])


def _stream_cells(row: Row) -> Iterator[str]:
    yield payload_text(row["bytes"])
    yield from (str(row[name]) for name in ("qps", "depth", "processes"))
    yield figure(row["bw_gib_s"], 3)
    yield figure(row["msg_per_s"], 0)
    for name in ("p50_us", "cpu_user_us", "floor_p50_us"):
        yield microseconds_or_dash(row[name])
    yield _ratio(row)


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f}x" + ("!" if row["marks"] else " ")


def _floor_lines(floors: Sequence[Row]) -> Iterator[Text]:
    yield Text()
    yield Text("floors: what this machine takes without queue pairs", style="bold")
    yield Text(
        f"  {'':<28}{'bytes':>8}{'p50 us':>10}{'p99':>10}{'least':>9}{'moved':>8}", style="dim"
    )
    for floor in floors:
        name = f"{floor['name']}, {floor['load']}"
        if floor["processes"] > 1:
            name += f", {floor['processes']} at a time"
        cells = (microseconds_or_dash(floor[name]) for name in ("p50_us", "p99_us", "min_us"))
        p50, p99, least = cells
        yield Text(
            f"  {name:<28}{payload_text(floor['payload']):>8}{p50:>10}{p99:>10}{least:>9}"
            f"{floor['moved'] * 100:>6.0f} %"
        )
