"""The kernel of a stress run: its own, bound to this process, and looked at when it has ended.

Rules: whatever ends the run, the kernel is stopped and its folder is gone; that it had to be
removed by force is one of the things found.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shared.connection_file import instance_paths
from shared.fault_messages import Fault
from user_proc.faults.fault_control import set_fault
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

_HURRIED_S: Final = 1.0
_LINES: Final = 30
_SIGNS: Final = ("bug check", "Traceback", "not taken back")
_numbers: Final = itertools.count(1)


@contextlib.contextmanager
def stress_kernel(
    options: Mapping[str, object], leaks: list[str], faults: Sequence[Fault] = ()
) -> Iterator[StartedKernel]:
    """Start a kernel; at the end note what it left in its folder, and what its log tells."""
    name = f"stress-{os.getpid()}-{next(_numbers)}"
    kernel = start_kernel(name, settings=options)
    folder = instance_paths(name).folder
    in_order = False
    try:
        if faults:
            with UserProcess.connect(name) as process:
                for one in faults:
                    set_fault(process, one)
        yield kernel
        in_order = True
        leaks.extend(f"log: {line}" for line in unusual_lines(kernel))
        if kernel.running and not kernel.stop():
            leaks.append("the kernel did not stop in order and was killed")
        if folder.exists():
            left = sorted(one.name for one in folder.iterdir())
            leaks.append(f"runtime folder: {left}; log: {log_end(kernel)}")
    finally:
        if not in_order:
            kernel.stop(_HURRIED_S)
        shutil.rmtree(folder, ignore_errors=True)


def unusual_lines(kernel: StartedKernel) -> list[str]:
    """Return the lines of a kernel's log that tell of something that must not be."""
    lines = _lines(kernel)
    return [line for line in lines if any(sign in line for sign in _SIGNS)]


def _lines(kernel: StartedKernel) -> list[str]:
    try:
        return kernel.log.read_text(errors="replace").splitlines()
    except OSError:
        return []


def log_end(kernel: StartedKernel) -> str:
    """Return the last lines of a kernel's log."""
    return " | ".join(_lines(kernel)[-_LINES:])
