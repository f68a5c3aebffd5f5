"""Steps about the process itself: a fork, and the ways in which it ends without a word.

Rules: a child of a fork uses nothing of its parent's but to see that it is refused, and ends.
"""

import os
import select
import signal
from typing import Final, NoReturn, Protocol

from user_proc.stress.client_world import World
from user_proc.stress.findings import HANG, WRONG, Finding
from user_proc.verbs.pyverbs_error import PyverbsUserError

_CHILD_SECONDS: Final = 20.0
_REFUSED: Final = 0
_ALLOWED: Final = 7


class Leaver(Protocol):
    """Tells whoever watches that the process will end on purpose."""

    def leaving(self, how: str) -> None:
        """Tell it."""


def fork(world: World) -> None:
    """Fork a child that tries to use what it inherited, and see that it could not."""
    pid = os.fork()
    if not pid:
        code = _ALLOWED
        try:
            world.context.query_port(1)
        except PyverbsUserError:
            code = _REFUSED
        finally:
            os._exit(code)
    code = _wait_for(pid)
    if code != _REFUSED:
        raise Finding(WRONG, f"a forked child that used the context ended with {code}")
    world.call("query_port", lambda: world.context.query_port(1))


def _wait_for(pid: int) -> int:
    descriptor = os.pidfd_open(pid)
    try:
        ended = select.select([descriptor], [], [], _CHILD_SECONDS)[0]
        if not ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(descriptor)
    if not ended:
        raise Finding(HANG, f"a forked child did not end in {_CHILD_SECONDS:g} s")
    return code


def leave(leaver: Leaver, how: str) -> NoReturn:
    """End the process by `exit` or `kill`, or be another program (`exec`), with work out."""
    leaver.leaving(how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exec":
        os.execv("/bin/sh", ["sh", "-c", "exit 0"])
    os._exit(0)
