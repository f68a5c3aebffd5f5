"""The HCA's process: executed, and the ends of what joins it to the kernel.

Its command line names the kernel it belongs to, so that one without its kernel is known as such.
It inherits one end of the control socket and, as its standard error, a pipe the kernel reads;
every other descriptor of the kernel is closed for it. It runs in a process group of its own, so
that a Ctrl-C is the kernel's alone; the end of the socket is its end.

Rules: main OS thread; imports next to nothing, since the kernel starts it before all else.
Spec: posix_spawn(3), pidfd_open(2), unix(7); kernel_proc/hca_abi/device_packets.py.
"""

import os
import socket
import sys
from typing import Final

from shared.stray_devices import HCA_MODULE, KERNEL_OPTION

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_STANDARD: Final = 3  # descriptors below are the standard ones


class HcaChild:
    """A running HCA process; whoever has this reaps it by the pidfd."""

    __slots__ = ("control", "output", "pid", "pidfd")

    def __init__(self, pid: int, pidfd: int, control: socket.socket, output: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.control = control
        self.output = output

    def end(self) -> None:
        """End and reap a process nobody has spoken to; it may wait a moment for that."""
        self.control.close()
        os.close(self.output)
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)


def spawn_hca() -> HcaChild:
    """Execute the HCA; OSError if the system refuses."""
    _close_on_exec()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        try:
            theirs.set_inheritable(True)
            os.set_blocking(writer, True)
            pid = _execute(theirs.fileno(), writer)
        finally:
            theirs.close()
            os.close(writer)
        ours.setblocking(False)
        return HcaChild(pid, os.pidfd_open(pid), ours, output)
    except BaseException:
        ours.close()
        os.close(output)
        raise


def _execute(control: int, output: int) -> int:
    arguments = [sys.executable, "-P", "-m", HCA_MODULE, "--control-fd", str(control)]
    arguments += [KERNEL_OPTION, str(os.getpid())]
    path = os.environ.get("PYTHONPATH")  # so that it finds the very packages used here
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else _ROOT}
    return os.posix_spawn(
        sys.executable,
        arguments,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setpgroup=0,
        setsigmask=[],
    )


def _close_on_exec() -> None:
    """Keep what the kernel's own starter left open, and all else, from the child."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor >= _STANDARD:
            try:
                os.set_inheritable(descriptor, False)
            except OSError:  # the one the folder was listed with
                continue
