"""The launcher is killed or interrupted at any moment: nothing it has started is left."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.connection_file import runtime_root
from tests.user_proc.groups.conftest import LOOK_SECONDS, commands_of, left_of

pytestmark = pytest.mark.processes

SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[3]

# Ranks that ignore SIGTERM, and have a child and a daemon that do, too.
RANK = (
    "trap '' TERM HUP; (sleep 71 &); setsid bash -c \"trap '' TERM HUP; sleep 72; true\" & "
    "while true; do sleep 0.2; done"
)
LAUNCHER = """
    import signal, sys
    from pathlib import Path
    from user_proc.groups.group_plan import Group, LaunchPlan
    from user_proc.groups.supervisor import Supervisor

    def tell(word):
        print(word, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = LaunchPlan((Group("g", ("bash", "-c", sys.argv[2]), count=3),), grace=0.1)
    tell("begun")
    with Supervisor(plan, "none", Path(sys.argv[1])) as supervisor:
        tell("guarded " + str(supervisor._guardian.pid))
        supervisor.step(0)
        tell("ordered")
        while not all(run.pid for run in supervisor.ranks):
            supervisor.step(0.1)
        tell("running")
        supervisor.run()
"""
WORDS = ("begun", "guarded", "ordered", "running")
Begin = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def begin(mark: str, tmp_path: Path) -> Iterator[Begin]:
    """Start a launcher; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        code = textwrap.dedent(LAUNCHER)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(tmp_path), RANK],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(process: "subprocess.Popen[str]", word: str) -> list[str]:
    """Read what it prints until a line begins with the word; return the words of the lines."""
    assert process.stdout is not None
    words: list[str] = []
    while True:
        assert select.select([process.stdout], [], [], SECONDS)[0]
        line = process.stdout.readline()
        assert line, words
        words += line.split()
        if line.startswith(word):
            return words


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_ends_leaves_nothing(
    begin: Begin, mark: str, tmp_path: Path, word: str, number: int
):
    launcher = begin()
    wait_for(launcher, word)
    launcher.send_signal(number)
    launcher.wait(SECONDS)
    assert left_of(mark) == []
    assert not (tmp_path / "exchange").exists()


def test_launcher_and_guardian_killed_together_take_the_ranks_with_them(begin: Begin, mark: str):
    launcher = begin()
    guardian = int(wait_for(launcher, "running")[2])
    os.kill(launcher.pid, signal.SIGSTOP)  # so that neither sees the other's end first
    os.kill(guardian, signal.SIGKILL)
    launcher.kill()
    launcher.wait(SECONDS)
    ranks = [text for text in left_of(mark, 0.5) if "trap" in text and "setsid" in text]
    assert ranks == []
    for text in commands_of(mark):  # what the ranks themselves had started may stay: see the page
        os.kill(int(text.partition(" ")[0]), signal.SIGKILL)


PLAN = f"""
time_limit = 60
grace = 0.1
[kernel]
hca = false
[[group]]
name = "g"
count = 2
command = ["bash", "-c", '''{RANK}''']
"""


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGKILL, "ranks"),
        (signal.SIGINT, "kernel"),
        pytest.param(signal.SIGKILL, "kernel", marks=pytest.mark.stress),
        pytest.param(signal.SIGTERM, "ranks", marks=pytest.mark.stress),
    ],
)
def test_a_launch_with_a_kernel_leaves_none(mark: str, tmp_path: Path, number: int, moment: str):
    (tmp_path / "launch.toml").write_text(PLAN)
    before = set(runtime_root().glob("*")) if runtime_root().exists() else set()
    command = [sys.executable, "-P", "-m", "user_proc.cli.main", "launch", "launch.toml"]
    with subprocess.Popen(
        [*command, "--logs", "."],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as launcher:
        sign = "kernel_proc" if moment == "kernel" else "sleep 0.2"
        while not any(sign in text for text in commands_of(mark)):
            assert launcher.poll() is None
            select.select([], [], [], LOOK_SECONDS)
        launcher.send_signal(number)
        assert launcher.wait(SECONDS) == (-number if number == signal.SIGKILL else 128 + number)
        assert left_of(mark) == []
    assert set(runtime_root().glob("*")) == before
    kept = [path.name for path in tmp_path.glob("softhca-launch-*")]
    assert len(kept) <= (number == signal.SIGKILL)  # logs: nobody was left to remove them
    assert list(tmp_path.glob("*/exchange")) == []
