"""Users killed in the midst of random verbs: nothing of them is left in the kernel or the HCA.

Two at a time, each of two threads, with latencies as the hardware's, so that a kill falls between
the commands of a verb as well as between verbs. 200 kills with `-m stress`.
"""

import os
import random
import select
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import END_SECONDS, READY_USER
from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
KILLS = 12
MANY_KILLS = 200
AT_A_TIME = 2
MOST_STEPS = 150


class Nursery:
    """A process that forks victims."""

    def __init__(self, kernel: str, path: Path) -> None:
        code = "from tests.end_to_end.verbs_victims import main; main()"
        self.process = READY_USER.start(code, kernel, str(path))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._seeds, self._out = self.process.stdin, self.process.stdout.fileno()
        self._read = b""

    def _more(self) -> None:
        assert select.select([self._out], [], [], END_SECONDS)[0], "no word from the victim"
        data = os.read(self._out, 4096)
        assert data, self.process.stderr and self.process.stderr.read()
        self._read += data

    def _line(self) -> str:
        while b"\n" not in self._read:
            self._more()
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def start(self, seed: int) -> int:
        """Fork a victim; its pid."""
        self._seeds.write(f"{seed}\n")
        self._seeds.flush()
        # A victim may have written its first steps before its pid is told.
        line = self._line()
        return int(line.lstrip("."))

    def wait_for_steps(self, steps: int) -> None:
        """Wait until the victim is about to do its so manieth verb."""
        while len(self._read) < steps:
            self._more()
        assert set(self._read) == {ord(".")}, self._read

    def wait_for_its_end(self) -> int:
        """The exit code of the victim, whose steps are passed over."""
        self._line()
        word, code = self._line().split()
        assert word == "ended"
        return int(code)

    def close(self) -> None:
        _, errors = self.process.communicate(timeout=END_SECONDS)
        assert errors == ""


@pytest.fixture
def kernel() -> Iterator[StartedKernel]:
    settings = {"verifier": True, "latency_model": "plausible"}
    with start_kernel(f"killed-{uuid.uuid4().hex[:8]}", settings=settings) as started:
        yield started
        assert started.running, started.log.read_text()


def kill_many(kernel: StartedKernel, path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    path.touch()
    nurseries = [Nursery(kernel.name, path) for _ in range(AT_A_TIME)]
    nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
    for number in range(kills // AT_A_TIME):
        pids = [one.start(seed + AT_A_TIME * number + place) for place, one in enumerate(nurseries)]
        for nursery, pid in zip(nurseries, pids, strict=True):
            nursery.wait_for_steps(chance.randrange(1, MOST_STEPS))
            os.kill(pid, signal.SIGKILL)
        assert [one.wait_for_its_end() for one in nurseries] == [-signal.SIGKILL] * AT_A_TIME
        wait_for_nothing_more(kernel.name, nothing)
    for nursery in nurseries:
        nursery.close()
    state = kernel_state(kernel.name)
    assert state["sessions_run_down"] == kills
    life = state["hca"]["driver"]["hca"]
    assert life["regions"]["lost_keys"] == life["regions"]["lost_ranges"] == 0
    assert life["commands"]["given_up"] == 0
    failed = set(life["commands"]["failed"]) - {"ENABLE_LAM", "RESIZE_CQ"}
    print(f"{kills} kills, {life['verbs']} verbs, commands that failed: {failed}")


def test_users_killed_in_the_midst_of_verbs_leave_nothing(kernel: StartedKernel, tmp_path: Path):
    kill_many(kernel, tmp_path / "domain", KILLS, seed=1000)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_very_many_users_killed_leave_nothing(kernel: StartedKernel, tmp_path: Path):
    kill_many(kernel, tmp_path / "domain", MANY_KILLS, seed=5000)
