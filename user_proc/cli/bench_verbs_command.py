"""`softhca bench verbs`: the benchmark of the control verbs, from its options to its table.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from user_proc.cli.outcome import ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations, publish
from user_proc.cli.run_options import CsvFile, JsonFile, NoProgress, Tiny

if TYPE_CHECKING:
    from user_proc.bench.verbs.verb_settings import VerbsSettings
    from user_proc.run_document import RunDocument


def bench_verbs(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A shorter run, under 45 seconds: regions to 64 MiB, fewer samples."
        ),
    ] = False,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL,...",
            help="Latency models: none, plausible, prm-ceiling, or TOML files. Registrations and "
            "the mix are measured under the first, but not under prm-ceiling.",
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            "--processes", metavar="N,...", help="Processes doing the control mix at a time."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="KERNEL",
            help="Measure the running kernel of that name, under the settings it has.",
        ),
    ] = None,
    no_progress: NoProgress = False,
    tiny: Tiny = False,
) -> None:
    """Measure what every control verb costs a user and a kernel client.

    Starts kernels and user processes of its own, one kernel for each latency model, and times each
    verb by IOCTL and by direct call, registrations of arena, private and kernel memory with
    contiguous and scattered page frames, and the control mix (PD, MR, CQ, RC QP to RTS, query, all
    destroyed) from one to many processes, each beside a floor of this machine. Prints tables with
    the commands each verb sent to the HCA, and says in words what follows. Nothing is left
    running. The numbers are of this emulator on this machine. The whole run takes some minutes.
    """
    settings = _settings(quick, tiny)
    if model is not None:
        if name is not None:
            raise typer.BadParameter(
                "a running kernel has its latency model already", param_hint="--model"
            )
        settings = replace(settings, models=_models(model))
    if processes is not None:
        settings = replace(settings, processes=_counts(processes))
    if name is not None:
        settings = settings.at_kernel(name, _model_of(name))
    check_destinations(json_file, csv_file)
    with ending_signals():
        document = _measure(settings, not no_progress)
    _publish(document, json_file, csv_file)


def _settings(quick: bool, tiny: bool) -> "VerbsSettings":
    from user_proc.bench.verbs.verb_settings import full_run, quick_run, tiny_run

    return tiny_run() if tiny else quick_run() if quick else full_run()


def _model_of(name: str) -> str:
    """Return the latency model of a running kernel; raises without one, or without an HCA."""
    from user_proc.errors import KernelNotRunning, SofthcaError
    from user_proc.transport.kernel_control import kernel_status

    status = kernel_status(name)
    if not status.running:
        raise KernelNotRunning(name, status.folder.parent)
    if status.hca is None:
        raise SofthcaError(f"the kernel {name!r} runs without an HCA")
    return str(status.hca["latency_model"])


def _models(text: str) -> tuple[str, ...]:
    """Return the models; a usage error names one that is neither known nor a file."""
    import os

    from user_proc.bench.verbs.verb_settings import MODELS

    names = tuple(dict.fromkeys(text.split(",")))
    for one in names:
        if one not in MODELS and not os.path.isfile(one):
            raise typer.BadParameter(
                f"{one!r} is neither {', '.join(MODELS)} nor a file", param_hint="--model"
            )
    return tuple(one if one in MODELS else os.path.abspath(one) for one in names)


def _counts(text: str) -> tuple[int, ...]:
    from user_proc.bench.verbs.verb_settings import MOST_PROCESSES

    try:
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(
            "give numbers, as in --processes 1,8,64", param_hint="--processes"
        ) from None
    if not all(1 <= count <= MOST_PROCESSES for count in counts):
        raise typer.BadParameter(
            f"give between 1 and {MOST_PROCESSES} processes", param_hint="--processes"
        )
    return counts


def _measure(settings: "VerbsSettings", show_progress: bool) -> "RunDocument":
    from user_proc.bench.progress_view import make_progress
    from user_proc.bench.verbs.verb_run import VerbsRun
    from user_proc.run_provenance import available_memory

    with make_progress(show_progress) as progress:
        return VerbsRun(settings, progress, available_memory()).run()


def _publish(document: "RunDocument", json_file: str | None, csv_file: str | None) -> None:
    from user_proc.bench.csv_view import rows_as_csv
    from user_proc.bench.verbs.verb_table import CSV_COLUMNS, print_verbs

    views = publish(document, json_file, csv_file, lambda views: rows_as_csv(views, CSV_COLUMNS))
    print_verbs(views, to_stderr=STANDARD_OUTPUT in (json_file, csv_file))
