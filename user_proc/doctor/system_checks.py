"""What the operating system must allow: each thing is tried as the project uses it.

Spec: memfd_create(2), pidfd_open(2), proc(5), unix(7); docs/private-memory.md.
"""

import array
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from shared.segment import create_segment, map_segment
from user_proc.doctor.check import Check, missing, well
from user_proc.memory.private_memory import open_own_memory

_LENGTH: Final = 1 << 20
_PATTERN: Final = bytes(range(64))
_CHILD_SECONDS: Final = 20.0
_TRACING: Final = Path("/proc/sys/kernel/yama/ptrace_scope")

# Another process turns the bytes around, by the descriptors alone.
_READER: Final = """
import os, sys
memory, maps, address = map(int, sys.argv[1:])
found = os.pread(memory, 64, address)
assert os.pwrite(memory, found[::-1], address) == 64 and os.read(maps, 16)
"""


def check_shared_memory() -> Check:
    """A sealed memfd with all its pages, mapped: the memory kernel and users share."""
    name = "shared memory"
    try:
        descriptor = create_segment("softhca-doctor", _LENGTH)
        try:
            with map_segment(descriptor, _LENGTH) as mapping:
                mapping[-1:] = b"!"
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        return missing(
            name, f"no memfd can be made and mapped: {error}", "allow memfd_create in the sandbox"
        )
    return well(name, "memfds can be made, sealed and mapped; /dev/shm is not used")


def check_pidfd() -> Check:
    """A descriptor that means one process, whoever gets its pid later."""
    try:
        pidfd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(pidfd, 0)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(0)
        finally:
            os.close(pidfd)
    except (OSError, AttributeError) as error:
        return missing(
            "pidfd",
            f"no pidfd can be opened: {error}",
            "use Linux 5.4 or later, and allow pidfd_open and pidfd_send_signal in the sandbox",
        )
    return well("pidfd", "processes can be watched and signalled by pidfd")


def check_private_memory() -> Check:
    """A process reads and writes ours by the two descriptors we hand it, as a kernel does."""
    name = "private memory"
    own = bytearray(_PATTERN)
    pinned = (ctypes.c_char * len(own)).from_buffer(own)
    cure = "mount /proc, and let processes open their own /proc/self/mem in the sandbox"
    try:
        memory = open_own_memory()
    except OSError as error:
        return missing(name, f"{error.filename}: {error.strerror}", cure)
    try:
        passed = [str(memory.memory), str(memory.maps), str(ctypes.addressof(pinned))]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _READER, *passed],
            pass_fds=(memory.memory, memory.maps),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return missing(name, f"no process can be started to try it: {error}", cure)
    finally:
        memory.close()
    if done.returncode != 0 or bytes(own) != _PATTERN[::-1]:
        words = (done.stderr.strip().splitlines() or ["the bytes did not change"])[-1]
        return missing(name, f"another process cannot use /proc/self/mem: {words}", cure)
    return well(name, f"/proc/self/mem works when handed over; {_tracing()}")


def _tracing() -> str:
    try:
        scope = _TRACING.read_text(encoding="ascii").strip()
    except OSError:
        return "tracing is not restricted, and not needed"
    return f"ptrace_scope is {scope}, which does not matter"


def check_sockets() -> Check:
    """Local sockets that keep packets apart, tell who the peer is, and pass descriptors."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            rights = array.array("i", [ours.fileno()])
            ours.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            _, ancillary, _, _ = theirs.recvmsg(
                1, socket.CMSG_SPACE(rights.itemsize), socket.MSG_CMSG_CLOEXEC
            )
            for _, _, data in ancillary:
                os.close(array.array("i", data[: rights.itemsize])[0])
            passed = len(ancillary)
    except OSError as error:
        return missing("sockets", f"local sockets fail: {error}", "allow AF_UNIX in the sandbox")
    if not passed:
        return missing("sockets", "descriptors cannot be passed", "allow SCM_RIGHTS in the sandbox")
    return well("sockets", "local sockets pass packets, credentials and descriptors")
