"""`softhca kernel start|stop|reset-hca|status|list`: kernels by name.

With `--json` whatever goes wrong is told on standard output too, as an object with "error".

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli import kernel_options as options
from user_proc.cli.help_pages import Command, Group
from user_proc.cli.kernel_words import status_details, status_values, status_words
from user_proc.cli.outcome import FAILED, NOT_RUNNING, complain, ending_signals
from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from user_proc.transport.kernel_control import KernelStatus

kernel_commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="Start, stop and look at kernel processes."
)

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The kernel's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


class HcaNotReset(SofthcaError):
    """No HCA came up again."""


@kernel_commands.command(cls=Command)
def start(
    name: Name = DEFAULT_INSTANCE,
    verifier: options.Verifier = False,
    driver: options.Drivers = None,
    log: options.LogFile = None,
    no_hca: options.NoHca = False,
    latency_model: options.LatencyModel = None,
    latency_factor: options.LatencyFactor = None,
    hca_profile: options.HcaProfile = None,
    command_mode: options.CommandMode = None,
    fragmentation: options.Fragmentation = None,
    allocation: options.Allocation = None,
    max_qp_rd_atom: options.MaxQpRdAtom = None,
    spin_us: options.SpinUs = None,
    hca_spin_us: options.HcaSpinUs = None,
    as_json: AsJson = False,
) -> None:
    """Start a kernel in the background; it runs until it is stopped."""
    from user_proc.transport.kernel_control import kernel_status
    from user_proc.transport.kernel_starter import start_kernel

    with ending_signals(), errors_as_json(as_json):
        kernel = start_kernel(
            name,
            owner_bound=False,
            settings={
                "verifier": verifier,
                "driver": driver,
                "log": log,
                "hca": False if no_hca else None,
                "latency_model": latency_model,
                "latency_factor": latency_factor,
                "hca_profile": hca_profile,
                "command_mode": command_mode,
                "fragmentation": fragmentation,
                "allocation": allocation,
                "max_qp_rd_atom": max_qp_rd_atom,
                "spin_us": spin_us,
                "hca_spin_us": hca_spin_us,
            },
        )
        status = kernel_status(name)
    words = [f"kernel {name!r} is running (pid {kernel.pid}), log {kernel.log}"]
    if status.cleared:
        words.append(f"  cleared   {status.cleared}")
    _show(status, as_json, "\n".join(words))


@kernel_commands.command(cls=Command)
def stop(name: Name = DEFAULT_INSTANCE, as_json: AsJson = False) -> None:
    """Stop a kernel: every session is run down first."""
    from user_proc.transport.kernel_control import kernel_status, stop_kernel

    with errors_as_json(as_json):
        in_order = stop_kernel(name)
        status = kernel_status(name)
    if in_order:
        log = f"; its log is {status.log}" if status.log else ""
        _show(status, as_json, f"kernel {name!r} has stopped{log}")
        return
    sentence = f"the kernel {name!r} did not stop in time and was killed"
    if as_json:
        typer.echo(json.dumps({**status_values(status), "error": sentence}))
    complain(sentence)
    raise typer.Exit(FAILED)


@kernel_commands.command("reset-hca", cls=Command)
def reset_hca(name: Name = DEFAULT_INSTANCE, as_json: AsJson = False) -> None:
    """Reset the HCA of a kernel, dead or alive: another process takes its place.

    Whatever is open on it is dead from then on, and must be closed and opened again.
    """
    from user_proc.transport.kernel_control import kernel_state

    with errors_as_json(as_json):
        came_up = _reset_hca(name)
        driver = kernel_state(name)["hca"]["driver"]
        if not came_up:
            raise HcaNotReset(f"the HCA of kernel {name!r} is dead: {driver['failure']}")
    pid = driver["link"]["process"]
    if as_json:
        typer.echo(json.dumps({"name": name, "pid": pid, "resets": driver["resets"]}))
        return
    typer.echo(f"the HCA of kernel {name!r} has been reset (pid {pid})")


def _reset_hca(name: str) -> bool:
    """Have the kernel reset its HCA; False if none came up."""
    from shared.verb_codes import IOCTL_RESET_HCA, VERB_RESULT
    from user_proc.cli.hca_control import hca_control

    output = bytearray(VERB_RESULT.size)
    with hca_control(name) as device:
        device.device_io_control(IOCTL_RESET_HCA, None, output)
    return bool(VERB_RESULT.unpack(output)[0] == 0)


@kernel_commands.command(cls=Command)
def status(name: Name = DEFAULT_INSTANCE, as_json: AsJson = False) -> None:
    """Say whether a kernel runs, and how it is; exit code 0 if it does, 3 if not."""
    from user_proc.transport.kernel_control import kernel_status

    with errors_as_json(as_json):
        found = kernel_status(name, ask=True)
    _show(found, as_json, "\n".join((status_words(found), *status_details(found))))
    if not found.running:
        raise typer.Exit(NOT_RUNNING)


@kernel_commands.command("list", cls=Command)
def list_all(as_json: AsJson = False) -> None:
    """List this user's kernels: those that run, and those that left traces or a log."""
    from user_proc.transport.kernel_control import list_kernels

    with errors_as_json(as_json):
        found = list_kernels()
    if as_json:
        typer.echo(json.dumps([status_values(kernel) for kernel in found]))
    elif not found:
        typer.echo("no kernels")
    for kernel in () if as_json else found:
        typer.echo(status_words(kernel))


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """Tell an error as JSON, too, if that is wanted."""
    try:
        yield
    except (SofthcaError, OSError) as error:
        if wanted:
            typer.echo(json.dumps({"error": str(error)}))
        raise


def _show(kernel: "KernelStatus", as_json: bool, words: str) -> None:
    typer.echo(json.dumps(status_values(kernel)) if as_json else words)
