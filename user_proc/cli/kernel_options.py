"""The options of `softhca kernel start` that are settings of the kernel.

Rules: imported with the command line, so it imports nothing of weight.
"""

from typing import Annotated

import typer

Verifier = Annotated[
    bool, typer.Option("--verifier", help="Check kernel code as Driver Verifier does.")
]
Drivers = Annotated[
    list[str] | None,
    typer.Option(
        "--driver",
        metavar="MODULE:ENTRY",
        help="Load a driver, a module of PYTHONPATH or a file (mailbox.py:driver_entry); "
        "may be given again.",
    ),
]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Append the log to this file, and keep it, instead of one in the runtime folder.",
    ),
]
NoHca = Annotated[bool, typer.Option("--no-hca", help="Run no HCA.")]
LatencyModel = Annotated[
    str | None,
    typer.Option(
        "--latency-model",
        metavar="MODEL",
        help="Time of HCA commands: none, plausible, prm-ceiling, or a TOML file.",
    ),
]
LatencyFactor = Annotated[
    float | None,
    typer.Option("--latency-factor", metavar="X", help="Multiply the times of the latency model."),
]
HcaProfile = Annotated[
    str | None,
    typer.Option(
        "--hca-profile",
        metavar="FILE",
        help="A TOML file with the sizes of the HCA's tables and queues.",
    ),
]
CommandMode = Annotated[
    str | None,
    typer.Option(
        "--command-mode",
        metavar="MODE",
        help="How the driver learns that a command is done: event or polling.",
    ),
]
Fragmentation = Annotated[
    int | None,
    typer.Option(
        "--fragmentation",
        metavar="N",
        help="Longest run of page frames; 0: frames are not fragmented.",
    ),
]
Allocation = Annotated[
    str | None,
    typer.Option(
        "--allocation",
        metavar="WAY",
        help="How the driver gets memory: direct, common-buffer, smaller, pages or pool.",
    ),
]
MaxQpRdAtom = Annotated[
    int | None,
    typer.Option(
        "--max-qp-rd-atom",
        metavar="N",
        help="RDMA reads and atomics a QP may have outstanding.",
    ),
]
SpinUs = Annotated[
    int | None,
    typer.Option(
        "--spin-us",
        metavar="US",
        help="Time an idle processor looks for requests before it sleeps.",
    ),
]
HcaSpinUs = Annotated[
    int | None,
    typer.Option(
        "--hca-spin-us",
        metavar="US",
        help="Time an idle HCA looks for work before it sleeps.",
    ),
]
