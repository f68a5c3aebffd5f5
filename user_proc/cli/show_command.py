"""`softhca show KIND`: what is inside a running kernel, as a table or as JSON.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli.kernel_command import AsJson, Name, errors_as_json
from user_proc.cli.outcome import WRONG_USAGE, complain
from user_proc.errors import ProtocolError

if TYPE_CHECKING:
    from user_proc.cli.columns import Column
    from user_proc.cli.state_rows import Rows

# Said here a second time so that a help page needs none of the tables.
KINDS: Final = (
    "session", "pd", "mr", "mw", "ah", "cq", "qp", "srq", "xrcd", "port", "irp", "thread", "device",
    "command", "memory",
)  # fmt: skip
REQUESTS: Final = "wr"
_WITH_FIGURES: Final = ("qp", "mw", "device")  # other than what the kernel knows
_QPN_END: Final = 1 << 24


def show(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help=f"One of {', '.join(KINDS)}; or {REQUESTS}.", show_default=False
        ),
    ] = None,
    name: Name = DEFAULT_INSTANCE,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=0, help="Show only the first N rows."),
    ] = None,
    queue_pair: Annotated[
        str | None,
        typer.Option(
            "--qp", metavar="NUMBER", help=f"With {REQUESTS}: whose work requests, 0x405 or 1029."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is inside a running kernel: the objects of every session, requests, threads.

    The table is of one moment, at which the kernel does nothing else; what the HCA alone knows is
    of a moment before. `wr` shows the last 64 work requests of each queue of a queue pair. Nothing
    is cut off: on a terminal that is too narrow, further columns stand below.
    """
    from user_proc.transport.kernel_control import kernel_state

    kinds = ", ".join((*KINDS, REQUESTS))
    if kind is None:
        _refuse(f"say what to show: {kinds}", as_json)
    if kind == REQUESTS:
        _show_requests(name, queue_pair, limit, as_json)
        return
    if kind not in KINDS:
        _refuse(f"there is nothing called {kind!r} to show: it is one of {kinds}", as_json)
    if queue_pair is not None:
        _refuse(f"--qp goes with {REQUESTS} only, not with {kind}", as_json)
    with errors_as_json(as_json):
        state = kernel_state(name)
    from user_proc.cli.device_figures import silence
    from user_proc.cli.state_tables import TABLES

    table = TABLES[kind]
    with errors_as_json(as_json):
        try:
            rows = table.rows(state)
        except KeyError as error:  # it was started before the command was renewed
            raise ProtocolError(
                f"the kernel {name!r} tells nothing of {error}, so it is of another version than "
                "this command: stop it and start it again"
            ) from error
        reason = silence(state) if kind in _WITH_FIGURES else ""
    if reason:
        complain(f"{reason}: what it alone knows is not shown")
    nothing = f"the kernel {name!r} has no {kind}"
    _print(rows, table.columns, limit, as_json, nothing, upright=table.upright)


def _show_requests(name: str, queue_pair: str | None, limit: int | None, as_json: bool) -> None:
    number = _number_of(queue_pair, as_json)
    with errors_as_json(as_json):
        from user_proc.cli.work_requests import COLUMNS, posted_requests, request_rows

        rows = request_rows(posted_requests(name, number))
    nothing = f"the queue pair {number:#x} of kernel {name!r} has no work request in its queues"
    _print(rows, COLUMNS, limit, as_json, nothing)


def _number_of(text: str | None, as_json: bool) -> int:
    if text is None:
        _refuse(f"{REQUESTS} needs --qp NUMBER: 'softhca show qp' lists them", as_json)
    try:
        number = int(text, 0)
    except ValueError:
        number = 0
    if not 0 < number < _QPN_END:
        _refuse(f"{text!r} is no number of a queue pair: 0x405 or 1029, below 2**24", as_json)
    return number


def _refuse(sentence: str, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": sentence}))
    complain(sentence)
    raise typer.Exit(WRONG_USAGE)


def _print(
    rows: "Rows",
    columns: "Sequence[Column]",
    limit: int | None,
    as_json: bool,
    nothing: str,
    *,
    upright: bool = False,
) -> None:
    shown = rows if limit is None else rows[:limit]
    if as_json:
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    if not rows:
        typer.echo(nothing)
        return
    lines = _lines(columns, shown, upright=upright)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if len(shown) < len(rows):
        typer.echo(f"and {len(rows) - len(shown)} more")


def _lines(columns: "Sequence[Column]", rows: "Rows", *, upright: bool) -> Iterator[str]:
    from user_proc.cli.columns import labelled, lines_of, terminal_width

    if not upright:
        yield from lines_of(columns, rows, terminal_width())
        return
    for row in rows:
        pairs = [(column.title, row.get(column.key)) for column in columns]
        yield from labelled([pair for pair in pairs if pair[1] is not None])
