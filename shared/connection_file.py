"""The connection file: who the kernel of an instance is, and whether it runs.

The `flock` on the lock file decides who the kernel of a name is. The connection file is written
after both sockets are bound, by rename, and removed at the end: it is the ready signal, and names
the holder by pid, start ticks and boot id, so that a pid used again by a stranger is not mistaken
for a kernel.

Spec: proc(5), stat field 22; flock(2).
"""

import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

from shared.runtime_folder import (
    DEFAULT_INSTANCE,
    InstanceNameError,
    InstancePaths,
    RuntimeFolderError,
    check_folder,
    check_name,
    digest,
    instance_paths,
    is_name,
    prepare_folder,
    prepare_root,
    runtime_root,
)

__all__ = [
    "DEFAULT_INSTANCE",
    "ConnectionRecord",
    "InstanceNameError",
    "InstancePaths",
    "RuntimeFolderError",
    "boot_id",
    "check_folder",
    "check_name",
    "instance_paths",
    "is_running",
    "list_instances",
    "lock_is_held",
    "own_record",
    "prepare_folder",
    "prepare_root",
    "process_start_ticks",
    "read_record",
    "remove_record",
    "running_record",
    "runtime_root",
    "write_record",
]

_MAX_RECORD: Final = 16 * 1024
_MOST_PIDS: Final = 1 << 31  # pid_t


class ConnectionRecord(NamedTuple):
    """The contents of the connection file: who the kernel is, and what is fixed for its life.

    `cleared` says what it found of a kernel of the name that had not stopped in order. Without an
    HCA there is no `latency_model`; no `hca_profile` is the built-in one.
    """

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    protocol: int
    version: str = ""
    verifier: bool = False
    log: str = ""
    cleared: str = ""
    latency_model: str = ""
    latency_factor: float = 1.0
    hca_profile: str = ""


def boot_id() -> str:
    """Give the identity of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def process_start_ticks(pid: int) -> int | None:
    """Give the start time of a process in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # field 22, counted after the command name


def is_running(record: ConnectionRecord) -> bool:
    """Tell whether the very process that wrote the record still lives."""
    return record.boot_id == boot_id() and record.start_ticks == process_start_ticks(record.pid)


def own_record(
    name: str,
    protocol: int,
    version: str = "",
    verifier: bool = False,
    log: str = "",
    cleared: str = "",
) -> ConnectionRecord:
    """Describe the calling process as the kernel of `name`."""
    ticks = process_start_ticks(os.getpid())
    if ticks is None:
        raise RuntimeFolderError("/proc is not mounted: the start time of a process is needed")
    pid, boot = os.getpid(), boot_id()
    return ConnectionRecord(name, pid, ticks, boot, protocol, version, verifier, log, cleared)


def write_record(paths: InstancePaths, record: ConnectionRecord) -> None:
    """Publish the record in one step: readers see all of it or nothing."""
    temporary = paths.folder / f"connection.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(record._asdict(), file)
        temporary.rename(paths.connection_file)
    except BaseException:  # a full disk
        temporary.unlink(missing_ok=True)
        raise


def remove_record(paths: InstancePaths) -> None:
    """Withdraw the ready signal."""
    paths.connection_file.unlink(missing_ok=True)


def read_record(paths: InstancePaths) -> ConnectionRecord | None:
    """Read the connection file; None if there is none, RuntimeFolderError if it is not one."""
    try:
        check_folder(paths.folder)
        text = _read_file(paths.connection_file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RuntimeFolderError(
            f"cannot read {error.filename}: {error.strerror}; make it readable for you, or remove "
            f"{paths.folder}"
        ) from error
    try:
        return _record(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RuntimeFolderError(
            f"{paths.connection_file} is not a connection file ({error}): remove it"
        ) from error


def _read_file(path: Path) -> bytes:
    # What is there can be anything: a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", os.fspath(path))
        return os.read(descriptor, _MAX_RECORD)
    finally:
        os.close(descriptor)


def _record(values: object) -> ConnectionRecord:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    known: dict[str, Any] = {}
    for name, kind in ConnectionRecord.__annotations__.items():
        value = values.get(name, ConnectionRecord._field_defaults.get(name))
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r}")
        known[name] = value
    if not 0 < known["pid"] < _MOST_PIDS:
        raise ValueError(f"pid is {known['pid']}")
    return ConnectionRecord(**known)


def lock_is_held(paths: InstancePaths) -> bool:
    """Tell whether some process holds the instance's lock.

    Asks with a shared lock for a moment, so ask only when a kernel is believed to run.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RuntimeFolderError(
            f"cannot open {paths.lock}: {error.strerror}; make it readable for you, or remove "
            f"{paths.folder}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def running_record(paths: InstancePaths) -> ConnectionRecord | None:
    """Give the record of a kernel that runs and is ready; None if there is none.

    A leftover of a dead kernel, and a record whose process holds no lock, count as none.
    """
    record = read_record(paths)
    if record is None or not is_running(record) or not lock_is_held(paths):
        return None
    return record


def list_instances(root: Path | None = None) -> list[InstancePaths]:
    """Give every instance whose folder exists and is ours, running or not, by name."""
    root = root or runtime_root()
    found = []
    try:
        folders = sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for folder in folders:
        name = _instance_name(folder)
        if name is not None:
            found.append(InstancePaths(name, folder))
    return sorted(found, key=lambda paths: paths.name)


def _instance_name(folder: Path) -> str | None:
    """Name the instance in a folder; a hashed folder tells its name in its connection file."""
    if not folder.is_dir() or folder.is_symlink():
        return None
    if is_name(folder.name):
        return folder.name
    try:
        record = read_record(InstancePaths("", folder))
    except RuntimeFolderError:
        return None
    if record is None or digest(record.name) != folder.name:
        return None
    return record.name
