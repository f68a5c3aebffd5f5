"""The command `softhca` as a user starts it: a process, its output and its exit code."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.ready_command import ReadyCommand, ready_command
from tests.ready_python import Program

__all__ = ["ready_command"]

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-P", "-m", "user_proc.cli.main"]


def environment(columns: int = 100) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}


def run_to_end(
    folder: Path, *arguments: str, columns: int = 100, command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, from a folder."""
    return subprocess.run(
        [*command, *arguments],
        env=environment(columns),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.fixture
def softhca(
    tmp_path: Path,
    ready_command: ReadyCommand,
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command to its end, from an empty folder."""

    def run(
        *arguments: str, columns: int = 100, before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return ready_command.run(arguments, tmp_path, environment(columns), 50, before)

    return run


@pytest.fixture
def begin(tmp_path: Path, ready_command: ReadyCommand) -> Iterator[Callable[..., Program]]:
    """Start the command, in a session of its own, and hand it over while it runs."""
    started: list[Program] = []

    def start(*arguments: str, before: str = "") -> Program:
        words = (arguments, tmp_path, environment(), before)
        program = ready_command.start(*words, stderr=subprocess.DEVNULL)
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
