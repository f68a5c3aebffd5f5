"""Each step of the door that takes a descriptor, in a kernel that has none left at that step.

The limit of the running kernel is lowered so that a given number of descriptors can still be had,
from none to as many as the whole way takes.
"""

import contextlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES
from tests.end_to_end.conftest import END_SECONDS, wait_until
from user_proc.errors import KernelRefused
from user_proc.process import UserProcess
from user_proc.transport.lifeline_channel import OpenedDoorbells

pytestmark = pytest.mark.processes

ENOUGH = 12  # more than any way of these takes
ARENA = 1 << 20


def open_in(pid: int) -> set[int]:
    return {int(number) for number in os.listdir(f"/proc/{pid}/fd")}


@contextlib.contextmanager
def left_with(pid: int, count: int) -> Iterator[None]:
    """Leave a process `count` descriptors that it can still get."""
    taken = open_in(pid)
    limit = 0
    while count or limit in taken:
        count -= limit not in taken
        limit += 1
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.fixture
def kernel(start: Callable[..., Any]) -> Any:
    """A kernel that has served somebody before: what is made at first use is there."""
    kernel = start("--verifier")
    kernel.state()  # by now it has closed what it told by that it is ready
    before = open_in(kernel.process.pid)
    with UserProcess.connect(kernel.name) as process:
        process._lifeline.open_doorbells()
    wait_until(lambda: open_in(kernel.process.pid) == before)  # the lanes have closed all
    return kernel


def needed(kernel: Any, least: int, step: Callable[[Any], Any], *, inside: bool) -> int:
    """Take a step with ever more descriptors until it succeeds; return with how many it did.

    What fails before is refused in words that say what is missing, and leaves nothing open; the
    process it failed for is served. A step from `inside` has a session to begin with.
    """
    pid = kernel.process.pid
    before = open_in(pid)
    for count in range(least, ENOUGH):
        process = UserProcess.connect(kernel.name) if inside else None
        if process is not None:
            assert process.echo(b"x") == b"x"
        result: Any = None
        with left_with(pid, count):
            try:
                result = step(process)
            except KernelRefused as error:
                refused = error
        if result is None:
            assert refused.status == STATUS_INSUFFICIENT_RESOURCES
            assert re.search("no descriptors left|Too many open files", refused.reason)
        for one in (process, result):
            if isinstance(one, UserProcess):
                assert one.echo(b"x") == b"x"
                one.close()
        wait_until(lambda: open_in(pid) == before)
        if result is not None:
            return count
    raise AssertionError(f"{ENOUGH} descriptors do not suffice")


def test_who_connects_is_let_in_or_told_why_not(kernel: Any):
    # The connection, a pidfd, the file of its start time or the lane's eventfd, two of the Hello;
    # both ends of its completions, and what tells of room there.
    assert needed(kernel, 1, lambda _: UserProcess.connect(kernel.name), inside=False) == 8
    assert kernel.state()["lifelines"]["refused"] == {"STATUS_INSUFFICIENT_RESOURCES": 7}
    assert kernel.stop() == 0


def test_who_cannot_even_be_accepted_waits_and_is_let_in(kernel: Any):
    with ThreadPoolExecutor(1) as pool:
        with left_with(kernel.process.pid, 0):
            coming = pool.submit(UserProcess.connect, kernel.name)
            with pytest.raises(TimeoutError):
                coming.result(0.2)  # neither let in nor sent away
        with coming.result(END_SECONDS) as process:
            assert process.echo(b"x") == b"x"
    assert kernel.state()["lifelines"]["refused"].keys() == {"accept failed"}
    assert kernel.stop() == 0


def test_an_arena_is_granted_or_it_is_said_why_not(kernel: Any):
    def allocate(process: UserProcess) -> int:
        arena, descriptor = process._lifeline.allocate_arena(ARENA)
        os.close(descriptor)
        return arena

    # The lane's eventfd is there already; the arena, its mapping and its bus segment.
    assert needed(kernel, 0, allocate, inside=True) == 3
    assert kernel.stop() == 0


def test_doorbells_are_granted_or_it_is_said_why_not(kernel: Any):
    def open_doorbells(process: UserProcess) -> OpenedDoorbells:
        opened = process._lifeline.open_doorbells()
        for descriptor in (opened.doorbell_fd, opened.status_fd, opened.poke_fd):
            os.close(descriptor)
        return opened

    # Segment and eventfd, and while they are sent to the HCA, and to the user, one more of each.
    assert needed(kernel, 0, open_doorbells, inside=True) >= 4
    assert kernel.stop() == 0
