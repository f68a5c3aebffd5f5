"""`softhca bench`: the IRP benchmark, from its options to its table.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from user_proc.cli.bench_speed_command import bench_speed
from user_proc.cli.bench_verbs_command import bench_verbs
from user_proc.cli.help_pages import Command, Group
from user_proc.cli.outcome import ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations, publish
from user_proc.cli.run_options import CsvFile, JsonFile, NoProgress, Tiny

if TYPE_CHECKING:
    from user_proc.bench.bench_settings import BenchSettings
    from user_proc.run_document import RunDocument

_LEAST_RATE = 1.0
_MOST_RATE = 1_000_000.0

bench_commands = typer.Typer(cls=Group, invoke_without_command=True)
bench_commands.command("verbs", cls=Command)(bench_verbs)
bench_commands.command("speed", cls=Command)(bench_speed)


@bench_commands.callback(cls=Group)
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="A shorter run, under 25 seconds, fewer samples.")
    ] = False,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    pin: Annotated[
        str | None,
        typer.Option(
            "--pin", metavar="CPU,CPU", help="Keep the kernel on one core, the user on another."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="R",
            help="Open loop: start R requests a second, and time each from its intended start.",
        ),
    ] = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="Also show where the time of sampled requests goes.")
    ] = False,
    no_progress: NoProgress = False,
    tiny: Tiny = False,
) -> None:
    """Measure what an I/O request costs, from a user process and inside the kernel.

    Starts kernels and user processes of its own, times IRPs, fast I/O, blocking and direct calls
    by every transfer method, each beside a floor of this machine, prints a table and says in
    words what follows from it. Nothing is left running. The numbers are of this emulator on this
    machine. The whole run takes up to five minutes.

    `softhca bench verbs` measures the control verbs of the HCA, `softhca bench speed` how fast its
    queue pairs move data.
    """
    if context.invoked_subcommand is not None:
        if any((quick, json_file, csv_file, pin, rate, stages, no_progress, tiny)):
            raise typer.BadParameter(f"options stand behind '{context.invoked_subcommand}'")
        return
    settings = _settings(quick, tiny, pin)
    if rate is not None:
        settings = settings.scheduled(_possible_rate(rate))
    if stages:
        settings = settings.with_stages()
    check_destinations(json_file, csv_file)
    with ending_signals():
        document = _measure(settings, not no_progress)
    _publish(document, json_file, csv_file)


def _settings(quick: bool, tiny: bool, pin: str | None) -> "BenchSettings":
    from user_proc.bench.bench_settings import full_run, quick_run, tiny_run

    settings = tiny_run() if tiny else quick_run() if quick else full_run()
    return settings if pin is None else settings.pinned(*_cores(pin))


def _possible_rate(rate: float) -> float:
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise typer.BadParameter(
            f"give between {_LEAST_RATE:,.0f} and {_MOST_RATE:,.0f} starts a second",
            param_hint="--rate",
        )
    return rate


def _cores(text: str) -> tuple[int, int]:
    """Return the two cores of `--pin`; a usage error says which ones there are."""
    allowed = sorted(os.sched_getaffinity(0))
    try:
        kernel, user = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"give two core numbers, as in --pin {allowed[0]},{allowed[-1]}", param_hint="--pin"
        ) from None
    for core in (kernel, user):
        if core not in allowed:
            raise typer.BadParameter(
                f"core {core} cannot be used here; these can: {allowed}", param_hint="--pin"
            )
    if kernel == user:
        typer.echo("softhca: kernel and user share a core: times include the wait for it", err=True)
    return kernel, user


def _measure(settings: "BenchSettings", show_progress: bool) -> "RunDocument":
    from user_proc.bench.bench_run import BenchRun
    from user_proc.bench.kernel_life import measure_kernel_life
    from user_proc.bench.own_kernel import open_round
    from user_proc.bench.progress_view import make_progress

    with make_progress(show_progress) as progress:
        document = BenchRun(settings, open_round, progress).run()
        return replace(document, kernel=measure_kernel_life(settings))


def _publish(document: "RunDocument", json_file: str | None, csv_file: str | None) -> None:
    """Write the document and its views; where a file is standard output the table is not."""
    from user_proc.bench.csv_view import rows_as_csv
    from user_proc.bench.table_view import print_table

    views = publish(document, json_file, csv_file, rows_as_csv)
    print_table(views, to_stderr=STANDARD_OUTPUT in (json_file, csv_file))
