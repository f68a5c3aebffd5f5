"""The kernel a tool works on: one that runs under the name, else one of the server's own.

A kernel the server starts is bound to it, so that it ends with the server whatever ends that. The
client never starts one: it joins the server's, by the name the server tells it. What a kernel that
failed has left, its log, is kept.

Rules: main thread.
"""

import contextlib
from collections.abc import Iterator

from user_proc.errors import KernelNotRunning, KernelStartFailed
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel


@contextlib.contextmanager
def kernel_for_server(name: str) -> Iterator[bool]:
    """See to it that a kernel runs under the name; tell whether it was started for this."""
    if _runs(name):
        yield False
        return
    try:
        kernel = start_kernel(name)
    except KernelStartFailed:
        if not _runs(name):
            raise
        yield False  # somebody else was faster
        return
    with kernel:
        yield True


def _runs(name: str) -> bool:
    try:
        UserProcess.connect(name).close()
    except KernelNotRunning:
        return False
    return True
