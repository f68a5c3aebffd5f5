"""`softhca compare`: two run documents, row by row.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from user_proc.bench.comparison import Change, RowChange


class RunsDiffer(SofthcaError):
    """The runs differ in what a row's time depends on."""


def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The run before.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The run after.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs that differ in more than the code.")
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the changes; - is standard output."),
    ] = None,
) -> None:
    """Say of each row whether B is slower or faster than A, or that no change is shown.

    Takes two runs of one benchmark. The interval is a bootstrap over rounds and
    blocks. Runs of different machines, Pythons, loops or pinning are refused, and so are runs of
    which only one was disturbed, unless forced.
    """
    from user_proc.bench import comparison
    from user_proc.cli.run_files import read_run
    from user_proc.run_document import dump_strict, write_text

    documents = read_run(before, "A.json"), read_run(after, "B.json")
    kinds = [document["kind"] for document in documents]
    if kinds[0] != kinds[1]:
        raise typer.BadParameter(
            f"it is of the kind {kinds[1]!r} and A.json of {kinds[0]!r}: take two runs of one "
            "benchmark",
            param_hint="B.json",
        )
    differing = comparison.unequal(*documents)
    if differing and not force:
        raise RunsDiffer(f"the runs cannot be compared ({'; '.join(differing)}); --force does")
    changes = comparison.compare(*documents)
    if json_file is not None:
        write_text(json_file, dump_strict(_as_dict(changes, differing)))
    if json_file != "-":
        _show(changes, differing)


def _as_dict(changes: Sequence["RowChange"], differing: Sequence[str]) -> dict[str, Any]:
    return {
        "forced_over": list(differing),
        "rows": [
            {
                **change.spec.as_dict(),
                "p50": change.p50.as_dict(),
                "p99": None if change.p99 is None else change.p99.as_dict(),
            }
            for change in changes
        ],
    }


def _show(changes: Sequence["RowChange"], differing: Sequence[str]) -> None:
    from user_proc.run_document import HEADING

    typer.echo(HEADING)
    if differing:
        typer.echo(f"Forced, although the runs differ: {'; '.join(differing)}.")
    for change in changes:
        typer.echo(change.spec.label())
        typer.echo(_line("p50", change.p50))
        if change.p99 is not None:
            typer.echo(_line("p99", change.p99))
    counts = Counter(change.p50.verdict for change in changes)
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    typer.echo(f"{len(changes)} rows by p50: {found or 'none in both runs'}")


def _line(name: str, change: "Change") -> str:
    from user_proc.bench.wording import microseconds, span

    return (
        f"  {name} {microseconds(change.before_us):>9} -> {microseconds(change.after_us):>9} us  "
        f"{change.verdict} ({span(change.difference)})"
    )
