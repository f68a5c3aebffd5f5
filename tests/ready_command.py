"""The command `softhca`, forked from an interpreter that has it imported.

Each run is a process of its own with the streams, folder and environment it is given.

Rules: a run ends as a program ends, but the imported modules are not taken down, which is most of
    the time of a short run; whoever tests that, or the start, starts a program.
"""

import atexit
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.ready_python import Program, ReadyPython

#: What the commands import when they run.
USED = (
    "rich._emoji_codes",
    "rich.progress",
    "rich.traceback",
    "typer._adapters",
    "typer.rich_utils",
    "user_proc.bench.bench_run",
    "user_proc.bench.speed.speed_run",
    "user_proc.bench.verbs.verb_run",
    "user_proc.cli.main",
    "user_proc.run_document",
    "user_proc.transport.kernel_control",
    "user_proc.transport.kernel_starter",
    "user_proc.verbs.device",
)
COMMAND = f"from {__name__} import command; command()"


class ReadyCommand:
    """The asking side; `more` modules are imported beside those of every command."""

    def __init__(self, *more: str) -> None:
        self._python = ReadyPython(*USED, *more, __name__)

    def run(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        seconds: float,
        before: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; kill it after so many seconds."""
        program = self.start(arguments, folder, environment, before)
        try:
            texts = program.communicate(timeout=seconds)
        finally:
            program.kill()
        return subprocess.CompletedProcess([*arguments], program.wait(), *texts)

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        before: str = "",
        stderr: int | None = subprocess.PIPE,
    ) -> Program:
        """Start the command, in a session of its own, and hand it over while it runs.

        `before` is code that runs in it first.
        """
        return self._python.start(
            f"{before}\n{COMMAND}",
            *arguments,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            new_session=True,
            folder=folder,
            environment=environment,
        )

    def close(self) -> None:
        """Let the interpreter end."""
        self._python.close()


@pytest.fixture(scope="session")
def ready_command(private_run: Path) -> Iterator[ReadyCommand]:
    """The command, imported once for all runs of it."""
    ready = ReadyCommand()
    yield ready
    ready.close()


def command() -> None:
    """Be the command, and end."""
    from user_proc.cli.main import main

    sys.argv[0] = "softhca"
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        _leave(end.code)


def _leave(code: int) -> None:
    """End as an interpreter does: threads, exit handlers, what nobody refers to, streams."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
