"""Kernels of the benchmark's own, and user processes at them, for the length of a round.

A kernel is bound to this process and its log has no name while it runs, so that nothing stays
behind even when this process is killed. The log of a kernel that ended by itself is written to a
file, and the error says where.

Rules: whatever ends the round, all of them are ended and nothing of them is left.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from shared.connection_file import instance_paths
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.worker_group import WorkerGroup
from user_proc.bench.worker_link import IRP_WORKER, WorkerLink
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


class Round:
    """Fresh kernels and user processes, each started when a row first asks for it.

    The rows of one round that ask for the same mode share a kernel, and those of one process
    share that process.
    """

    def __init__(self, settings: BenchSettings, stack: contextlib.ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._kernels: dict[bool, str] = {}
        self._workers: dict[bool, list[WorkerLink]] = {False: [], True: []}

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        """Return so many user processes of a kernel in the mode asked for."""
        workers = self._workers[verifier]
        if verifier not in self._kernels:
            self._kernels[verifier] = self._stack.enter_context(
                own_kernel(self._settings, verifier)
            ).name
        missing = processes - len(workers)
        if missing > 0:
            workers += self._start_workers(self._kernels[verifier], missing)
        return WorkerGroup(workers[:processes])

    def _start_workers(self, name: str, count: int) -> list[WorkerLink]:
        return start_workers(self._stack, name, count, self._settings.user_cpu)


def start_workers(
    stack: contextlib.ExitStack,
    name: str,
    count: int,
    cpu: int | None = None,
    module: str = IRP_WORKER,
) -> list[WorkerLink]:
    """Start processes side by side, then wait until each is ready; the stack ends them."""
    started: list[WorkerLink] = []
    stack.callback(_end_workers, started)
    started.extend(WorkerLink(name, cpu, module) for _ in range(count))
    for link in started:
        link.wait_until_ready()
    return started


def _end_workers(links: list[WorkerLink]) -> None:
    """Tell every process to end before any of them is waited for."""
    for link in links:
        link.begin_close()
    for link in links:
        link.close()


@contextlib.contextmanager
def open_round(settings: BenchSettings) -> Iterator[Round]:
    """Open a round; whatever it started is ended with it."""
    with contextlib.ExitStack() as stack:
        yield Round(settings, stack)


@contextlib.contextmanager
def own_kernel(settings: BenchSettings, verifier: bool = False) -> Iterator[StartedKernel]:
    """Start a kernel in the mode asked for."""
    options = {"verifier": verifier, "spin_us": settings.kernel_spin_us}
    with kernel_with(options, settings.kernel_cpu) as kernel:
        yield kernel


@contextlib.contextmanager
def kernel_with(options: Mapping[str, object], cpu: int | None = None) -> Iterator[StartedKernel]:
    """Start a kernel with these settings under a name nobody else uses, on one core if told."""
    name = f"bench-{os.getpid()}-{next(_numbers)}"
    kernel = start_kernel(name, settings=options)
    seconds = _HURRIED_SECONDS
    try:
        with _nameless_log(kernel) as log:
            try:
                if cpu is not None:
                    pin_process(kernel.pid, cpu)
                yield kernel
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
