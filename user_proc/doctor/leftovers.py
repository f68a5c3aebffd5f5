"""What is left of kernels that have ended: their folders, HCA processes, and processes lost.

Only what belongs to no living kernel is ever removed. A folder is emptied by the holder of its
lock, as a start of that name would be; of its contents the files that kernels make, and nothing
else. A kernel whose folder was taken away lives, so it is told and left alone.

Rules: any thread.
Spec: docs/doctor.md; docs/the-door.md; flock(2).
"""

import contextlib
import fcntl
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from shared.connection_file import InstancePaths, lock_is_held, runtime_root
from shared.runtime_folder import RuntimeFolderError, check_folder
from shared.stray_devices import end_stray_devices, stray_devices
from user_proc.doctor.check import Check, short, well
from user_proc.transport.kernel_control import folder_errors
from user_proc.transport.watched_process import has_ended

_MADE_BY_KERNELS: Final = re.compile(
    r"lock|connection\.json|connection\.\d+\.tmp|state\.(json|tmp)|kernel\.log(\.bugcheck\.json)?"
)
_STOP_SECONDS: Final = 0.3  # for the rest of a stop, whose last step removes the lock
_DELETED: Final = "/lock (deleted)"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Folders of kernels that do not run, foreign things beside them, and processes."""

    folders: tuple[Path, ...]
    foreign: tuple[Path, ...]
    devices: tuple[int, ...]
    lost: tuple[int, ...]

    def check(self) -> Check:
        """Say what is left, and how it goes away."""
        parts, cures = [], []
        if self.folders:
            parts.append(f"folders of kernels that ended: {_names(self.folders)}")
        if self.devices:
            parts.append(f"HCA processes without a kernel: {_pids(self.devices)}")
        if parts:
            cures.append("'softhca doctor --clean' removes what dead kernels left")
        if self.foreign:
            parts.append(f"no files of kernels: {', '.join(map(str, self.foreign))}")
            cures.append("move away the files that are no kernel's")
        if self.lost:
            parts.append(f"kernels whose folder was removed: {_pids(self.lost)}")
            cures.append(f"'kill {' '.join(map(str, self.lost))}' stops the lost kernels in order")
        if not parts:
            return well("leftovers", "nothing is left of kernels that have ended")
        return short("leftovers", "; ".join(parts), ", and ".join(cures))


def _names(folders: tuple[Path, ...]) -> str:
    return ", ".join(folder.name for folder in folders)


def _pids(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids))


def find_leftovers() -> Leftovers:
    """Look through the runtime folder and the processes of this user."""
    folders, foreign = [], []
    with folder_errors():
        for path in _entries(runtime_root()):
            if not _is_folder(path):
                foreign.append(path)
            elif not lock_is_held(InstancePaths("", path)):
                folders.append(path)
                foreign += [entry for entry in _entries(path) if not _is_kernels(entry)]
    return Leftovers(tuple(folders), tuple(foreign), tuple(stray_devices()), tuple(_lost()))


def clean() -> list[str]:
    """Remove what dead kernels left, and only that; say each thing that was removed."""
    removed: list[str] = []
    with folder_errors():
        for path in _entries(runtime_root()):
            if _is_folder(path):
                removed += _empty(InstancePaths("", path))
    removed += [f"HCA process {pid}" for pid in end_stray_devices()]
    return removed


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(path: Path) -> bool:
    """Tell whether a kernel of ours can have made it."""
    try:
        check_folder(path)
    except (OSError, RuntimeFolderError):
        return False
    return True


def _is_kernels(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISSOCK(mode):
        return path.suffix == ".sock"
    return stat.S_ISREG(mode) and _MADE_BY_KERNELS.fullmatch(path.name) is not None


def _empty(paths: InstancePaths) -> Iterator[str]:
    """Remove a dead kernel's files while its name is ours; its folder too, if that is all."""
    with contextlib.ExitStack() as stack:
        if not _take_lock(paths, stack):
            return
        for path in _entries(paths.folder):
            if path != paths.lock and _is_kernels(path):
                path.unlink(missing_ok=True)
                yield str(path)
        paths.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what is no kernel's stays, and the folder with it
            paths.folder.rmdir()
            yield str(paths.folder)


def _take_lock(paths: InstancePaths, stack: contextlib.ExitStack) -> bool:
    """Be the only one who may be the kernel of a name; False if somebody is, or asks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(paths.lock, flags, 0o600)
    except FileNotFoundError:  # it has just been removed
        return False
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), paths.lock.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _lost() -> list[int]:
    """Return the kernels of this user whose lock file is gone, and who do not just end."""
    return sorted(pid for pid in _kernel_pids() if _has_lost_its_lock(pid) and _stays(pid))


def _stays(pid: int) -> bool:
    """Tell whether a process is there for longer than a stop takes once the lock is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not has_ended(pidfd, _STOP_SECONDS) and _has_lost_its_lock(pid)
    finally:
        os.close(pidfd)


def _kernel_pids() -> Iterator[int]:
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or (), process.info["uids"]
        is_kernel = ("-m", "kernel_proc") in itertools.pairwise(words)
        if is_kernel and uids is not None and uids.real == os.getuid():
            yield process.pid


def _has_lost_its_lock(pid: int) -> bool:
    folder = Path(f"/proc/{pid}/fd")
    try:
        links = [os.readlink(entry) for entry in folder.iterdir()]
    except OSError:  # it has ended, or may not be looked at
        return False
    root = f"{runtime_root()}/"  # that of another folder is told by whoever looks there
    return any(link.startswith(root) and link.endswith(_DELETED) for link in links)
