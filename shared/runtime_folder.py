"""Where the instances of this user live on disk: runtime folder, names, paths, ownership.

The runtime folder is `$XDG_RUNTIME_DIR/softhca`, else `/tmp/softhca-UID`; each instance has a
folder in it, named after it. Both are ours alone (0700), or nothing is touched. Socket paths stay
within 100 bytes: what would be longer is replaced by a hash, by the same rule on both sides.

Spec: XDG Base Directory; unix(7), sun_path; docs/limits.md.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_INSTANCE: Final = "default"

_MAX_SOCKET_PATH: Final = 100
_MAX_NAME: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASH: Final = 16
_ANY_DIGEST: Final = "~" + "0" * _HASH
_LIFELINE: Final = "lifeline.sock"
_REQUESTS: Final = "requests.sock"


class RuntimeFolderError(Exception):
    """The runtime folder, an instance name or a connection file cannot be used; one sentence."""


class InstanceNameError(RuntimeFolderError, ValueError):
    """A name that no instance can have; one sentence with the rule."""


class InstancePaths(NamedTuple):
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


def digest(text: str) -> str:
    """Shorten a name to something that no legal name can be."""
    import hashlib  # takes long to import, and few names are too long

    return "~" + hashlib.sha256(os.fsencode(text)).hexdigest()[:_HASH]


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / _LIFELINE)) <= _MAX_SOCKET_PATH


def _fallback_root() -> Path:
    return Path(f"/tmp/softhca-{os.getuid()}")


def runtime_root() -> Path:
    """Give the folder that holds this user's instances; it need not exist yet.

    An XDG_RUNTIME_DIR that names no folder counts as none; one that is somebody else's does not.
    """
    fallback = _fallback_root()
    setting = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(setting)
    try:
        if not base.is_absolute() or not base.is_dir():
            return fallback
        owner = base.stat().st_uid
    except OSError as error:
        raise RuntimeFolderError(
            f"XDG_RUNTIME_DIR={setting} cannot be entered by you (user id {os.getuid()}): "
            f"{error.strerror}; unset it or point it to a folder of yours"
        ) from error
    if owner != os.getuid():
        raise RuntimeFolderError(
            f"XDG_RUNTIME_DIR={setting} belongs to user id {owner}, not to you ({os.getuid()}): "
            "unset it or point it to a folder of yours"
        )
    root = base / "softhca"
    # Even a hashed instance name must fit below it.
    return root if _fits(root / _ANY_DIGEST) else fallback / digest(str(root))


def is_name(text: str) -> bool:
    """Tell whether an instance can have this name."""
    return bool(_NAME.match(text)) and len(text) <= _MAX_NAME


def check_name(name: str) -> str:
    """Return the name if it may name an instance; InstanceNameError says what may."""
    if not is_name(name):
        raise InstanceNameError(
            f"{name!r} cannot name an instance: use up to {_MAX_NAME} letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit"
        )
    return name


def instance_paths(name: str, root: Path | None = None) -> InstancePaths:
    """Give the paths of the instance `name`; pure, and the same on both sides."""
    check_name(name)
    root = root or runtime_root()
    folder = root / name
    return InstancePaths(name, folder if _fits(folder) else root / digest(name))


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


def prepare_root(paths: InstancePaths) -> None:
    """Make the runtime root and check that it is ours; so is the instance's folder, if it is there.

    What a starter does: the folder itself belongs to whoever gets the lock.
    """
    root = paths.folder.parent
    above = [_fallback_root()] if root.parent == _fallback_root() else []
    for folder in (*above, root):
        _make_folder(folder)
    try:
        check_folder(paths.folder)
    except FileNotFoundError:
        _check_writable(root)


def prepare_folder(paths: InstancePaths) -> None:
    """Make the instance's folder and the runtime root above it, and check that they are ours."""
    prepare_root(paths)
    _make_folder(paths.folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise RuntimeFolderError(
            f"cannot make {folder}: {error.strerror}; {_folder_cure(folder.parent, error)}"
        ) from error
    check_folder(folder)


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RuntimeFolderError(
            f"{folder} cannot be written to: run 'chmod 700 {folder}', or set XDG_RUNTIME_DIR to "
            "another folder of yours"
        )


def _folder_cure(folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "make room there, or set XDG_RUNTIME_DIR to a folder elsewhere"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "move away what is in its place"
    return f"make {folder} writable for you, or set XDG_RUNTIME_DIR to another folder of yours"
