"""`softhca bench speed`: the benchmark of the data path, from its options to its table.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from user_proc.cli.outcome import ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations, publish
from user_proc.cli.run_options import CsvFile, JsonFile, NoProgress, Tiny

if TYPE_CHECKING:
    from user_proc.bench.speed.speed_settings import SpeedSettings
    from user_proc.run_document import RunDocument


def bench_speed(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A shorter run, under 45 seconds: fewer rows and messages."),
    ] = False,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    no_progress: NoProgress = False,
    tiny: Tiny = False,
) -> None:
    """Measure how fast messages move between queue pairs.

    Starts a kernel and user processes of its own, and times sends, RDMA writes and reads and
    atomics of 2 bytes to 8 MiB, one at a time and many at a time, over RC and UD, polling and
    sleeping, while the kernel is idle and while other processes keep it busy with control verbs.
    Each is shown beside a floor of this machine: a relay of bare words through a third process, a
    copy between the same regions, an echo. Prints tables, and says in words what follows. Nothing
    is left running. The numbers are of this emulator on this machine. The whole run takes some
    minutes.
    """
    settings = _settings(quick, tiny)
    check_destinations(json_file, csv_file)
    with ending_signals():
        document = _measure(settings, not no_progress)
    _publish(document, json_file, csv_file)


def _settings(quick: bool, tiny: bool) -> "SpeedSettings":
    from user_proc.bench.speed.speed_settings import full_run, quick_run, tiny_run

    return tiny_run() if tiny else quick_run() if quick else full_run()


def _measure(settings: "SpeedSettings", show_progress: bool) -> "RunDocument":
    from user_proc.bench.progress_view import make_progress
    from user_proc.bench.speed.speed_run import SpeedRun

    with make_progress(show_progress) as progress:
        return SpeedRun(settings, progress).run()


def _publish(document: "RunDocument", json_file: str | None, csv_file: str | None) -> None:
    from user_proc.bench.csv_view import rows_as_csv
    from user_proc.bench.speed.speed_table import CSV_COLUMNS, print_speed

    views = publish(document, json_file, csv_file, lambda views: rows_as_csv(views, CSV_COLUMNS))
    print_speed(views, to_stderr=STANDARD_OUTPUT in (json_file, csv_file))
