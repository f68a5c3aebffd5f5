"""`softhca launch`: groups of user processes, from a file to an exit code.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from user_proc.cli.outcome import WRONG_USAGE, complain, ending_signals
from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations
from user_proc.cli.run_options import JsonFile, NoProgress

if TYPE_CHECKING:
    from user_proc.groups.group_plan import LaunchPlan
    from user_proc.groups.launch import Outcome

_MIB = 1 << 20
_WHOLE = 1e6  # figures from here on are told without decimals


def launch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What is launched, in TOML.")],
    json_file: JsonFile = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="FOLDER", help="Make the folder of logs there instead of in /tmp."
        ),
    ] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Keep the logs after a success, too.")
    ] = False,
    no_progress: NoProgress = False,
) -> None:
    """Start a kernel and groups of user processes, and see to it that all of them end.

    The file says how many there are of each, what they run, in which order, on which processors,
    for how long, and which ends are good ones. Whatever ends the launch ends all of them; nothing
    is left running. Exit codes: 0 success, 1 a rank failed, 2 wrong file, 124 time limit.
    """
    from user_proc.groups.group_plan import PlanError
    from user_proc.groups.plan_file import read_plan

    check_destinations(json_file, None)
    if logs is not None and not logs.is_dir():
        raise typer.BadParameter(f"{logs} is no folder", param_hint="--logs")
    try:
        plan = read_plan(file)
    except PlanError as error:
        complain(str(error))
        raise typer.Exit(WRONG_USAGE) from None
    with ending_signals():
        outcome, text = _run(file, plan, logs, keep_logs, not no_progress)
    _publish(outcome, text, json_file)
    raise typer.Exit(outcome.exit_code)


def _run(
    file: Path, plan: "LaunchPlan", logs: Path | None, keep_logs: bool, show: bool
) -> "tuple[Outcome, str]":
    """Launch it; return what became of it, and the run document."""
    from user_proc.groups.launch import launch as launch_plan
    from user_proc.groups.launch_view import launch_view
    from user_proc.run_document import other_document
    from user_proc.run_provenance import begin_provenance, end_provenance, is_virtual

    begun = begin_provenance()
    with launch_view(show) as view:
        outcome = launch_plan(plan, view=view, logs=logs, keep_logs=keep_logs)
    settings = {
        "tool": "softhca launch",
        "file": str(file),
        "kernel": dict(plan.kernel.settings),
        "faults": [
            {**one.fault._asdict(), "after": [str(point) for point in one.after]}
            for one in plan.faults
        ],
        "time_limit": plan.time_limit,
        "grace": plan.grace,
        "sample_interval": plan.sample_interval,
        "keep_going": plan.keep_going,
    }
    provenance = end_provenance(begun, ["virtual"] if is_virtual() else [])
    return outcome, other_document("launch", provenance, settings, outcome.parts(plan))


def _publish(outcome: "Outcome", text: str, json_file: str | None) -> None:
    """Write the document, and print the ranks and how it ended."""
    import sys

    from user_proc.cli.columns import Column, lines_of
    from user_proc.run_document import load_strict, write_text

    document: dict[str, Any] = load_strict(text)
    if json_file is not None:
        write_text(json_file, text)
    columns = [
        Column("who", "rank"),
        Column("state", "state"),
        Column("end", "end"),
        Column("starts", "starts"),
        Column("seconds", "seconds"),
        Column("cpu_user_s", "user s"),
        Column("cpu_system_s", "system s"),
        Column("max_rss_bytes", "MiB", lambda value: f"{value / _MIB:.1f}"),
        Column("voluntary_switches", "waits"),
        Column("involuntary_switches", "preempted"),
        Column("figures", "reported", _figures, may_go=True),
    ]
    rows = [
        {**rank, "who": f"{rank['group']}[{rank['rank']}]", "end": _end(rank)}
        for rank in document["ranks"]
    ]
    views = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    for line in lines_of(columns, rows):
        print(line, file=views)
    ended = document["outcome"]
    reason = f": {ended['reason']}" if ended["reason"] else ""
    print(f"{ended['result']} after {ended['seconds']} s{reason}", file=views)
    if ended["logs"] is not None:
        print(f"logs: {ended['logs']}", file=views)


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in figures.items())


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:,.6g}"


def _end(rank: dict[str, Any]) -> str:
    if rank["killed_by"] is not None:
        return str(rank["killed_by"])
    return "" if rank["exit_code"] is None else f"exit {rank['exit_code']}"
