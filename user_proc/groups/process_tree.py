"""The processes below one, those of a session, and how all of them are ended.

A process is looked up, held by a pidfd, and looked up again before it gets a signal, so that a
number used again by a stranger is never hit.

Rules: any thread; Linux.
Spec: proc(5) stat; pidfd_open(2); prctl(2) PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_MOST_ROUNDS: Final = 200
_FIELDS: Final = 20

_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent's thread ends; end it if that has happened."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper(wanted: bool = True) -> bool:
    """Take in, or no longer, who loses its parent below this process; return what was before."""
    before = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(before.value)


class ProcessEntry(NamedTuple):
    """A process that has not ended."""

    pid: int
    parent: int
    session: int
    start_ticks: int


def read_entry(pid: int) -> ProcessEntry | None:
    """Return what there is under a number; None for nothing, or for one that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < _FIELDS or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1):
        return None  # a dead first thread with living ones behind it is a process that lives
    return ProcessEntry(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def all_entries() -> list[ProcessEntry]:
    """Return every process that has not ended."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [entry for entry in map(read_entry, numbers) if entry is not None]


def descendants(ancestor: int) -> list[ProcessEntry]:
    """Return the processes below one."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in all_entries():
        children.setdefault(entry.parent, []).append(entry)
    found: list[ProcessEntry] = []
    ways = [ancestor]
    while ways:
        below = children.pop(ways.pop(), [])
        found += below
        ways += [entry.pid for entry in below]
    return found


def session_members(sessions: Iterable[int]) -> list[ProcessEntry]:
    """Return the processes of these sessions."""
    wanted = set(sessions)
    return [entry for entry in all_entries() if entry.session in wanted]


def send_signal(entry: ProcessEntry, number: int) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(entry.pid)
        try:
            found = read_entry(entry.pid)
            if found is not None and found.start_ticks == entry.start_ticks:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def kill_all(
    look: Callable[[], list[ProcessEntry]], between: Callable[[], object] | None = None
) -> list[ProcessEntry]:
    """Kill what `look` finds, again and again, until it finds nothing; return what it was.

    They are stopped first, so that none forks while the others are found.
    """
    killed: dict[tuple[int, int], ProcessEntry] = {}
    for _ in range(_MOST_ROUNDS):
        entries = look()
        if not entries:
            break
        fresh = [one for one in entries if (one.pid, one.start_ticks) not in killed]
        for entry in fresh:
            send_signal(entry, signal.SIGSTOP)
        for entry in entries:
            send_signal(entry, signal.SIGKILL)
            killed[entry.pid, entry.start_ticks] = entry
        if between is not None:
            between()
        os.sched_yield()
    return list(killed.values())


def kill_sessions(sessions: Iterable[int]) -> list[ProcessEntry]:
    """Kill every process of these sessions; return which it were."""
    wanted = list(sessions)
    return kill_all(lambda: session_members(wanted))
