"""What a kernel costs without requests: its start, a first open, and doing nothing.

Times are of kernels and connections of the benchmark's own; idle is processor time of the whole
kernel process, user and system, as a part of the time that passed, with connected processes that
ask for nothing.
"""

import contextlib
import select
from statistics import median
from typing import Any, Final

from shared.clock import now_ns
from shared.ioctl_codes import BENCHMARK_DEVICE, IOCTL_QUERY_COUNTERS, NOOP_DEVICE
from shared.message_codec import decode_as
from shared.messages import Counters
from user_proc.bench.bench_settings import BenchSettings
from user_proc.bench.own_kernel import own_kernel
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel

IDLE_SESSIONS: Final = 8
_COUNTERS_BYTES: Final = 4096
_MS: Final = 1_000_000


def measure_kernel_life(settings: BenchSettings) -> dict[str, Any]:
    """Start kernels one after the other; let the last one idle."""
    starts: list[int] = []
    opens: list[int] = []
    idle_percent = 0.0
    for number in range(settings.kernel_starts):
        with contextlib.ExitStack() as stack:
            began = now_ns()
            kernel = stack.enter_context(own_kernel(settings))
            starts.append(now_ns() - began)
            opens.append(_connect_and_open_ns(kernel.name))
            if number == settings.kernel_starts - 1:
                idle_percent = _idle_percent(kernel, settings.idle_ns)
    return {
        "starts": len(starts),
        "start_ms": round(median(starts) / _MS, 2),
        "start_max_ms": round(max(starts) / _MS, 2),
        "connect_and_open_ms": round(median(opens) / _MS, 2),
        "connect_and_open_max_ms": round(max(opens) / _MS, 2),
        "idle_sessions": IDLE_SESSIONS,
        "idle_s": settings.idle_ns / 1e9,
        "idle_cpu_percent": round(idle_percent, 4),
    }


def _connect_and_open_ns(name: str) -> int:
    began = now_ns()
    with UserProcess.connect(name) as process, process.open_device(NOOP_DEVICE):
        return now_ns() - began


def _idle_percent(kernel: StartedKernel, idle_ns: int) -> float:
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(UserProcess.connect(kernel.name)) for _ in range(IDLE_SESSIONS)
        ]
        device = stack.enter_context(sessions[0].open_device(BENCHMARK_DEVICE))
        _cpu_ns(device)  # the first call makes sockets on both sides
        before, began = _cpu_ns(device), now_ns()
        # Nothing is expected: the descriptor tells only if the kernel ends meanwhile.
        select.select([kernel.pidfd], [], [], idle_ns / 1e9)
        return 100 * (_cpu_ns(device) - before) / (now_ns() - began)


def _cpu_ns(device: DeviceHandle) -> int:
    output = bytearray(_COUNTERS_BYTES)
    length = device.device_io_control(IOCTL_QUERY_COUNTERS, None, output)
    counters = decode_as(Counters, output[:length])
    return counters.cpu_user_ns + counters.cpu_system_ns
