"""A process held by its pidfd: wait for its end, bring it about, take its exit code.

Rules: any thread. A pidfd never means another process, whoever gets the pid later.
Spec: pidfd_send_signal(2), waitid(2) P_PIDFD.
"""

import contextlib
import os
import select
import signal
from typing import Final

_KILL_SECONDS: Final = 5.0


def has_ended(pidfd: int, timeout: float = 0.0) -> bool:
    """Wait up to `timeout` seconds for the end of a process."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, round(timeout * 1000))))


def end_process(pidfd: int, timeout: float) -> bool:
    """Ask a process to end, wait, then force it; True if it needed no force."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    if has_ended(pidfd, timeout):
        return True
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    has_ended(pidfd, _KILL_SECONDS)
    return False


def reap(pidfd: int) -> int | None:
    """Take the exit code of a child that has ended, minus the signal if one ended it.

    None if it has not ended or is no child of ours.
    """
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
