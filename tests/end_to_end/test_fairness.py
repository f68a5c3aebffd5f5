"""Small messages of two sessions keep their pace while a third has the HCA do very much."""

import json
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import END_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.stress, pytest.mark.timeout(300)]

MESSAGES = 2_000
BLOCKS = 5
LEAST_BYTES = 1 << 30
MOST_NS = 1_000_000
MOST_TIMES_IDLE = 10


class Process:
    """A process of `fairness_end`."""

    def __init__(self, kernel: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.end_to_end.fairness_end", kernel],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.qpn = self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 3 * END_SECONDS)[0], "no answer"
        return json.loads(self.process.stdout.readline())

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(END_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def make(start: Callable[..., Any]) -> Iterator[Callable[[], Process]]:
    kernel = start("--arena-bytes-per-process", str(512 << 20))
    made: list[Process] = []

    def one() -> Process:
        made.append(Process(kernel.name))
        return made[-1]

    yield one
    for process in made:
        process.end()


class PingPong:
    """Two sessions that send to each other."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._active, self._passive = make(), make()
        for one, other in ((self._active, self._passive), (self._passive, self._active)):
            one.tell("connect", other.qpn)
            one.answer()

    def p99_ns(self) -> float:
        """The median of some blocks' 99th percentiles."""
        found = []
        for _ in range(BLOCKS):
            self._passive.tell("pong", MESSAGES)
            self._active.tell("ping", MESSAGES)
            found.append(self._active.answer())
            self._passive.answer()
        return statistics.median(found)


@pytest.mark.parametrize(
    ("load", "least"),
    [
        pytest.param(("move_long", 64 << 20), LEAST_BYTES, id="1 GiB in 64 MiB messages"),
        pytest.param(("keep_busy", 1_000, 4), MESSAGES, id="1,000 busy queue pairs"),
    ],
)
def test_a_ping_pong_beside(make: Callable[[], Process], load: tuple[Any, ...], least: int):
    pair, busy = PingPong(make), make()
    idle = pair.p99_ns()
    busy.tell(*load)
    assert busy.answer() == "busy"
    loaded = pair.p99_ns()
    busy.tell("end")
    done = busy.answer()
    print(f"p99 alone {idle / 1000:.0f} us, beside {load} {loaded / 1000:.0f} us; {done} done")
    assert done >= least
    assert loaded <= min(MOST_NS, MOST_TIMES_IDLE * idle)
