"""A kernel of the benchmark's own, and one user process at it, for the length of a round.

The kernel is bound to this process and its log has no name while it runs, so that nothing stays
behind even when this process is killed. The log of a kernel that ended by itself is written to a
file, and the error says where.

Rules: whatever ends the round, both are ended and nothing of them is left.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from shared.connection_file import instance_paths
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.worker_link import WorkerLink
from user_proc.errors import SofthcaError
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

_ORDERLY_SECONDS: Final = 5.0
_HURRIED_SECONDS: Final = 0.4  # when the user wants to be gone

_numbers: Final = itertools.count(1)


class KernelFailed(SofthcaError):
    """The benchmark's kernel ended by itself."""


def pin_process(pid: int, cpu: int) -> None:
    """Keep every thread of a process on one core; threads it starts later inherit that."""
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(entry.name), {cpu})


@contextlib.contextmanager
def open_round(settings: BenchSettings) -> Iterator[WorkerLink]:
    """Start a kernel under a name nobody else uses, and a user process connected to it."""
    name = f"bench-{os.getpid()}-{next(_numbers)}"
    kernel = start_kernel(name)
    seconds = _HURRIED_SECONDS
    try:
        with _nameless_log(kernel) as log:
            try:
                if settings.kernel_cpu is not None:
                    pin_process(kernel.pid, settings.kernel_cpu)
                with WorkerLink(name, settings.user_cpu) as worker:
                    yield worker
            except SofthcaError as error:
                if kernel.running:
                    raise
                raise KernelFailed(
                    f"the benchmark's kernel ended by itself ({error}): its log is {_keep(log)}"
                ) from error
        seconds = _ORDERLY_SECONDS
    finally:
        kernel.stop(seconds)
        # One that was killed could not remove its own files.
        shutil.rmtree(instance_paths(name).folder, ignore_errors=True)


def _nameless_log(kernel: StartedKernel) -> BinaryIO:
    """Open the kernel's log and take its name away; the kernel goes on writing to it."""
    log = kernel.log.open("rb")
    kernel.log.unlink()
    return log


def _keep(log: BinaryIO) -> str:
    """Give a log a name again; return it."""
    descriptor, name = tempfile.mkstemp(prefix="softhca-bench-", suffix=".log")
    with os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(log, copy)
    return name
