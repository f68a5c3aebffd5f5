"""The command line of a kernel process: every setting is an option under its own name.

An option that does not exist, or a value it cannot have, is refused with a sentence.
"""

import argparse
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from kernel_proc.settings import KernelSettings, SettingsError, option_of

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


class StartOptions(NamedTuple):
    """The settings, and what a starter arranged.

    `take_output`: standard output and error go to the log, once it is open.
    """

    settings: KernelSettings
    ready_fd: int | None
    owner_fd: int | None
    take_output: bool = False


class _Parser(argparse.ArgumentParser):
    # One sentence instead of usage text and exit, so that the starter gets it too.

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


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
    for setting, kind in KernelSettings.__annotations__.items():
        option, default = option_of(setting), KernelSettings._field_defaults[setting]
        words: dict[str, Any] = {"default": default, "help": _HELP[setting]}
        if kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, **words)
        elif setting == "driver":
            words["default"] = []
            parser.add_argument(option, action="append", metavar="MODULE:ENTRY", **words)
        else:
            reads = int if kind in (int, int | None) else float if kind is float else str
            parser.add_argument(option, type=reads, **words)
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
