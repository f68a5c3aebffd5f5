"""`softhca show KIND`: what is inside a running kernel, as a table or as JSON.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from user_proc.cli.kernel_command import AsJson, Name, errors_as_json
from user_proc.cli.outcome import WRONG_USAGE, complain
from user_proc.errors import ProtocolError

if TYPE_CHECKING:
    from user_proc.cli.state_rows import Rows
    from user_proc.cli.state_tables import Table

# Said here a second time so that a help page needs none of the tables.
KINDS: Final = (
    "session", "pd", "mr", "ah", "cq", "qp", "srq", "xrcd", "irp", "thread", "device", "command",
    "memory",
)  # fmt: skip


def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    name: Name = "default",
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=0, help="Show only the first N rows."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is inside a running kernel: the objects of every session, requests, threads.

    The table is of one moment, at which the kernel does nothing else. Nothing is cut off.
    """
    from user_proc.transport.kernel_control import kernel_state

    if kind not in KINDS:
        sentence = f"there is nothing called {kind!r} to show: it is one of {', '.join(KINDS)}"
        if as_json:
            typer.echo(json.dumps({"error": sentence}))
        complain(sentence)
        raise typer.Exit(WRONG_USAGE)
    with errors_as_json(as_json):
        state = kernel_state(name)
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
    shown = rows if limit is None else rows[:limit]
    if as_json:
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    if not rows:
        typer.echo(f"the kernel {name!r} has no {kind}")
        return
    sys.stdout.writelines(f"{line}\n" for line in _lines(table, shown))
    if len(shown) < len(rows):
        typer.echo(f"and {len(rows) - len(shown)} more")


def _lines(table: "Table", rows: "Rows") -> Iterator[str]:
    from user_proc.cli.columns import labelled, lines_of

    if not table.upright:
        yield from lines_of(table.columns, rows)
        return
    for row in rows:
        pairs = [(column.title, row.get(column.key)) for column in table.columns]
        yield from labelled([pair for pair in pairs if pair[1] is not None])
