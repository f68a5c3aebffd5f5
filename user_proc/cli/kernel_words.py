"""The status of a kernel in words and as JSON values.

Rules: imported with the command line, so it imports nothing of weight.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from user_proc.transport.kernel_control import KernelStatus

_NS_PER_S: Final = 1_000_000_000


def status_values(kernel: "KernelStatus") -> dict[str, Any]:
    """Return a status as JSON values."""
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


def status_words(kernel: "KernelStatus") -> str:
    """Return a status as one line."""
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


def status_details(kernel: "KernelStatus") -> list[str]:
    """Return what a running kernel told of itself, a line each; nothing of any other."""
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
