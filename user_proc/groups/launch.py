"""Launches a plan: a kernel if it needs one, its ranks, and what came of them.

    outcome = launch(read_plan(Path("ping-pong.toml")))
    outcome.exit_code

Logs lie in a folder of the launch's own, which is kept when a rank fails or time runs out.

Rules: one thread. However it ends, by an exception of a signal, too, nothing it started is left.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from shared.clock import now_ns
from shared.connection_file import instance_paths
from user_proc.errors import KernelNotRunning, KernelStartFailed, WrongKernelSetting
from user_proc.groups.fault_schedule import FaultSchedule
from user_proc.groups.group_plan import KernelPlan, LaunchPlan, check_plan
from user_proc.groups.rank_rows import KernelProcess, rank_rows
from user_proc.groups.rank_run import RankResult
from user_proc.groups.supervisor import FAILED, SUCCESS, TIME_LIMIT, Supervisor, Verdict
from user_proc.transport.kernel_control import kernel_status
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.transport.kernels_used import note_kernel

EXIT_CODES: Final = {SUCCESS: 0, FAILED: 1, TIME_LIMIT: 124}

_ORDERLY_SECONDS: Final = 5.0
_HURRIED_SECONDS: Final = 0.5
_STEP_SECONDS: Final = 0.5
_KERNEL_LOG: Final = "kernel.log"

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a launch."""

    result: str
    reason: str
    seconds: float
    kernel: str
    ranks: tuple[RankResult, ...]
    samples: tuple[dict[str, Any], ...]
    logs: Path | None  # where they are, if they were kept

    @property
    def exit_code(self) -> int:
        """Return 0 for success, 1 when a rank failed, 124 at a time limit."""
        return EXIT_CODES[self.result]

    def parts(self, plan: LaunchPlan) -> dict[str, Any]:
        """Return it as the parts of a run document."""
        return {
            "outcome": {
                "result": self.result,
                "reason": self.reason,
                "exit_code": self.exit_code,
                "seconds": self.seconds,
                "kernel": self.kernel,
                "logs": None if self.logs is None else str(self.logs),
            },
            "groups": [_group_values(asdict(group)) for group in plan.groups],
            "ranks": [asdict(rank) for rank in self.ranks],
            "samples": list(self.samples),
        }


class View(Protocol):
    """Where a launch shows how it is."""

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show a row for each rank."""


class NoView:
    """Shows nothing."""

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Take note of nothing."""


def launch(
    plan: LaunchPlan,
    *,
    view: View | None = None,
    logs: Path | None = None,
    keep_logs: bool = False,
) -> Outcome:
    """Launch a plan, wait for its end, and return what became of it.

    Raises PlanError for a plan that cannot be launched, KernelStartFailed and KernelNotRunning for
    a kernel. `logs` is where the folder of logs is made.
    """
    check_plan(plan)
    folder = Path(tempfile.mkdtemp(prefix="softhca-launch-", dir=logs))
    kept = keep_logs
    try:
        with _kernel_of(plan.kernel, folder) as (kernel, process):
            outcome = _supervise(plan, kernel, folder, process, view or NoView())
        kept = keep_logs or outcome.result != SUCCESS
        return replace(outcome, logs=folder) if kept else outcome
    except WrongKernelSetting:
        raise  # its log tells nothing more
    except KernelStartFailed as error:
        kept = keep_logs or (folder / _KERNEL_LOG).exists()
        where = f"; its log is in {folder}" if kept else ""
        raise KernelStartFailed(f"{error}{where}") from error
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _supervise(
    plan: LaunchPlan, kernel: str, folder: Path, process: KernelProcess | None, view: View
) -> Outcome:
    with Supervisor(plan, kernel, folder, process) as supervisor:
        faults = FaultSchedule(plan.faults, kernel, supervisor.has_reached)
        while not supervisor.is_over:
            if not supervisor.is_ending and (reason := faults.set_due()):
                supervisor.end(Verdict(FAILED, reason))
            supervisor.step(_STEP_SECONDS)
            view.show(rank_rows(supervisor.ranks, supervisor.samples.latest))
        verdict = supervisor.conclude()
    return Outcome(
        verdict.result,
        verdict.reason,
        round((now_ns() - supervisor.begin_ns) / 1e9, 3),
        kernel,
        tuple(run.result() for run in supervisor.ranks),
        tuple(supervisor.samples.taken),
        None,
    )


def _group_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return a group as JSON values; of its environment the names alone, which may be secret."""
    after = [f"{one['group']}:{one['name']}" for one in values["after"]]
    until = values["until"] and f"{values['until']['group']}:{values['until']['name']}"
    return {**values, "after": after, "until": until, "environment": [*values["environment"]]}


@contextlib.contextmanager
def _kernel_of(plan: KernelPlan, folder: Path) -> Iterator[tuple[str, KernelProcess]]:
    """Give the name of the kernel the ranks work on, and its process; end one that is ours."""
    if plan.running is None:
        with _own_kernel(plan, folder) as kernel:
            yield kernel.name, KernelProcess(kernel.pid, kernel.pidfd, str(kernel.log))
        return
    status = kernel_status(plan.running)
    if not status.running or status.pid is None:
        raise KernelNotRunning(plan.running, status.folder.parent)
    try:
        pidfd = os.pidfd_open(status.pid)
    except ProcessLookupError:
        raise KernelNotRunning(plan.running, status.folder.parent) from None
    note_kernel(plan.running)
    try:
        yield plan.running, KernelProcess(status.pid, pidfd, str(status.log or ""))
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def _own_kernel(plan: KernelPlan, folder: Path) -> Iterator[StartedKernel]:
    """Start a kernel, bound to this process, its log beside those of the ranks."""
    name = plan.name or f"launch-{os.getpid()}-{next(_numbers)}"
    settings = {**plan.settings, "log": str(folder / _KERNEL_LOG)}
    kernel = start_kernel(name, settings=settings)
    seconds = _HURRIED_SECONDS
    try:
        yield kernel
        seconds = _ORDERLY_SECONDS
    finally:
        if not kernel.stop(seconds):
            # One that was killed could not remove its own files.
            shutil.rmtree(instance_paths(name).folder, ignore_errors=True)
