"""Where an instance lives on disk: runtime folder, paths, connection file, who runs it.

The runtime folder is `$XDG_RUNTIME_DIR/softhca`, else `/tmp/softhca-UID`; each instance has a
folder in it, named after it. Both are ours alone (0700), or nothing is touched. Socket paths stay
within 100 bytes: what would be longer is replaced by a hash, by the same rule on both sides.

The `flock` on the lock file decides who the kernel of a name is. The connection file is written
after both sockets are bound, by rename, and removed at the end: it is the ready signal, and names
the holder by pid, start ticks and boot id, so that a pid used again by a stranger is not mistaken
for a kernel.

Spec: XDG Base Directory; proc(5), stat field 22; flock(2); unix(7), sun_path.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

DEFAULT_INSTANCE: Final = "default"

_MAX_SOCKET_PATH: Final = 100
_MAX_NAME: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASH: Final = 16
_LIFELINE: Final = "lifeline.sock"
_REQUESTS: Final = "requests.sock"
_MAX_RECORD: Final = 16 * 1024


class RuntimeFolderError(Exception):
    """The runtime folder, an instance name or a connection file cannot be used; one sentence."""


@dataclass(frozen=True, slots=True)
class InstancePaths:
    """Every path of one instance."""

    name: str
    folder: Path

    @property
    def lock(self) -> Path:
        """The file whose flock the kernel holds for its life."""
        return self.folder / "lock"

    @property
    def connection_file(self) -> Path:
        """The JSON file that says the kernel is ready."""
        return self.folder / "connection.json"

    @property
    def lifeline(self) -> Path:
        """The SOCK_SEQPACKET socket."""
        return self.folder / _LIFELINE

    @property
    def request_socket(self) -> Path:
        """The path of the ROUTER's socket."""
        return self.folder / _REQUESTS

    @property
    def endpoint(self) -> str:
        """The ROUTER's ZeroMQ endpoint."""
        return f"ipc://{self.request_socket}"

    @property
    def log(self) -> Path:
        """The log file of a kernel started in the background."""
        return self.folder / "kernel.log"


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """The contents of the connection file."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    protocol: int


def _digest(text: str) -> str:
    """Shorten a name to something that no legal name can be."""
    return "~" + hashlib.sha256(os.fsencode(text)).hexdigest()[:_HASH]


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / _LIFELINE)) <= _MAX_SOCKET_PATH


def _fallback_root() -> Path:
    return Path(f"/tmp/softhca-{os.getuid()}")


def runtime_root() -> Path:
    """Give the folder that holds this user's instances; it need not exist yet."""
    fallback = _fallback_root()
    setting = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(setting)
    if not base.is_absolute() or not base.is_dir():
        return fallback
    owner = base.stat().st_uid
    if owner != os.getuid():
        raise RuntimeFolderError(
            f"XDG_RUNTIME_DIR={setting} belongs to user id {owner}, not to you ({os.getuid()}): "
            "unset it or point it to a folder of yours"
        )
    root = base / "softhca"
    # Even a hashed instance name must fit below it.
    return root if _fits(root / _digest("")) else fallback / _digest(str(root))


def check_name(name: str) -> str:
    """Return the name if it may name an instance; RuntimeFolderError says what may."""
    if not _NAME.match(name) or len(name) > _MAX_NAME:
        raise RuntimeFolderError(
            f"{name!r} cannot name an instance: use up to {_MAX_NAME} letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit"
        )
    return name


def instance_paths(name: str, root: Path | None = None) -> InstancePaths:
    """Give the paths of the instance `name`; pure, and the same on both sides."""
    check_name(name)
    root = root or runtime_root()
    folder = root / name
    return InstancePaths(name, folder if _fits(folder) else root / _digest(name))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a real directory, ours, and closed to all others."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RuntimeFolderError(f"{folder} is not a folder: move it away")
    if status.st_uid != os.getuid():
        raise RuntimeFolderError(
            f"{folder} belongs to user id {status.st_uid}, not to you ({os.getuid()}): "
            "set XDG_RUNTIME_DIR to a folder of yours"
        )
    if status.st_mode & 0o077:
        raise RuntimeFolderError(f"{folder} is open to other users: run 'chmod 700 {folder}'")


def prepare_folder(paths: InstancePaths) -> None:
    """Make the instance's folder and the runtime root above it, and check that they are ours."""
    root = paths.folder.parent
    above = [_fallback_root()] if root.parent == _fallback_root() else []
    for folder in (*above, root, paths.folder):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RuntimeFolderError(f"cannot make {folder}: {error.strerror}") from error
        check_folder(folder)


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


def own_record(name: str, protocol: int) -> ConnectionRecord:
    """Describe the calling process as the kernel of `name`."""
    ticks = process_start_ticks(os.getpid())
    if ticks is None:
        raise RuntimeFolderError("/proc is not mounted: the start time of a process is needed")
    return ConnectionRecord(name, os.getpid(), ticks, boot_id(), protocol)


def write_record(paths: InstancePaths, record: ConnectionRecord) -> None:
    """Publish the record in one step: readers see all of it or nothing."""
    temporary = paths.folder / f"connection.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
    temporary.rename(paths.connection_file)


def remove_record(paths: InstancePaths) -> None:
    """Withdraw the ready signal."""
    paths.connection_file.unlink(missing_ok=True)


def read_record(paths: InstancePaths) -> ConnectionRecord | None:
    """Read the connection file; None if there is none, RuntimeFolderError if it is not one."""
    try:
        check_folder(paths.folder)
        with open(paths.connection_file, "rb") as file:
            text = file.read(_MAX_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RuntimeFolderError(f"cannot read {error.filename}: {error.strerror}") from error
    try:
        return _record(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RuntimeFolderError(
            f"{paths.connection_file} is not a connection file ({error}): remove it"
        ) from error


def _record(values: object) -> ConnectionRecord:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    for field in fields(ConnectionRecord):
        value = values.get(field.name)
        if type(value) is not field.type:
            raise ValueError(f"{field.name} is {value!r}")
    return ConnectionRecord(**{f.name: values[f.name] for f in fields(ConnectionRecord)})


def lock_is_held(paths: InstancePaths) -> bool:
    """Tell whether some process holds the instance's lock.

    Asks with a shared lock for a moment, so ask only when a kernel is believed to run.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
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
    if _NAME.match(folder.name):
        return folder.name
    try:
        record = read_record(InstancePaths("", folder))
    except RuntimeFolderError:
        return None
    if record is None or _digest(record.name) != folder.name:
        return None
    return record.name
