"""Kernel, HCA or both are killed again and again; four users live on and open each successor."""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from shared.connection_file import read_record
from shared.stray_devices import stray_devices
from tests.end_to_end.conftest import READY_USER, wait_until
from tests.end_to_end.restart_users import ROLES
from tests.ready_python import Program
from user_proc.errors import KernelDied

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
NAME = "again"
CYCLES = 4
MANY_CYCLES = 300
KILLED = ("kernel", "hca", "both")
SAY_SECONDS = 20.0
WITHIN_SECONDS = 2.0
CLOSED_WITHIN_SECONDS = 5.0
#: How a user may learn of it: by a verb's errno, or, in a plain request, by the connection's end.
ERRORS = {
    ("PyverbsRDMAError", str(errno.EIO)),
    ("OSError", str(errno.EIO)),
    (KernelDied.__name__, "None"),
}

Start = Callable[..., Any]


class Users:
    """The four processes, and what they say."""

    def __init__(self, process: Program) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self.process = process
        self._output = process.stdout.fileno()
        self._rest = b""

    def begin(self) -> None:
        """Have each open the kernel that runs."""
        assert self.process.stdin is not None
        self.process.stdin.write("!" * len(ROLES))
        self.process.stdin.flush()

    def say(self, count: int, kernel: Any) -> list[list[str]]:
        """Return the next lines, as words; the kernel's log tells why they do not come."""
        while self._rest.count(b"\n") < count:
            assert select.select([self._output], [], [], SAY_SECONDS)[0], kernel.log
            piece = os.read(self._output, 4096)
            assert piece, kernel.log
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n", count)
        return [line.decode().split() for line in lines]


@pytest.fixture
def users(runtime_folder: Path) -> Iterator[Users]:
    code = "from tests.end_to_end.restart_users import main; main()"
    process = READY_USER.start(code, NAME, stderr=None, new_session=True)
    yield Users(process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def kill(kernel: Any, what: str) -> float:
    """Kill it; return when."""
    hca = kernel.state()["hca"]["link"]["process"]
    now = time.monotonic()
    if what != "kernel":
        os.kill(hca, signal.SIGKILL)
    if what != "hca":
        kernel.process.kill()
    return now


def check_ends(lines: list[list[str]], killed: float) -> None:
    """Each user had one clear error in time, and closed."""
    died = {line[0]: line[2:] for line in lines if line[1] == "died"}
    closed = {line[0]: float(line[2]) for line in lines if line[1] == "closed"}
    assert set(died) == set(closed) == set(ROLES), lines
    for role, (kind, code, when) in died.items():
        assert (kind, code) in ERRORS, (role, kind, code)
        assert float(when) - killed < WITHIN_SECONDS, (role, float(when) - killed)
        assert closed[role] - killed < CLOSED_WITHIN_SECONDS, (role, closed[role] - killed)


def check_cleared(kernel: Any, former: int, what: str) -> None:
    """What the successor says of its predecessor: nothing, if that stopped in order."""
    record = read_record(kernel.paths)
    assert record is not None
    if what == "hca":
        assert record.cleared == ""
        return
    assert record.cleared.startswith(
        f"process {former} had not stopped in order: removed connection.json, lifeline.sock"
    )
    assert record.cleared in kernel.log


def live_through(start: Start, users: Users, cycles: int) -> None:
    held: dict[str, list[int]] = {role: [] for role in ROLES}
    kernel = start(name=NAME)
    for what in islice(cycle(KILLED), cycles):
        users.begin()
        for role, up, descriptors in users.say(len(ROLES), kernel):
            assert up == "up"
            held[role].append(int(descriptors))
        killed = kill(kernel, what)
        check_ends(users.say(2 * len(ROLES), kernel), killed)
        if what == "hca":
            kernel.wait_for_sessions(0)
            assert kernel.stop() == 0
        else:
            assert kernel.end() == -signal.SIGKILL
        former = kernel.process.pid
        kernel = start(name=NAME)
        assert kernel.first_words == "ready\n"
        check_cleared(kernel, former, what)
    assert kernel.stop() == 0
    assert not kernel.paths.folder.exists()
    wait_until(lambda: not stray_devices())
    for role, counts in held.items():
        assert max(counts[1:]) <= counts[1], (role, counts)
    assert users.process.stdin is not None
    users.process.stdin.close()
    assert users.process.wait(SAY_SECONDS) == 0


def test_users_live_through_several_kernels(start: Start, users: Users):
    live_through(start, users, CYCLES)


@pytest.mark.stress
@pytest.mark.timeout(1500)
def test_users_live_through_three_hundred_kernels(start: Start, users: Users):
    live_through(start, users, MANY_CYCLES)
