"""A kernel of the benchmark's own, and one user process at it, for the length of a round.

Rules: whatever ends the round, both are ended and nothing of them is left; a kernel that failed
by itself leaves its log, and the error says where.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
        if settings.kernel_cpu is not None:
            pin_process(kernel.pid, settings.kernel_cpu)
        with WorkerLink(name, settings.user_cpu) as worker:
            yield worker
        seconds = _ORDERLY_SECONDS
    except SofthcaError as error:
        if not kernel.running:
            raise KernelFailed(
                f"the benchmark's kernel ended by itself ({error}): its log is {kernel.log}"
            ) from error
        raise
    finally:
        _end(kernel, name, seconds)


def _end(kernel: StartedKernel, name: str, seconds: float) -> None:
    """Stop the kernel; what one that had to be killed could not remove is removed here."""
    failed_by_itself = not kernel.running
    kernel.stop(seconds)
    if not failed_by_itself:
        shutil.rmtree(instance_paths(name).folder, ignore_errors=True)
