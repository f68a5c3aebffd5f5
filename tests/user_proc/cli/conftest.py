"""The command `softhca` as a user starts it: a process, its output and its exit code."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.ready_command import ReadyCommand, ready_command

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

    def run(*arguments: str, columns: int = 100) -> subprocess.CompletedProcess[str]:
        return ready_command.run(arguments, tmp_path, environment(columns), 50)

    return run


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command and hand it over while it runs."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(),
            cwd=tmp_path,
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
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
