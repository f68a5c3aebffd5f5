"""HCA processes whose kernel has gone: found, and ended.

An HCA ends with its kernel: by the signal it asked for, and at the end of its control socket. One
that is there all the same belongs to nobody. It is known by its command line, which names the
kernel's pid, by its parent, which is another, and by its namespace: pids of another mean others.
One that was started with another XDG_RUNTIME_DIR is left to whoever looks after that.

Rules: any thread. In doubt a process is none of ours.
Spec: proc(5) cmdline, status, ns/pid; pidfd_open(2); PR_SET_PDEATHSIG of prctl(2).
"""

import contextlib
import os
import select
import signal
from typing import Final

HCA_MODULE: Final = "kernel_proc.hca"
KERNEL_OPTION: Final = "--kernel"

_FOLDER: Final = b"XDG_RUNTIME_DIR="
_END_MS: Final = 2000


def stray_devices() -> list[int]:
    """Return the pids of this user's HCA processes whose kernel is not their parent any more."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and _is_stray(name))


def end_stray_devices() -> list[int]:
    """End them by force; return the pids of those that were ended."""
    return [pid for pid in stray_devices() if _end(pid)]


def _end(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _is_stray(str(pid)):  # the pid may be another's by now, the pidfd is not
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(_END_MS))
    finally:
        os.close(pidfd)


def _is_stray(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            kernel = _kernel_of(file.read().split(b"\0"))
        if kernel is None or os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
            return False
        return _runtime_folder(pid) == _own_runtime_folder() and (
            _parent_of(pid) not in (kernel, None)
        )
    except OSError:  # it has ended, or may not be looked at
        return False


def _kernel_of(words: list[bytes]) -> int | None:
    """Return the kernel that an HCA's command line names; None for another program's."""
    module, option = HCA_MODULE.encode(), KERNEL_OPTION.encode()
    if module not in words or words[words.index(module) - 1] != b"-m":
        return None
    names = words[words.index(module) :]
    if option not in names:
        return None
    value = b"".join(names[names.index(option) + 1 :][:1])
    return int(value) if value.isdigit() else None


def _runtime_folder(pid: str) -> bytes:
    """Return the setting a process was started with; empty without one."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        settings = file.read().split(b"\0")
    return next((one[len(_FOLDER) :] for one in settings if one.startswith(_FOLDER)), b"")


def _own_runtime_folder() -> bytes:
    return os.fsencode(os.environ.get("XDG_RUNTIME_DIR", ""))


def _parent_of(pid: str) -> int | None:
    """Return the parent; None for one that has ended and was not reaped."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        state, parent = file.read().rpartition(")")[2].split()[:2]
    return None if state in ("Z", "X") else int(parent)
