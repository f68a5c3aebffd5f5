"""What a kernel costs without requests: its start, a first open, and doing nothing.

Times are of kernels and connections of the benchmark's own; idle is processor time of the kernel's
and the HCA's process together, as a part of the time that passed, with sessions that have each
armed a completion queue and ask for nothing.
"""

import contextlib
import select
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from shared.clock import now_ns
from shared.ioctl_codes import NOOP_DEVICE
from shared.verb_codes import HCA_DEVICE
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.own_kernel import own_kernel
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context

IDLE_SESSIONS: Final = 8
_MS: Final = 1_000_000


def measure_kernel_life(settings: BenchSettings) -> dict[str, Any]:
    """Start kernels one after the other; let the last one idle."""
    starts: list[int] = []
    opens: list[int] = []
    contexts: list[int] = []
    idle_percent = 0.0
    for number in range(settings.kernel_starts):
        with contextlib.ExitStack() as stack:
            began = now_ns()
            kernel = stack.enter_context(own_kernel(settings))
            starts.append(now_ns() - began)
            opens.append(_connect_and_open_ns(kernel.name))
            contexts.append(_open_context_ns(kernel.name))
            if number == settings.kernel_starts - 1:
                idle_percent = _idle_percent(kernel, settings.idle_ns)
    return {
        "starts": len(starts),
        "start_ms": round(median(starts) / _MS, 2),
        "start_max_ms": round(max(starts) / _MS, 2),
        "connect_and_open_ms": round(median(opens) / _MS, 2),
        "connect_and_open_max_ms": round(max(opens) / _MS, 2),
        "connect_and_open_context_ms": round(median(contexts) / _MS, 2),
        "connect_and_open_context_max_ms": round(max(contexts) / _MS, 2),
        "idle_sessions": IDLE_SESSIONS,
        "idle_s": settings.idle_ns / 1e9,
        "idle_cpu_percent": round(idle_percent, 4),
    }


def _connect_and_open_ns(name: str) -> int:
    began = now_ns()
    with UserProcess.connect(name) as process, process.open_device(NOOP_DEVICE):
        return now_ns() - began


def _open_context_ns(name: str) -> int:
    began = now_ns()
    with UserProcess.connect(name) as process, Context(name=HCA_DEVICE, process=process):
        return now_ns() - began


def _idle_percent(kernel: StartedKernel, idle_ns: int) -> float:
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_SESSIONS):
            _armed_queue(stack, kernel.name)
        processes = [kernel.pid, *(child.pid for child in psutil.Process(kernel.pid).children())]
        before, began = _on_cpu_ns(processes), now_ns()
        # Nothing is expected: the descriptor tells only if the kernel ends meanwhile.
        select.select([kernel.pidfd], [], [], idle_ns / 1e9)
        return 100 * (_on_cpu_ns(processes) - before) / (now_ns() - began)


def _armed_queue(stack: contextlib.ExitStack, name: str) -> None:
    """Open a session that waits for an event of a completion queue, which will not come."""
    process = stack.enter_context(UserProcess.connect(name))
    context = stack.enter_context(Context(name=HCA_DEVICE, process=process))
    queue = CQ(context, 16, channel=CompChannel(context))
    queue.req_notify()


def _on_cpu_ns(processes: Iterable[int]) -> int:
    """Return the processor time of all threads of some processes, as the scheduler counts it."""
    return sum(
        int(entry.read_text().split()[0])
        for pid in processes
        for entry in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )
