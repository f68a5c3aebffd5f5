"""`softhca experiment`: questions answered from what runs, listed and run.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from typing import Annotated, Any

import typer

from user_proc.cli.help_pages import Command, Group
from user_proc.cli.outcome import ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations
from user_proc.cli.run_options import JsonFile, NoProgress

_ALL = "all"

experiment_commands = typer.Typer(cls=Group, no_args_is_help=True)


@experiment_commands.callback(cls=Group)
def experiment() -> None:
    """Answer questions about mechanisms by running them.

    Each experiment varies a few factors, prints a row for every combination, and makes its
    verdict from these rows. The numbers are of this emulator on this machine.
    """


@experiment_commands.command("list", cls=Command)
def list_experiments() -> None:
    """List the experiments with their questions."""
    from user_proc.cli.columns import Column, lines_of
    from user_proc.experiments.catalogue import questions

    rows = [{"name": name, "question": text} for name, text in sorted(questions().items())]
    for line in lines_of([Column("name", "name"), Column("question", "question")], rows):
        print(line)


@experiment_commands.command("run", cls=Command)
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Experiments, or: all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer samples: all of them end within 90 seconds.")
    ] = False,
    json_file: JsonFile = None,
    no_progress: NoProgress = False,
) -> None:
    """Run experiments; print their rows and what follows from them.

    Kernels and processes they need are their own, and nothing is left running. A bug check inside
    an experiment is a row like any other.
    """
    check_destinations(json_file, None)
    with ending_signals():
        chosen = _chosen(names)
        text = _run(chosen, quick, not no_progress)
    _publish(text, json_file)


def _chosen(names: list[str]) -> list[str]:
    """Return the names without repetition, `all` replaced; a usage error names an unknown one."""
    from user_proc.experiments.catalogue import questions

    known = sorted(questions())
    chosen: dict[str, None] = {}
    for name in names:
        if name == _ALL:
            chosen.update(dict.fromkeys(known))
        elif name in known:
            chosen[name] = None
        else:
            raise typer.BadParameter(
                f"{name!r} is none of them: {', '.join(known)}, {_ALL}", param_hint="NAME"
            )
    return list(chosen)


def _run(names: list[str], quick: bool, show_progress: bool) -> str:
    """Run them and return the run document."""
    from user_proc.bench.bench_run import marks_of
    from user_proc.bench.progress_view import make_progress
    from user_proc.experiments.catalogue import run_experiments
    from user_proc.run_document import other_document
    from user_proc.run_provenance import begin_provenance, end_provenance

    begun = begin_provenance()
    with make_progress(show_progress) as progress:
        results = list(run_experiments(names, quick, progress.advance))
    settings = {"tool": "softhca experiment", "names": names, "quick": quick}
    provenance = end_provenance(begun, marks_of(begun, (), pinned=False))
    return other_document("experiment", provenance, settings, {"experiments": results})


def _publish(text: str, json_file: str | None) -> None:
    """Write the document and print the tables as a strict reader sees them."""
    import sys

    from user_proc.cli.experiment_table import experiment_lines
    from user_proc.run_document import load_strict, write_text

    document: dict[str, Any] = load_strict(text)
    if json_file is not None:
        write_text(json_file, text)
    views = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    for line in experiment_lines(document["experiments"]):
        print(line, file=views)
