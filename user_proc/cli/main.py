"""The command `softhca`: what it can do, and how its errors and exit codes look.

Exit codes: 0 done; 1 it could not be done, standard error says why in one sentence; 2 wrong
usage; 3 no such kernel is running; 130 interrupted by Ctrl-C, 143 by SIGTERM.

Rules: rooms are imported by the command that needs them, so that a quick question stays quick.
"""

import sys
from typing import Annotated

import typer

from user_proc.cli.bench_command import bench_commands
from user_proc.cli.compare_command import compare
from user_proc.cli.devinfo_command import devinfo
from user_proc.cli.doctor_command import doctor
from user_proc.cli.experiment_command import experiment_commands
from user_proc.cli.fault_command import fault_commands
from user_proc.cli.help_pages import Command, Group
from user_proc.cli.kernel_command import kernel_commands
from user_proc.cli.launch_command import launch
from user_proc.cli.outcome import report_errors
from user_proc.cli.plot_command import plot
from user_proc.cli.port_command import set_port
from user_proc.cli.show_command import show
from user_proc.cli.stress_command import stress
from user_proc.cli.top_command import top

app = typer.Typer(
    name="softhca",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "An InfiniBand host adapter, its driver and an NT-style I/O manager in software.\n\n"
        "One kernel process emulates the machine; any number of user processes talk to it. "
        "Every number a command prints is of this emulator, never of hardware."
    ),
    epilog=(
        "Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, "
        "3 no such kernel runs, 124 a launch passed its time limit, 130 interrupted."
    ),
)
app.add_typer(bench_commands, name="bench")
app.command("plot", cls=Command)(plot)
app.command("compare", cls=Command)(compare)
app.command("devinfo", cls=Command)(devinfo)
app.command("show", cls=Command)(show)
app.command("launch", cls=Command)(launch)
app.command("stress", cls=Command)(stress)
app.command("top", cls=Command)(top)
app.command("doctor", cls=Command)(doctor)
kernel_commands.command("set-port", cls=Command)(set_port)
app.add_typer(kernel_commands, name="kernel")
app.add_typer(experiment_commands, name="experiment")
app.add_typer(fault_commands, name="fault")


def _print_version(wanted: bool) -> None:
    if wanted:
        from shared.version import softhca_version

        typer.echo(f"softhca {softhca_version()}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; never returns."""
    sys.exit(report_errors(lambda: app(prog_name="softhca", standalone_mode=False)))


if __name__ == "__main__":
    main()
