"""A stress run in words: a table of its counts, and what was found."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from user_proc.run_document import HEADING
from user_proc.stress.stress_programs import program_text

_HEAD: Final = (
    ("clients", "CLIENTS"),
    ("seconds", "SECONDS"),
    ("lives", "LIVES"),
    ("kills", "KILLS"),
    ("operations_per_s", "CALLS/S"),
    ("completions_per_s", "DONE/S"),
    ("control_p50_us", "VERB p50 us"),
    ("control_p99_us", "p99 us"),
    ("floor_p50_us", "ECHO p50 us"),
    ("floor_p99_us", "p99 us"),
)
_RATIO: Final = "p99/p99"  # a control verb's over the echo's
AIM: Final = 3.0  # of a control verb's p99 over the echo's
_MOST_LINES: Final = 40


def stress_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Give the lines of a run: whose numbers these are, a table, what was found."""
    yield HEADING
    rows = [
        [*(_cell(count[name]) for name, _ in _HEAD), _ratio(count)] for count in document["counts"]
    ]
    titles = [*(title for _, title in _HEAD), _RATIO]
    widths = [
        max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate(titles)
    ]
    for row in (titles, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    yield ""
    yield (
        f"{document['operations']} operations, {document['completions']} completions, "
        f"{document['kills']} kills: {document['lost']} lost, {document['doubled']} doubled, "
        f"{document['corrupt']} corrupt, {document['wrong']} wrong, {document['hangs']} hangs, "
        f"{len(document['leaks'])} leaks"
    )
    control, floor = document["control_p99_us"], document["floor_p99_us"]
    if control and floor:
        yield f"a control verb's p99 is {control / floor:.2f} times the echo's (aim: {AIM:g})"
    yield f"seed {document['seed']}"
    yield from _found(document)


def _ratio(count: Mapping[str, Any]) -> str:
    control, floor = count["control_p99_us"], count["floor_p99_us"]
    return f"{control / floor:.2f}x" if control and floor else "-"


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _found(document: Mapping[str, Any]) -> Iterator[str]:
    for leak in document["leaks"]:
        yield f"LEFT: {leak}"
    for failure in document["failures"]:
        yield (
            f"FOUND {failure['kind']} by client {failure['place']}, life {failure['life']}, "
            f"at step {failure['step']} of seed {failure['seed']}: {failure['text']}"
        )
    reduced = document["reduced"]
    if reduced is None:
        return
    if reduced["reproduced"]:
        yield f"the shortest program that finds it ({reduced['tried']} tried):"
    else:
        yield "one client with a mate did not find it again; its whole program was:"
    lines = program_text(reduced["steps"]).splitlines()
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"... {len(lines) - _MOST_LINES} lines more: --json FILE has all of them"
