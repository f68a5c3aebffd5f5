"""Where a run was made: versions, machine, load, clock and the switches that were set.

Rules: read before and after the run, never during it; what cannot be known is None, never a guess.
"""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from shared.clock import clock_info, now_ns
from shared.version import softhca_version
from user_proc.transport.kernels_used import hcas_noted, hcas_since

PACKAGES: Final = ("pyzmq", "msgpack", "greenlet", "psutil", "typer", "rich", "hdrhistogram")
_ROOT: Final = Path(__file__).resolve().parent.parent
_GIT_SECONDS: Final = 5.0
_CLOCK_READS: Final = 20_000
_CONTAINER_WORDS: Final = ("docker", "kubepods", "containerd", "libpod", "lxc")


def _git(*arguments: str) -> str | None:
    """Return what git answers about this source tree, or None without git or repository."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _source() -> dict[str, Any]:
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "version": softhca_version(),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def _python() -> dict[str, Any]:
    enabled = getattr(sys, "_is_gil_enabled", None)
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "build": " ".join(platform.python_build()),
        "compiler": platform.python_compiler(),
        "gil": True if enabled is None else bool(enabled()),
    }


def _package_versions() -> dict[str, str | None]:
    import zmq

    versions: dict[str, str | None] = {"libzmq": zmq.zmq_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _read_line(path: str, start: str = "") -> str | None:
    """Return the first line of a file that begins with `start`, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return next((line.strip() for line in file if line.startswith(start)), None)
    except OSError:
        return None


def _processor_name() -> str | None:
    line = _read_line("/proc/cpuinfo", "model name")
    return line.partition(":")[2].strip() if line else platform.processor() or None


def is_virtual() -> bool | None:
    """Tell whether the processor says that a hypervisor runs it; None when it says nothing."""
    line = _read_line("/proc/cpuinfo", "flags")
    return None if line is None else "hypervisor" in line.split()


def _is_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    line = _read_line("/proc/1/cgroup") or ""
    return any(word in line for word in _CONTAINER_WORDS)


def machine() -> dict[str, Any]:
    """Return what is known of the machine: system, processor, cores, governor, virtual or not."""
    system = platform.uname()
    return {
        "system": system.system,
        "kernel": system.release,
        "architecture": system.machine,
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "governor": _read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "virtual": is_virtual(),
        "container": _is_container(),
    }


def available_memory() -> int:
    """Return how many bytes of memory could be taken without swapping; 0 if that is not known."""
    fields = _read_line("/proc/meminfo", "MemAvailable:")
    return int(fields.split()[1]) * 1024 if fields else 0


def load_average() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def clock() -> dict[str, Any]:
    """Return the clock's implementation, resolution and measured cost of one reading."""
    begin = now_ns()
    for _ in range(_CLOCK_READS):
        now_ns()
    cost = (now_ns() - begin) / _CLOCK_READS
    return {**clock_info(), "cost_ns": round(cost, 1)}


def switches(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment switches that change how SoftHCA or Python runs."""
    found = os.environ if environment is None else environment
    return {
        name: found[name]
        for name in sorted(found)
        if name.startswith(("SOFTHCA_", "PYTHON")) and name != "PYTHONPATH"
    }


def utc_now() -> str:
    """Return the present time of day as text, for the reader; nothing is computed from it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin_provenance() -> dict[str, Any]:
    """Return what is known before the run; `end_provenance` adds the rest."""
    return {
        "softhca": _source(),
        "command": sys.argv,
        "started": utc_now(),
        "python": _python(),
        "packages": _package_versions(),
        "machine": machine(),
        "load_before": load_average(),
        "clock": clock(),
        "switches": switches(),
        "garbage_collector": "frozen and off while measuring" if gc.isenabled() else "off",
        "hcas": hcas_noted(),
        "begin_ns": now_ns(),
    }


def end_provenance(begun: Mapping[str, Any], marks: list[str]) -> dict[str, Any]:
    """Return the whole provenance of a run that has just ended."""
    whole = {name: value for name, value in begun.items() if name != "begin_ns"}
    whole["hcas"] = hcas_since(begun["hcas"])
    whole["finished"] = utc_now()
    whole["duration_s"] = round((now_ns() - begun["begin_ns"]) / 1e9, 3)
    whole["load_after"] = load_average()
    whole["marks"] = sorted(set(marks))
    return whole
