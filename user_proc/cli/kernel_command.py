"""`softhca kernel start|stop|status|list`: kernels by name.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from user_proc.cli.outcome import FAILED, NOT_RUNNING, complain

if TYPE_CHECKING:
    from user_proc.transport.kernel_starter import KernelStatus

kernel_commands = typer.Typer(
    no_args_is_help=True, help="Start, stop and look at kernel processes."
)

Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Which kernel; each name is one of its own.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]

_DEFAULT = "default"


@kernel_commands.command()
def start(
    name: Name = _DEFAULT,
    verifier: Annotated[
        bool, typer.Option("--verifier", help="Check kernel code as Driver Verifier does.")
    ] = False,
    driver: Annotated[
        list[str] | None,
        typer.Option(
            "--driver",
            metavar="MODULE:ENTRY",
            help="Load a driver, a module of PYTHONPATH or a file (mailbox.py:driver_entry); "
            "may be given again.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a kernel in the background; it runs until it is stopped."""
    from user_proc.transport.kernel_starter import kernel_status, start_kernel

    kernel = start_kernel(
        name, owner_bound=False, settings={"verifier": verifier, "driver": driver}
    )
    status = kernel_status(name)
    _show(status, as_json, f"kernel {name!r} is running (pid {kernel.pid}), log {kernel.log}")


@kernel_commands.command()
def stop(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
    """Stop a kernel: every session is run down first."""
    from user_proc.transport.kernel_starter import kernel_status, stop_kernel

    in_order = stop_kernel(name)
    _show(kernel_status(name), as_json, f"kernel {name!r} has stopped")
    if not in_order:
        complain(f"the kernel {name!r} did not stop in time and was killed")
        raise typer.Exit(FAILED)


@kernel_commands.command()
def status(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
    """Say whether a kernel runs; exit code 0 if it does, 3 if not."""
    from user_proc.transport.kernel_starter import kernel_status

    found = kernel_status(name)
    _show(found, as_json, _words(found))
    if not found.running:
        raise typer.Exit(NOT_RUNNING)


@kernel_commands.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List this user's kernels: those that run, and those that were killed and left traces."""
    from user_proc.transport.kernel_starter import list_kernels

    found = list_kernels()
    if as_json:
        typer.echo(json.dumps([_values(kernel) for kernel in found]))
    elif not found:
        typer.echo("no kernels")
    for kernel in () if as_json else found:
        typer.echo(_words(kernel))


def _values(kernel: "KernelStatus") -> dict[str, Any]:
    return {
        "name": kernel.name,
        "state": kernel.state,
        "pid": kernel.pid,
        "folder": str(kernel.folder),
    }


def _words(kernel: "KernelStatus") -> str:
    if kernel.running:
        return f"kernel {kernel.name!r} is running (pid {kernel.pid})"
    if kernel.state == "dead":
        return (
            f"kernel {kernel.name!r} was killed (pid {kernel.pid} is gone); "
            "the next start of that name cleans up"
        )
    return f"no kernel named {kernel.name!r} is running"


def _show(kernel: "KernelStatus", as_json: bool, words: str) -> None:
    typer.echo(json.dumps(_values(kernel)) if as_json else words)
