"""The scripts of the data-path tools: they set up .venv, and each moves data between two sides."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.ready_python import Program, ReadyPython
from user_proc.transport.kernel_starter import start_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.scripts.conftest import ProjectCopy

    Start = Callable[..., Program | subprocess.Popen[str]]

pytestmark = pytest.mark.processes

END_SECONDS = 20.0

TOOLS = {
    "ib_send_lat": ["-n", "20"],
    "ib_send_bw": ["-n", "20", "-s", "1000", "-c", "UD"],
    "ib_write_lat": ["-n", "20", "-s", "5000", "-c", "UC"],
    "ib_write_bw": ["-n", "20", "-q", "2", "-l", "4", "--perform_warm_up"],
    "ib_read_lat": ["-n", "20", "-e"],
    "ib_read_bw": ["-n", "20", "-x", "0", "-b"],
    "ib_atomic_lat": ["-n", "20", "-A", "CMP_AND_SWAP"],
    "rc_pingpong": ["-n", "20"],
    "ud_pingpong": ["-n", "20", "-g", "0"],
    "srq_pingpong": ["-n", "20", "-q", "4", "-e"],
}


@pytest.fixture(scope="module")
def kernel() -> Iterator[str]:
    with start_kernel("tools") as started:
        yield started.name


#: Started as a shell would; the others are the same programs, forked with their imports made.
EXECUTED = ("ib_send_lat", "rc_pingpong")
AS_MAIN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture(scope="module")
def ready(private_run: Path) -> Iterator[ReadyPython]:
    ready = ReadyPython("runpy", "user_proc.perftest.pingpong_main", "user_proc.perftest.tool_main")
    yield ready
    ready.close()


@pytest.fixture
def start(ready: ReadyPython) -> Iterator[Start]:
    """Start a script; what is left of it is killed at the end."""
    sides: list[Program | subprocess.Popen[str]] = []

    def begin(script: Path, *arguments: str) -> Program | subprocess.Popen[str]:
        if script.stem in EXECUTED:
            side: Program | subprocess.Popen[str] = subprocess.Popen(
                [sys.executable, "-P", script, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            side = ready.start(AS_MAIN, str(script), *arguments, stdin=subprocess.DEVNULL)
        sides.append(side)
        return side

    yield begin
    for side in sides:
        side.kill()
        side.communicate()


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_runs_as_server_and_client(
    tool: str, repository: Path, kernel: str, free_port: int, start: Start
):
    script, options = repository / "scripts" / f"{tool}.py", [*TOOLS[tool], "-p", str(free_port)]
    server = start(script, "--name", kernel, *options)
    assert server.stdout is not None
    said = ""
    while "ait" not in said:  # waiting; read past the buffer, which select knows nothing of
        ready = select.select([server.stdout], [], [], END_SECONDS)[0]
        more = os.read(server.stdout.fileno(), 4096).decode() if ready else ""
        assert more, f"no word of the server but {said!r}"
        said += more
    client = start(script, *options, "127.0.0.1")
    ends = [one.communicate(timeout=END_SECONDS) for one in (client, server)]
    assert [(one.returncode, end[1]) for one, end in zip((client, server), ends, strict=True)] == [
        (0, ""),
        (0, ""),
    ]
    assert "emulator in software, never of hardware" in ends[0][0]
    rows = [line.split() for line in ends[0][0].splitlines()]
    if tool.endswith("pingpong"):
        assert rows[-1][:3] == ["20", "iters", "in"]
    else:
        assert rows[-2][1] == ("40" if "-q" in options else "20")
        assert min(float(word) for word in rows[-2][2:]) >= 0


def test_a_tool_started_directly_sets_up_the_environment(copy: ProjectCopy):
    done = copy.run("-n", "two words", script="scripts/ib_send_lat.py")
    assert done.returncode == 0, done.stderr
    assert "setting up .venv (once)" in done.stderr
    words = [line for line in done.stdout.splitlines() if line.startswith("argument=")]
    assert words == ["argument=-n", "argument=two words"]


def test_all_tools_start_in_the_same_way(repository: Path):
    scripts = sorted((repository / "scripts").glob("*.py"))
    tools = [script for script in scripts if "user_proc.perftest" in script.read_text("utf-8")]
    assert {script.stem for script in tools} == set(TOOLS)
    assert all(os.access(script, os.X_OK) for script in tools)
    assert len({script.read_text(encoding="utf-8").splitlines()[0] for script in tools}) == 1
