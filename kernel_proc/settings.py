"""What a kernel process can be told when it starts.

Every setting is an option of the command line under its own name; one that does not exist,
or a value out of range, is refused with a sentence.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn

from shared.runtime_folder import DEFAULT_INSTANCE, InstanceNameError, check_name

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


COMMAND_MODES: Final = ("event", "polling")
ALLOCATIONS: Final = ("direct", "common-buffer", "smaller", "pages", "pool")
LATENCY_MODELS: Final = ("none", "plausible", "prm-ceiling")


class SettingsError(ValueError):
    """A setting is unknown or its value cannot be used; one sentence that names the option."""


def option_of(setting: str) -> str:
    """Return the option of the command line that a setting is given by."""
    return "--" + setting.replace("_", "-")


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """The settings of one kernel, with the defaults a workstation can carry."""

    name: str = DEFAULT_INSTANCE
    verifier: bool = False
    guarded_mutexes_at_apc_level: bool = False
    threaded_dpcs: bool = True
    seed: int | None = None
    log: str | None = None
    driver: tuple[str, ...] = ()

    hca: bool = True
    latency_model: str = "none"
    latency_factor: float = 1.0
    hca_profile: str | None = None
    command_mode: str = "event"
    fragmentation: int = 0
    allocation: str = "direct"
    max_qp_rd_atom: int = 4
    spin_us: int = 60
    hca_spin_us: int = 200

    arena_bytes_per_process: int = 256 * MIB
    arena_bytes_total: int = 1 * GIB
    pool_bytes_per_process: int = 16 * MIB
    locked_bytes_per_process: int = 2 * GIB
    kernel_memory_bytes: int = 512 * MIB
    hca_percent_per_process: int = 50
    hca_objects_per_process: int = 131_072

    max_sessions: int = 256
    max_threads_per_session: int = 64
    max_requests_per_session: int = 256
    max_handles_per_session: int = 16_384
    max_silent_connections: int = 32

    hello_timeout_ms: int = 2_000
    stop_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except InstanceNameError as error:
            raise SettingsError(str(error)) from error
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise SettingsError(
                    f"{option_of(name)} must lie between {least} and {most}, not {value}"
                )
        if self.command_mode not in COMMAND_MODES:
            modes = " or ".join(COMMAND_MODES)
            raise SettingsError(f"--command-mode must be {modes}, not {self.command_mode!r}")
        if self.latency_model not in LATENCY_MODELS and not _is_file_name(self.latency_model):
            raise SettingsError(
                f"--latency-model must be {', '.join(LATENCY_MODELS)} or the path of a TOML file, "
                f"not {self.latency_model!r}"
            )
        if self.allocation not in ALLOCATIONS:
            ways = f"{', '.join(ALLOCATIONS[:-1])} or {ALLOCATIONS[-1]}"
            raise SettingsError(f"--allocation must be {ways}, not {self.allocation!r}")
        if self.max_qp_rd_atom & (self.max_qp_rd_atom - 1):
            raise SettingsError(f"--max-qp-rd-atom is a power of two, not {self.max_qp_rd_atom}")


def _is_file_name(text: str) -> bool:
    return "/" in text or text.endswith(".toml")


_RANGES: Final[dict[str, tuple[float, float]]] = {
    "latency_factor": (0.0, 1000.0),
    "fragmentation": (0, 1 << 28),
    "max_qp_rd_atom": (1, 128),
    "spin_us": (0, 1_000_000),
    "hca_spin_us": (0, 1_000_000),
    "kernel_memory_bytes": (64 * MIB, 1 << 40),
    "hca_percent_per_process": (1, 100),
    "hca_objects_per_process": (1, 1 << 30),
    "arena_bytes_per_process": (0, 1 << 40),
    "arena_bytes_total": (0, 1 << 42),
    "pool_bytes_per_process": (64 * KIB, 1 << 40),
    "locked_bytes_per_process": (64 * KIB, 1 << 40),
    "max_sessions": (1, 10_000),
    "max_threads_per_session": (1, 10_000),
    "max_requests_per_session": (1, 100_000),
    "max_handles_per_session": (1, 1_000_000),
    "max_silent_connections": (1, 1_000),
    "hello_timeout_ms": (10, 600_000),
    "stop_timeout_ms": (10, 600_000),
}

_HELP: Final[dict[str, str]] = {
    "name": "instance name; one kernel may run under each",
    "verifier": "check kernel code as Driver Verifier does",
    "guarded_mutexes_at_apc_level": "guarded mutexes as since Windows 8, not as in Server 2003",
    "threaded_dpcs": "run threaded DPCs in their thread, not at DISPATCH_LEVEL",
    "seed": "decides latency draws, and in verifier mode the switching between equal threads",
    "log": "file to append the log to (default: standard error)",
    "driver": "a driver to load, MODULE:ENTRY or FILE.py:ENTRY; may be given again",
    "hca": "run an HCA, in a process of its own",
    "latency_model": "time of HCA commands: none, plausible, prm-ceiling, or a TOML file",
    "latency_factor": "multiply the times of the latency model",
    "hca_profile": "a TOML file with the sizes of the HCA's tables and queues",
    "command_mode": "how the driver learns that a command is done: event or polling",
    "fragmentation": "longest run of page frames; 0: frames are not fragmented",
    "allocation": "how the driver gets memory: direct, common-buffer, smaller, pages or pool",
    "max_qp_rd_atom": "RDMA reads and atomics a QP may have outstanding",
    "spin_us": "time an idle processor looks for requests before it sleeps",
    "hca_spin_us": "time an idle HCA looks for work before it sleeps",
    "arena_bytes_per_process": "arena memory one process may hold",
    "arena_bytes_total": "arena memory all processes may hold",
    "pool_bytes_per_process": "pool charged to one process",
    "locked_bytes_per_process": "memory of one process that can be locked at a time",
    "kernel_memory_bytes": "kernel memory the HCA may reach, at most",
    "hca_percent_per_process": "what one process may have of each table of the HCA, in percent",
    "hca_objects_per_process": "verbs objects one process may have, of all kinds together",
    "max_sessions": "processes served at a time",
    "max_threads_per_session": "calling threads of one process",
    "max_requests_per_session": "requests in the kernel and completions not read, a process",
    "max_handles_per_session": "handles one process may hold",
    "max_silent_connections": "connections that have not introduced themselves",
    "hello_timeout_ms": "time a connection has to introduce itself",
    "stop_timeout_ms": "time an orderly stop waits for sessions to be run down",
}


_OTHER_KINDS: Final[dict[str, type[str] | type[float]]] = {
    "name": str,
    "log": str,
    "latency_model": str,
    "hca_profile": str,
    "command_mode": str,
    "allocation": str,
    "latency_factor": float,
}


class _Parser(argparse.ArgumentParser):
    # One sentence instead of usage text and exit, so that the starter gets it too.

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The settings, and what a starter arranged.

    `take_output`: standard output and error go to the log, once it is open.
    """

    settings: KernelSettings
    ready_fd: int | None
    owner_fd: int | None
    take_output: bool = False


def parse_command_line(arguments: Sequence[str]) -> StartOptions:
    """Turn arguments into settings; raise SettingsError with a sentence if they are wrong."""
    values = vars(_build_parser().parse_args(list(arguments)))
    ready_fd, owner_fd = values.pop("ready_fd"), values.pop("owner_fd")
    take_output = values.pop("take_output")
    values["driver"] = tuple(values["driver"])
    return StartOptions(KernelSettings(**values), ready_fd, owner_fd, take_output)


def _build_parser() -> _Parser:
    parser = _Parser(
        prog="python -P -m kernel_proc",
        description="Run a SoftHCA kernel process until it is stopped.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--ready-fd", type=_descriptor, help="written to when ready or failed")
    parser.add_argument("--owner-fd", type=_descriptor, help="its end of file stops the kernel")
    parser.add_argument(
        "--take-output", action="store_true", help="write standard output and error to the log"
    )
    for setting in fields(KernelSettings):
        option = option_of(setting.name)
        words: dict[str, Any] = {"default": setting.default, "help": _HELP[setting.name]}
        if setting.type is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, **words)
        elif setting.name == "driver":
            words["default"] = []
            parser.add_argument(option, action="append", metavar="MODULE:ENTRY", **words)
        else:
            kind = _OTHER_KINDS.get(setting.name, int)
            parser.add_argument(option, type=kind, **words)
    return parser


def _descriptor(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is no descriptor")
    return number


def find_ready_fd(arguments: Sequence[str]) -> int | None:
    """Find `--ready-fd` in a command line that may be wrong otherwise: its starter waits."""
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--ready-fd":
            text = value or "".join(arguments[index + 1 : index + 2])
            return int(text) if text.isdecimal() else None
    return None
