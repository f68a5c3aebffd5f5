"""`softhca stress`: random programs of verbs by many clients, against a model of what must come.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from user_proc.cli.outcome import FAILED, ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations
from user_proc.cli.run_options import JsonFile, NoProgress

if TYPE_CHECKING:
    from user_proc.stress.stress_settings import StressSettings

_MOST_CLIENTS = 200
_SEED_BITS = 32


def _counts(text: str) -> tuple[int, ...]:
    """Return the counts of clients in `4` or `1,2,4`."""
    try:
        counts = tuple(int(one) for one in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= one <= _MOST_CLIENTS for one in counts):
        raise typer.BadParameter(
            f"{text!r}: a number from 1 to {_MOST_CLIENTS}, or several with commas",
            param_hint="--clients",
        )
    return counts


def stress(
    clients: Annotated[
        str,
        typer.Option(metavar="N[,N...]", help="Clients; several: one run after the other."),
    ] = "4",
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds of each run.")
    ] = 10.0,
    seed: Annotated[
        int | None, typer.Option(
            metavar="N", min=0, help="Seed of the programs; a fresh one is printed."
        )
    ] = None,
    kill: Annotated[
        float,
        typer.Option(
            metavar="RATE", min=0.0, help="How many clients a second are killed by SIGKILL."
        ),
    ] = 0.0,
    verifier: Annotated[
        bool, typer.Option("--verifier", help="Check kernel code as Driver Verifier does.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, exists=True,
            help="Do the program in a file once: a list of steps, or a failing run's document.",
        ),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False,
            help="Set the faults of a TOML file, which clients may not see.",
        ),
    ] = None,
    json_file: JsonFile = None,
    no_progress: NoProgress = False,
) -> None:  # fmt: skip
    """Load a kernel with clients that do random programs, and account for everything.

    Every client makes objects of all kinds, connects queue pairs within itself and with a
    neighbour, sends, writes and reads, calls wrongly on purpose, forks, and ends by surprise; a
    model knows what each call and each work request must come back with. In the end nothing may be
    left in the kernel. The run ends at the first thing that is wrong, and prints the shortest
    program it can reduce it to; exit code 1. Meanwhile one quiet client compares a control verb
    with an echo. The kernel and all processes are the run's own.
    """
    counts = _counts(clients)
    check_destinations(json_file, None)
    settings = _settings(counts, seconds, seed, kill, verifier, faults)
    with ending_signals():
        if replay is not None:
            _replay(settings, replay)
            return
        text = _run(settings, not no_progress)
    _publish(text, json_file)


def _settings(
    counts: tuple[int, ...],
    seconds: float,
    seed: int | None,
    kill: float,
    verifier: bool,
    faults: Path | None,
) -> "StressSettings":
    import random

    from user_proc.faults.fault_file import read_fault_file
    from user_proc.faults.fault_values import FaultFileError
    from user_proc.stress.stress_settings import StressSettings

    chosen = random.SystemRandom().getrandbits(_SEED_BITS) if seed is None else seed
    try:
        wanted = () if faults is None else read_fault_file(faults)
    except FaultFileError as error:
        raise typer.BadParameter(str(error), param_hint="--faults") from None
    return StressSettings(counts, seconds, chosen, kill, verifier, faults=wanted)


def _replay(settings: "StressSettings", file: Path) -> None:
    from user_proc.stress import stress_programs
    from user_proc.stress.step_table import UnknownStep

    try:
        steps = stress_programs.read_program(file)
    except (OSError, UnknownStep) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--replay") from None
    found = stress_programs.replay(settings, steps)
    if found is None:
        print(f"{len(steps)} steps: nothing was found")
        return
    print(f"FOUND {found['kind']} at step {found['step']}: {found['text']}")
    raise typer.Exit(FAILED)


def _run(settings: "StressSettings", show_progress: bool) -> str:
    """Run it and return the run document."""
    from user_proc.bench.progress_view import make_progress
    from user_proc.run_document import other_document
    from user_proc.run_provenance import begin_provenance, end_provenance, is_virtual
    from user_proc.stress.stress_programs import reduce_failure
    from user_proc.stress.stress_run import run_stress

    begun = begin_provenance()
    with make_progress(show_progress) as progress:
        result = run_stress(settings, progress)
        if result.failures and result.failures[0].steps:
            progress.advance(0, 1, "looking for the shortest program that finds it")
            result.reduced = reduce_failure(settings, result.failures[0])
    marks = ["virtual"] if is_virtual() else []
    provenance = end_provenance(begun, marks)
    return other_document("stress", provenance, settings.as_dict(), result.parts())


def _publish(text: str, json_file: str | None) -> None:
    """Write the document and print what a strict reader sees in it."""
    import sys

    from user_proc.run_document import load_strict, write_text
    from user_proc.stress.stress_view import stress_lines

    document: dict[str, Any] = load_strict(text)
    if json_file is not None:
        write_text(json_file, text)
    views = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    for line in stress_lines(document):
        print(line, file=views)
    if document["failures"] or document["leaks"]:
        raise typer.Exit(FAILED)
