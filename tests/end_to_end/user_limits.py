"""A program that opens the device, and makes things, with less and less that it may still get.

It says one line for each number of descriptors, then of threads: how it went, and what it kept.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable

from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError

MOST = 40
_start = threading._start_new_thread  # type: ignore[attr-defined]


def use(kernel: str) -> None:
    """What every program does; all at once, since a failure must leave nothing of any of it."""
    with (
        Context(name="mthca0", kernel=kernel) as context,
        PD(context) as pd,
        MR(pd, 4096, 1) as mr,
        CQ(context, 16),
    ):
        mr.write(b"x", 1)


def descriptors() -> set[int]:
    """Return those that are open."""
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }


def attempt(kernel: str) -> str:
    """Return what became of it; anything but a refusal ends the program."""
    try:
        use(kernel)
    except PyverbsError as error:
        return f"refused {error}"
    return "done"


def with_descriptors(count: int, routine: Callable[[], str]) -> str:
    """Leave so many that can still be had."""
    taken = descriptors()
    limit = 0
    while count or limit in taken:
        count -= limit not in taken
        limit += 1
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        return routine()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def with_threads(count: int, routine: Callable[[], str]) -> str:
    """Leave so many threads that can still be started."""
    left = [None] * count

    def start(*arguments: object) -> object:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        return _start(*arguments)

    threading._start_new_thread = start  # type: ignore[attr-defined]
    try:
        return routine()
    finally:
        threading._start_new_thread = _start  # type: ignore[attr-defined]


def main() -> None:
    """Go on until all goes well."""
    kernel = sys.argv[1]
    use(kernel)  # what stays for good is there
    kept = descriptors()
    for name, leave in (("descriptors", with_descriptors), ("threads", with_threads)):
        for count in range(MOST):
            said = leave(count, lambda: attempt(kernel))
            print(name, count, len(descriptors() - kept), said, flush=True)
            if said == "done":
                break


if __name__ == "__main__":
    main()
