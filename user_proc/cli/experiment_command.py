"""`softhca experiment`: questions answered from what runs, listed and run.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from typing import Annotated, Any, TextIO

import typer

from user_proc.cli.help_pages import Command, Group
from user_proc.cli.outcome import FAILED, complain, ending_signals
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

    Each is printed as it ends. Kernels and processes they need are their own, and nothing is left
    running. A bug check inside an experiment is a row like any other.
    """
    check_destinations(json_file, None)
    with ending_signals():
        failed = _run(_chosen(names), quick, not no_progress, json_file)
    if failed:
        raise typer.Exit(FAILED)


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


def _run(names: list[str], quick: bool, show_progress: bool, json_file: str | None) -> bool:
    """Run them, print each as it ends, write the document; say whether one of them failed.

    The others go on then, and are in the document.
    """
    import sys

    from user_proc.bench.bench_run import marks_of
    from user_proc.bench.progress_view import make_progress
    from user_proc.experiments.catalogue import run_experiment
    from user_proc.experiments.experiment import ExperimentFailed
    from user_proc.run_document import other_document
    from user_proc.run_provenance import begin_provenance, end_provenance

    begun, failed = begin_provenance(), False
    results: list[dict[str, Any]] = []
    views = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    for name in names:
        try:
            with make_progress(show_progress) as progress:
                result = run_experiment(name, quick, progress.advance)
        except ExperimentFailed as error:
            complain(str(error))
            failed = True
            continue
        _show(result, views, first=not results)
        results.append(result)
    settings = {"tool": "softhca experiment", "names": names, "quick": quick}
    provenance = end_provenance(begun, marks_of(begun, (), pinned=False))
    parts = {"experiments": results}
    _write(other_document("experiment", provenance, settings, parts), json_file)
    return failed


def _show(result: dict[str, Any], views: TextIO, *, first: bool) -> None:
    from user_proc.cli.experiment_table import experiment_lines
    from user_proc.run_document import HEADING

    if first:
        print(HEADING, file=views)
    print(file=views)
    for line in experiment_lines(result):
        print(line, file=views)
    views.flush()


def _write(text: str, json_file: str | None) -> None:
    from user_proc.errors import SofthcaError
    from user_proc.run_document import write_text

    if json_file is None:
        return
    try:
        write_text(json_file, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise SofthcaError(f"{json_file} cannot be written ({why}): name another file") from error
