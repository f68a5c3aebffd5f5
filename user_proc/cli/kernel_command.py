"""`softhca kernel start|stop|reset-hca|status|list`: kernels by name.

With `--json` whatever goes wrong is told on standard output too, as an object with "error".

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from user_proc.cli.help_pages import Command, Group
from user_proc.cli.outcome import FAILED, NOT_RUNNING, complain
from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from user_proc.transport.kernel_control import KernelStatus

kernel_commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="Start, stop and look at kernel processes."
)

Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Which kernel; each name is one of its own.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


class HcaNotReset(SofthcaError):
    """No HCA came up again."""


_DEFAULT = "default"
_NS_PER_S = 1_000_000_000


@kernel_commands.command(cls=Command)
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
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Append the log to this file, and keep it, instead of one in the runtime folder.",
        ),
    ] = None,
    no_hca: Annotated[bool, typer.Option("--no-hca", help="Run no HCA.")] = False,
    latency_model: Annotated[
        str | None,
        typer.Option(
            "--latency-model",
            metavar="MODEL",
            help="Time of HCA commands: none, plausible, prm-ceiling, or a TOML file.",
        ),
    ] = None,
    latency_factor: Annotated[
        float | None,
        typer.Option(
            "--latency-factor", metavar="X", help="Multiply the times of the latency model."
        ),
    ] = None,
    hca_profile: Annotated[
        str | None,
        typer.Option(
            "--hca-profile",
            metavar="FILE",
            help="A TOML file with the sizes of the HCA's tables and queues.",
        ),
    ] = None,
    command_mode: Annotated[
        str | None,
        typer.Option(
            "--command-mode",
            metavar="MODE",
            help="How the driver learns that a command is done: event or polling.",
        ),
    ] = None,
    fragmentation: Annotated[
        int | None,
        typer.Option(
            "--fragmentation",
            metavar="N",
            help="Longest run of page frames; 0: frames are not fragmented.",
        ),
    ] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            "--allocation",
            metavar="WAY",
            help="How the driver gets memory: direct, common-buffer, smaller, pages or pool.",
        ),
    ] = None,
    max_qp_rd_atom: Annotated[
        int | None,
        typer.Option(
            "--max-qp-rd-atom",
            metavar="N",
            help="RDMA reads and atomics a QP may have outstanding.",
        ),
    ] = None,
    spin_us: Annotated[
        int | None,
        typer.Option(
            "--spin-us",
            metavar="US",
            help="Time an idle processor looks for requests before it sleeps.",
        ),
    ] = None,
    hca_spin_us: Annotated[
        int | None,
        typer.Option(
            "--hca-spin-us",
            metavar="US",
            help="Time an idle HCA looks for work before it sleeps.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a kernel in the background; it runs until it is stopped."""
    from user_proc.transport.kernel_control import kernel_status
    from user_proc.transport.kernel_starter import start_kernel

    with errors_as_json(as_json):
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
def stop(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
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
        typer.echo(json.dumps({**_values(status), "error": sentence}))
    complain(sentence)
    raise typer.Exit(FAILED)


@kernel_commands.command("reset-hca", cls=Command)
def reset_hca(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
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
def status(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
    """Say whether a kernel runs, and how it is; exit code 0 if it does, 3 if not."""
    from user_proc.transport.kernel_control import kernel_status

    with errors_as_json(as_json):
        found = kernel_status(name, ask=True)
    _show(found, as_json, "\n".join((_words(found), *_details(found))))
    if not found.running:
        raise typer.Exit(NOT_RUNNING)


@kernel_commands.command("list", cls=Command)
def list_all(as_json: AsJson = False) -> None:
    """List this user's kernels: those that run, and those that left traces or a log."""
    from user_proc.transport.kernel_control import list_kernels

    with errors_as_json(as_json):
        found = list_kernels()
    if as_json:
        typer.echo(json.dumps([_values(kernel) for kernel in found]))
    elif not found:
        typer.echo("no kernels")
    for kernel in () if as_json else found:
        typer.echo(_words(kernel))


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """Tell an error as JSON, too, if that is wanted."""
    try:
        yield
    except (SofthcaError, OSError) as error:
        if wanted:
            typer.echo(json.dumps({"error": str(error)}))
        raise


def _values(kernel: "KernelStatus") -> dict[str, Any]:
    return {
        "name": kernel.name,
        "state": kernel.state,
        "pid": kernel.pid,
        "folder": str(kernel.folder),
        "endpoint": kernel.endpoint,
        "log": None if kernel.log is None else str(kernel.log),
        "version": kernel.version,
        "verifier": kernel.verifier,
        "uptime_s": None if kernel.uptime_ns is None else kernel.uptime_ns / _NS_PER_S,
        "hca": kernel.hca,
        "drivers": kernel.drivers,
        "sessions": kernel.sessions,
        "cleared": kernel.cleared,
        **({} if kernel.problem is None else {"problem": kernel.problem}),
    }


def _words(kernel: "KernelStatus") -> str:
    match kernel.state:
        case "running":
            return f"kernel {kernel.name!r} is running (pid {kernel.pid})"
        case "starting":
            return f"kernel {kernel.name!r} is just starting or stopping"
        case "dead":
            gone = "" if kernel.pid is None else f" (pid {kernel.pid} is gone)"
            return f"kernel {kernel.name!r} was killed{gone}; the next start of that name cleans up"
        case "unusable":
            return f"kernel {kernel.name!r} cannot be looked at: {kernel.problem}"
        case "ended":
            return (
                f"kernel {kernel.name!r} has ended and left its log {kernel.log}; "
                f"'rm -r {kernel.folder}' removes it"
            )
        case _:
            return f"no kernel named {kernel.name!r} is running in {kernel.folder.parent}"


def _details(kernel: "KernelStatus") -> list[str]:
    if not kernel.running:
        return []
    seconds = (kernel.uptime_ns or 0) // _NS_PER_S
    rows = {
        "version": kernel.version or "unknown",
        "uptime": f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        "verifier": "on" if kernel.verifier else "off",
        "hca": _hca(kernel),
        "drivers": _drivers(kernel),
        "sessions": _sessions(kernel),
        "endpoint": kernel.endpoint,
        "log": kernel.log or "standard error",
        **({"cleared": kernel.cleared} if kernel.cleared else {}),
    }
    return [f"  {title:<9} {value}" for title, value in rows.items()]


def _hca(kernel: "KernelStatus") -> str:
    if kernel.hca is None:
        return "none"
    model, factor = kernel.hca["latency_model"], kernel.hca["latency_factor"]
    times = "" if factor == 1 or model == "prm-ceiling" else f" times {factor:g}"  # has no factor
    return f"latency model {model}{times}, profile {kernel.hca['hca_profile'] or 'built-in'}"


def _drivers(kernel: "KernelStatus") -> str:
    if kernel.drivers is None:
        return "unknown: the kernel does not answer"
    return (
        ", ".join(f"{one['name']} ({one['specification']})" for one in kernel.drivers) or "built-in"
    )


def _sessions(kernel: "KernelStatus") -> str:
    if kernel.sessions is None:
        return "unknown: the kernel does not answer"
    each = ", ".join(f"{one['process']} (pid {one['pid']})" for one in kernel.sessions)
    return f"{len(kernel.sessions)}{': ' if each else ''}{each}"


def _show(kernel: "KernelStatus", as_json: bool, words: str) -> None:
    typer.echo(json.dumps(_values(kernel)) if as_json else words)
