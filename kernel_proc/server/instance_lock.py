"""Who is the kernel of a name: the flock on the instance's lock file, and what its holder may do.

Only the holder removes what a dead kernel left behind, and of sockets only those that refuse
connection. An ordinary file where a socket belongs is somebody's mistake and stays.

Spec: flock(2); unix(7).
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Final

from kernel_proc.server.recovery import cleared_sentence, remove_half_written
from shared.connection_file import (
    InstancePaths,
    RuntimeFolderError,
    check_folder,
    instance_paths,
    prepare_folder,
    remove_record,
)
from shared.stray_devices import end_stray_devices

_LONGEST_PID: Final = 32
_ATTEMPTS: Final = 1000  # each loses against somebody who is in the folder for a moment only


class InstanceLock:
    """The right to be the kernel of one name; held until `release` or the end of the process."""

    def __init__(self, name: str) -> None:
        self.paths: InstancePaths = instance_paths(name)
        self.cleared = ""  # what a former kernel of the name had left, as a sentence
        self._descriptor = -1

    @property
    def state_path(self) -> Path:
        """The file a kernel writes its state to when it is asked to."""
        return self.paths.folder / "state.json"

    def acquire(self) -> None:
        """Take the lock and clear what is stale; RuntimeFolderError says why not."""
        for _ in range(_ATTEMPTS):
            prepare_folder(self.paths)
            if self._try_lock():
                break
            os.sched_yield()
        else:
            raise RuntimeFolderError(f"{self.paths.lock} cannot be locked: others keep asking")
        try:
            self.cleared = self._clear_leftovers()
            self._write_pid()
        except BaseException as error:
            self._give_up()
            if isinstance(error, OSError):
                what = (
                    f"{error.filename} is in the way ({error.strerror}): remove it"
                    if error.filename
                    else f"cannot write {self.paths.lock}: {error.strerror}"
                )
                raise RuntimeFolderError(what) from error
            raise

    def _clear_leftovers(self) -> str:
        paths = self.paths
        former = os.pread(self._descriptor, _LONGEST_PID, 0).decode("ascii", "replace").strip()
        found = [path.name for path in (paths.connection_file, *_sockets(paths)) if path.exists()]
        remove_record(paths)
        for path in _sockets(paths):
            _remove_stale_socket(path)
        found += remove_half_written(paths.folder, self.state_path)
        strays = end_stray_devices() if former or found else []
        return cleared_sentence(former, found, strays)

    def _give_up(self) -> None:
        # Whatever is in the way stays, and then the folder does.
        with contextlib.suppress(OSError):
            self.paths.lock.unlink()
            self.paths.folder.rmdir()
        os.close(self._descriptor)
        self._descriptor = -1

    def release(self, with_log: bool = False) -> None:
        """Remove every file of the instance, the folder too if nothing else is in it.

        A log that nobody needs goes too, `with_log`. If the folder was removed meanwhile, what is
        there now is another kernel's.
        """
        if self._descriptor < 0:
            return
        if self._is_in_place():
            self._remove_files(with_log)
        os.close(self._descriptor)
        self._descriptor = -1

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.paths.lock.lstat())
        except OSError:
            return False

    def _remove_files(self, with_log: bool) -> None:
        paths = self.paths
        own = [paths.connection_file, self.state_path, *_sockets(paths)]
        if with_log:
            own.append(paths.log)
        for path in (*own, paths.lock):
            with contextlib.suppress(OSError):  # somebody else's doing
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a log that stays keeps its folder
            paths.folder.rmdir()

    def _try_lock(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.paths.lock, flags, 0o600)
        except FileNotFoundError:  # a kernel that stops has just removed the folder
            return False
        except OSError as error:
            raise RuntimeFolderError(
                f"cannot open {self.paths.lock}: {error.strerror}; make {self.paths.folder} "
                "writable for you, or remove it"
            ) from error
        try:
            locked = self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if locked:
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return locked

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former holder may have removed the file between our open and our lock.
            return os.path.samestat(os.fstat(descriptor), self.paths.lock.lstat())
        except FileNotFoundError:
            return False
        except BlockingIOError:
            pass
        # Somebody who asks whether a kernel runs shares the lock for a moment; a kernel does not.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeFolderError(
                f"a kernel named {self.paths.name!r} is running already ({self._holder()}): stop "
                f"it with 'softhca kernel stop --name {self.paths.name}', or use another --name"
            ) from None
        return False

    def _write_pid(self) -> None:
        # For people who look; the lock is the truth.
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _holder(self) -> str:
        try:
            check_folder(self.paths.folder)
            return f"process {int(self.paths.lock.read_text(encoding='ascii'))}"
        except (OSError, ValueError, RuntimeFolderError):
            return "it is just starting or stopping"


def _sockets(paths: InstancePaths) -> tuple[Path, ...]:
    return paths.lifeline, paths.request_socket


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise RuntimeFolderError(f"{path} is in the way and is no socket: move it away")
    if _somebody_answers(path):
        raise RuntimeFolderError(
            f"somebody who is not the kernel of this name listens at {path}: stop that process"
        )
    path.unlink(missing_ok=True)


def _somebody_answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            # A live socket of another type says EPROTOTYPE, a full backlog EAGAIN.
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True
