"""Look at kernels by name, ask them for their state, stop them.

The process in the connection file must be the very one that wrote it (pid, start ticks, boot) and
the lock must be held; a pidfd opened before those checks is what is signalled, so never a stranger.

Rules: any thread; nothing is killed in doubt.
Spec: pidfd_open(2); docs/limits.md.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shared.clock import now_ns
from shared.connection_file import (
    DEFAULT_INSTANCE,
    ConnectionRecord,
    InstancePaths,
    RuntimeFolderError,
    instance_paths,
    list_instances,
    lock_is_held,
    read_record,
    running_record,
)
from shared.runtime_folder import check_folder, runtime_root
from user_proc.errors import KernelDied, KernelNotResponding, KernelNotRunning, folder_error
from user_proc.transport.watched_process import end_process, has_ended, reap

STOP_SECONDS: Final = 10.0
STATE_SECONDS: Final = 2.0
WHOLE_STATE_SECONDS: Final = 15.0

_LOOK_SECONDS: Final = 0.005
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """What is known of a kernel by its name alone.

    `state` is "running"; "starting", or just stopping; "dead" when only the leftovers of one that
    was killed are there; "ended" when it left nothing but its log; "none"; "unusable" in a list, if
    its folder cannot be looked into, which `problem` tells of. `cleared` is what it found, at its
    start, of a kernel that had not stopped in order.
    `sessions` and `drivers` are None where the kernel was not asked, or did not answer. `hca` has
    the latency model, its factor and the profile; None without an HCA.
    """

    name: str
    state: str
    pid: int | None
    folder: Path
    endpoint: str | None = None
    log: Path | None = None
    version: str | None = None
    verifier: bool | None = None
    uptime_ns: int | None = None
    cleared: str | None = None
    sessions: list[dict[str, Any]] | None = None
    drivers: list[dict[str, Any]] | None = None
    problem: str | None = None
    hca: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """Tell whether it runs and is ready."""
        return self.state == "running"


def kernel_status(name: str = DEFAULT_INSTANCE, *, ask: bool = False) -> KernelStatus:
    """Look at a kernel by name; with `ask` it is asked for its sessions and drivers, too."""
    with folder_errors():
        paths = instance_paths(name)
        record = running_record(paths)
        status = _status(paths, record)
    if not ask or record is None:
        return status
    state = _ask_for_state(paths, record, STATE_SECONDS)
    if state is None:
        return status
    return replace(status, sessions=state["server"]["sessions"], drivers=state["drivers"])


def kernel_state(
    name: str = DEFAULT_INSTANCE, timeout: float = WHOLE_STATE_SECONDS
) -> dict[str, Any]:
    """Return the state of every room of a running kernel, as it is now.

    KernelNotRunning, KernelDied or KernelNotResponding says why there is none.
    """
    with folder_errors():
        paths = instance_paths(name)
        record = running_record(paths)
    if record is None:
        raise KernelNotRunning(paths.name, paths.folder.parent)
    state = _ask_for_state(paths, record, timeout)
    if state is None:
        if running_record(paths) != record:
            raise KernelDied(paths.name)
        raise KernelNotResponding(paths.name, timeout)
    return state


def list_kernels() -> list[KernelStatus]:
    """Look at every instance of this user that runs or has left something, by name.

    SofthcaError if the folder that holds them all cannot be used: then no kernel can be reached.
    """
    with folder_errors():
        root = runtime_root()
        with contextlib.suppress(FileNotFoundError):
            check_folder(root)
        instances = list_instances(root)
    states = [_status_or_problem(paths) for paths in instances]
    return [status for status in states if status.state != "none"]


def _status_or_problem(paths: InstancePaths) -> KernelStatus:
    try:
        return _status(paths, running_record(paths))
    except (RuntimeFolderError, OSError) as error:
        return KernelStatus(paths.name, "unusable", None, paths.folder, problem=str(error))


def stop_kernel(name: str = DEFAULT_INSTANCE, timeout: float = STOP_SECONDS) -> bool:
    """Stop a kernel by name; True if it ended in order, False if it had to be killed."""
    with folder_errors():
        paths = instance_paths(name)
        record = read_record(paths)
        if record is None:
            raise _nothing_to_stop(paths)
        try:
            pidfd = os.pidfd_open(record.pid)
        except ProcessLookupError:
            raise _nothing_to_stop(paths) from None
        try:
            if running_record(paths) != record:
                raise _nothing_to_stop(paths)
            in_time = end_process(pidfd, timeout)
            reap(pidfd)
        finally:
            os.close(pidfd)
    return in_time


@contextlib.contextmanager
def folder_errors() -> Iterator[None]:
    """Let what is wrong with the runtime folder, or a name, be an error of the user side."""
    try:
        yield
    except RuntimeFolderError as error:
        raise folder_error(error) from error


def _status(paths: InstancePaths, running: ConnectionRecord | None) -> KernelStatus:
    if running is not None:
        return KernelStatus(
            paths.name,
            "running",
            running.pid,
            paths.folder,
            paths.endpoint,
            Path(running.log) if running.log else None,
            running.version or None,
            running.verifier,
            _uptime_ns(running),
            running.cleared or None,
            hca=_hca_of(running),
        )
    log = paths.log if paths.log.exists() else None
    if (record := read_record(paths)) is not None:
        return KernelStatus(paths.name, "dead", record.pid, paths.folder, log=log)
    if lock_is_held(paths):
        return KernelStatus(paths.name, "starting", None, paths.folder, log=log)
    if paths.lock.exists():  # killed before it was ready
        return KernelStatus(paths.name, "dead", _pid_in_lock(paths), paths.folder, log=log)
    return KernelStatus(paths.name, "none" if log is None else "ended", None, paths.folder, log=log)


def _hca_of(record: ConnectionRecord) -> dict[str, Any] | None:
    if not record.latency_model:
        return None
    return {
        "latency_model": record.latency_model,
        "latency_factor": record.latency_factor,
        "hca_profile": record.hca_profile or None,
    }


def _pid_in_lock(paths: InstancePaths) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(paths.lock.read_text(encoding="ascii"))
    return None


def _uptime_ns(record: ConnectionRecord) -> int:
    started = record.start_ticks * _NS // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started)


def _nothing_to_stop(paths: InstancePaths) -> KernelNotRunning:
    status = _status(paths, running_record(paths))
    advice = {
        "dead": "it was killed and there is nothing to stop; the next start of that name cleans up",
        "starting": "it is just starting or stopping; try again in a moment",
        "ended": f"there is nothing to stop; the log of the last one is {status.log}",
    }.get(status.state, "there is nothing to stop")
    return KernelNotRunning(paths.name, paths.folder.parent, advice)


def _ask_for_state(
    paths: InstancePaths, record: ConnectionRecord, seconds: float
) -> dict[str, Any] | None:
    """Have the kernel write its state, and read it; None if it does not in time, or has ended."""
    path = paths.folder / "state.json"
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    try:
        before = _identity(path)
        if running_record(paths) != record:
            return None
        signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
        deadline = now_ns() + round(seconds * _NS)
        while _identity(path) == before:
            if now_ns() > deadline or has_ended(pidfd, _LOOK_SECONDS):
                return None
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return state
    except (OSError, ValueError):  # it ended meanwhile
        return None
    finally:
        os.close(pidfd)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
