"""Run a command that lasts no longer than its caller: `_bounded.py CALLER COMMAND ARGUMENTS...`.

The command gets a process group of its own, so that Ctrl-C reaches only this process, which ends
the whole group, and nobody prints a traceback. The exit code is the command's, as a shell says it.

Rules: the kernel tells this process of its caller's end, however that came (SIGTERM), and the
    command of this process's (SIGKILL). Descriptors are passed on: one of them may be a lock.
Spec: PR_SET_PDEATHSIG in prctl(2).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WATCHED = (*ENDING, signal.SIGCHLD)
LEAVE_SECONDS = 5.0

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def end_with_parent(number: int, parent: int) -> None:
    """Have the signal sent to this process when its parent ends; now, if it has ended already."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def start(command: list[str]) -> "subprocess.Popen[bytes]":
    """Start the command in a group of its own."""
    this = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        end_with_parent(signal.SIGKILL, this)

    return subprocess.Popen(command, process_group=0, close_fds=False, preexec_fn=prepare)


def has_ended(child: "subprocess.Popen[bytes]") -> bool:
    """Tell whether it has ended, and leave it unreaped: so its group's number stays its own."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(child: "subprocess.Popen[bytes]") -> None:
    """End the group: in order, while its first process takes no longer than the time given."""
    deadline = time.monotonic() + LEAVE_SECONDS
    os.killpg(child.pid, signal.SIGTERM)
    while not has_ended(child) and (left := deadline - time.monotonic()) > 0:
        signal.sigtimedwait([signal.SIGCHLD], left)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main(caller: int, command: list[str]) -> int:
    """Run the command to its end, or until a signal comes."""
    for number in WATCHED:  # not ignored, as a shell has it for what runs in the background
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    end_with_parent(signal.SIGTERM, caller)
    child = start(command)
    while not has_ended(child):
        came = signal.sigwait(WATCHED)
        if came in ENDING:
            end(child)
            return 128 + came
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
