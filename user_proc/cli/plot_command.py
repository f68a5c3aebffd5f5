"""`softhca plot`: a picture of a run document.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from pathlib import Path
from typing import Annotated

import typer


def plot(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="A run document.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to; the ending says the format. [FILE.png]"
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="bars, or percentiles.")
    ] = "bars",
    rows: Annotated[
        str,
        typer.Option("--rows", metavar="WORDS", help="Only rows whose name contains these words."),
    ] = "",
) -> None:
    """Draw the rows of a run beside their floors.

    Takes runs of every benchmark, and of `softhca stress`: latency by count of
    clients, completions by second. Needs matplotlib, which is not installed with
    the rest: without it the command says how to get it.
    """
    from user_proc.bench.plot_view import KINDS, plot
    from user_proc.cli.run_files import read_run

    if kind not in KINDS:
        raise typer.BadParameter(f"choose from {', '.join(KINDS)}", param_hint="--kind")
    destination = out or file.with_suffix(".png")
    document = read_run(file, "FILE.json", others=("stress",))
    is_stress = document["kind"] == "stress"
    if is_stress and (rows or kind != KINDS[0]):
        raise typer.BadParameter("a stress run has one picture: leave --kind and --rows out")
    try:
        if is_stress:
            from user_proc.stress.stress_plot import plot_stress

            plot_stress(document, destination)
        else:
            plot(document, kind, rows, destination)
    except ValueError as error:  # matplotlib's word for a format it does not know
        raise typer.BadParameter(str(error), param_hint="--out") from None
    typer.echo(f"wrote {destination}")
