"""What an experiment is, and the machine on which one of its cells runs.

A cell is one combination of the factors an experiment varies. It runs on a machine of its own, in
this process and on a virtual clock, so that no cell finds what another one left; a bug check is a
result like any other.

Rules: one cell at a time, in the thread that asks.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from kernel_proc.machine import Machine
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.settings import KernelSettings

Row = dict[str, Any]
Progress = Callable[[int, int, str], None]

DONE: Final = "done"


class Experiment(Protocol):
    """A question, what runs to answer it, and the answer made from what ran."""

    @property
    def name(self) -> str:
        """The name on the command line, in lower case with hyphens."""

    @property
    def question(self) -> str:
        """The question in one sentence."""

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Run every cell and return one row for each; `quick` means fewer samples."""

    def verdict(self, rows: Sequence[Row]) -> str:
        """Answer the question in one or two sentences from these rows alone."""


def run_cell(
    labels: Mapping[str, Any],
    body: Callable[[Machine], Mapping[str, Any]],
    settings: KernelSettings | None = None,
) -> Row:
    """Run `body` on a fresh machine whose HCA, if it has one, is up; return its row.

    The row has the labels, an `outcome` and what the body returned. After a bug check the outcome
    is its code and name, and the row has `bug_check` with code, name, parameters and detail.
    """
    machine = Machine(settings or KernelSettings(hca=False, seed=1), in_process=True)
    try:
        machine.start_hca()
        return {**labels, "outcome": DONE, **body(machine)}
    except BugCheck as stop:
        report = {key: stop.report.get(key) for key in ("code", "name", "parameters", "detail")}
        return {**labels, "outcome": f"bug check {stop.code:#x} {stop.name}", "bug_check": report}
    finally:
        machine.close()
        gc.collect()  # the next cell is not to pay for this one's garbage
