"""How much of the machine there is: memory, cores, the clock, and a place for sockets.

Spec: proc(5) meminfo; cgroups(7); docs/limits.md.
"""

import fcntl
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

import psutil

from shared.clock import clock_info, now_ns
from shared.connection_file import RuntimeFolderError, instance_paths, prepare_root
from user_proc.doctor.check import Check, missing, short, well

MIB: Final = 1 << 20
_LEAST_MEMORY: Final = 192 * MIB  # a kernel, its HCA, a program, and 16 MiB of kernel memory
_AMPLE_MEMORY: Final = 1536 * MIB  # with all the arenas that may be granted
_LEAST_ROOM: Final = 1 * MIB
_GROUP: Final = Path("/sys/fs/cgroup")
_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_SOURCES: Final = ("hpet", "acpi_pm", "jiffies", "pit")
_READS: Final = 2000


def check_memory() -> Check:
    """What is free for shared memory, in the machine and in the group of this process."""
    free = psutil.virtual_memory().available
    limit = _group_memory()
    where = "available"
    if limit is not None and limit < free:
        free, where = limit, "left of the control group's limit"
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    room = "no limit" if locked == resource.RLIM_INFINITY else f"{locked // 1024} KiB"
    found = f"{free // MIB} MiB {where}; locked memory ({room}) is not needed"
    if free < _LEAST_MEMORY:
        return missing("memory", found, f"free {_LEAST_MEMORY // MIB} MiB at least")
    if free < _AMPLE_MEMORY:
        return short("memory", found, "free some, or lower --arena-bytes-total of the kernel")
    return well("memory", found)


def _group_memory() -> int | None:
    """Return what the control group may still take; None without such a limit."""
    try:
        most = (_GROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (_GROUP / "memory.current").read_text(encoding="ascii").strip()
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None


def check_cores() -> Check:
    """Cores this process may use; kernel, HCA and users take turns on a single one."""
    cores = float(len(os.sched_getaffinity(0)))
    found = f"{cores:g} of {os.cpu_count()} cores"
    try:
        quota, period = (_GROUP / "cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
            found += f", {cores:g} by the control group's quota"
    except (OSError, ValueError):
        pass
    if cores < 2:  # below two nothing runs at the same time
        return short("cores", found, "use two cores or more: with fewer, every figure is larger")
    return well("cores", found)


def check_clock() -> Check:
    """What the clock of all processes is, and what a look at it costs."""
    begin = now_ns()
    for _ in range(_READS):
        now_ns()
    cost = (now_ns() - begin) / _READS
    try:
        source = _CLOCK_SOURCE.read_text(encoding="ascii").strip()
    except OSError:
        source = "unknown"
    resolution = clock_info()["resolution_ns"]
    found = f"source {source}, resolution {resolution} ns, {cost:.0f} ns a look"
    if source in _SLOW_SOURCES:
        return short("clock", found, "boot with clocksource=tsc, if the processor's is stable")
    return well("clock", found)


def check_runtime_folder() -> Check:
    """The folder of locks and sockets, and what is done in it: a lock, a socket, room for both."""
    name = "runtime folder"
    try:
        paths = instance_paths("doctor")
        prepare_root(paths)
    except RuntimeFolderError as error:
        sentence, _, cure = str(error).partition(": ")
        return missing(name, sentence, cure or "set XDG_RUNTIME_DIR to a folder of yours")
    longest = len(os.fsencode(paths.lifeline))
    root = paths.folder.parent
    setting = os.environ.get("XDG_RUNTIME_DIR", "")
    is_there = not setting or root.is_relative_to(setting)
    elsewhere = "" if is_there else f"; XDG_RUNTIME_DIR={setting} cannot hold sockets"
    try:
        _try_folder(root)
        free = shutil.disk_usage(root).free
    except OSError as error:
        return missing(
            name, f"{root}: {error.strerror}", "set XDG_RUNTIME_DIR to a folder on a local disk"
        )
    found = f"{root} (a socket's path has {longest} bytes of 107{elsewhere})"
    if free < _LEAST_ROOM:
        return missing(name, f"{found} is full", "make room there, or set XDG_RUNTIME_DIR")
    return well(name, found)


def _try_folder(root: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=root))
    try:
        with open(folder / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            # By way of the descriptor, since the folder's own path may be long.
            descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{descriptor}/socket")
            finally:
                os.close(descriptor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
