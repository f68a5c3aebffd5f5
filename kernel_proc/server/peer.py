"""Who is at the other end of a lifeline, and whether the descriptors it hands over are its own.

Rules: nothing here waits but `check_memory_descriptors`, whose descriptors can be anything.
Spec: unix(7) SO_PEERCRED, SO_PEERPIDFD; pidfd_open(2); proc(5).
"""

import errno
import fcntl
import os
import re
import select
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from kernel_proc.server.packet import NO_DESCRIPTORS_LEFT
from shared.connection_file import process_start_ticks
from shared.nt_status import STATUS_ACCESS_DENIED, STATUS_INSUFFICIENT_RESOURCES

_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERPIDFD: Final = 77  # Linux 6.5; older systems answer ENOPROTOOPT
_ACCESS_NAMES: Final = {
    os.O_RDONLY: "read only",
    os.O_WRONLY: "write only",
    os.O_RDWR: "read-write",
}


class PeerRefused(Exception):
    """The peer is not who may enter, or handed over what it should not; the text says why.

    Or the kernel lacks what it takes to find out: then the status is not STATUS_ACCESS_DENIED.
    """

    def __init__(self, reason: str, status: int = STATUS_ACCESS_DENIED) -> None:
        super().__init__(reason)
        self.status: Final = status


class Peer(NamedTuple):
    """A process at the time it connected: the pidfd stays with it whoever gets its pid later.

    `stack` is where its stack begins, which is another place in every program it runs.
    """

    pid: int
    start_ticks: int
    pidfd: int
    stack: int = 0

    def is_alive(self) -> bool:
        """Tell whether the process has not ended yet."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return not poller.poll(0)

    def runs_another_program(self) -> bool:
        """Tell whether the process has replaced itself by exec, as far as that can be seen."""
        return bool(self.stack) and process_stack(self.pid) not in (self.stack, 0)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self.pidfd)


def identify(connection: socket.socket) -> Peer:
    """Return the process that connected; refuse other users' processes."""
    size = _CREDENTIALS.size
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise PeerRefused(f"user {uid} may not use the kernel of user {os.geteuid()}")
    if pid <= 0:
        raise PeerRefused("the process belongs to a pid namespace this kernel cannot see")
    pidfd = _peer_pidfd(connection, pid)
    try:
        ticks = process_start_ticks(pid)
        peer = Peer(pid, ticks or 0, pidfd, process_stack(pid))
        if not peer.is_alive():
            raise PeerRefused(f"process {pid} has ended")
        if ticks is None:
            raise PeerRefused(NO_DESCRIPTORS_LEFT, STATUS_INSUFFICIENT_RESOURCES)
    except BaseException:
        os.close(pidfd)
        raise
    return peer


def process_stack(pid: int) -> int:
    """Give the address where the stack of a process begins; 0 if it is not told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[25])  # field 28, counted after the command name


def _peer_pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # An older system. The pid may be a stranger's by now, but a stranger does not hold the
        # other end: the memory descriptor of the Hello must belong to the same pid and be alive.
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise PeerRefused(NO_DESCRIPTORS_LEFT, STATUS_INSUFFICIENT_RESOURCES) from error
            raise PeerRefused(f"process {pid} cannot be watched: {error.strerror}") from error


def check_memory_descriptors(pid: int, memory: int, maps: int) -> None:
    """Refuse unless the two are /proc/PID/mem (read-write) and /proc/PID/maps of `pid` itself.

    A process can open the memory of any process it may trace; taking such a descriptor from it
    would let it reach a third party through the kernel.
    """
    try:
        _check_proc_file(pid, memory, "mem", os.O_RDWR)
        _check_proc_file(pid, maps, "maps", os.O_RDONLY)
    except OSError as error:
        raise PeerRefused(f"a descriptor cannot be examined: {error.strerror}") from error


def _check_proc_file(pid: int, descriptor: int, name: str, access: int) -> None:
    link = os.readlink(f"/proc/self/fd/{descriptor}")
    match = re.fullmatch(r"/proc/([0-9]+)/" + name, link)
    # The name alone could be that of an ordinary file in somebody's /proc-like folder.
    if match is None or os.fstat(descriptor).st_dev != os.stat("/proc").st_dev:
        raise PeerRefused(f"{link!r} was handed over where /proc/self/{name} was expected")
    if int(match[1]) != pid:
        raise PeerRefused(f"process {pid} handed over the memory of process {match[1]}")
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    if mode != access:
        raise PeerRefused(f"{link} was opened {_ACCESS_NAMES.get(mode, mode)}")
