"""Real kernels and real user processes, none of which outlives its test."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.connection_file import InstancePaths, instance_paths
from tests.machines_given_back import stacks_given_back
from tests.ready_command import ready_command

__all__ = ["ready_command", "stacks_given_back"]

READY_SECONDS = 20.0
END_SECONDS = 20.0
STEP_SECONDS = 0.005

KERNEL_WITH_HOLDER = Path(__file__).resolve().parent / "kernel_with_holder.py"

#: What every user program begins with.
PRELUDE = """
import os, sys, threading
from shared.ioctl_codes import *
from tests.holder_driver import BREAK, HOLD
from user_proc.errors import *
from user_proc.process import UserProcess
name = sys.argv[1]
def at(point):
    print(point, flush=True)
def stay():
    sys.stdin.read()
"""


def wait_until(predicate: Callable[[], bool], seconds: float = END_SECONDS) -> None:
    """Look again and again, and fail when the time is over."""
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        select.select([], [], [], STEP_SECONDS)


class Kernel:
    """One kernel process and what can be seen of it from outside."""

    def __init__(self, folder: Path, program: list[str], *options: str, name: str = "") -> None:
        self.name = name or f"k{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.log_path = folder / f"{self.name}.log"
        self.owner_reader, self.owner = os.pipe()
        ready, ready_writer = os.pipe()
        self.process = subprocess.Popen(
            [
                *program,
                *("--name", self.name, "--log", str(self.log_path)),
                *("--ready-fd", str(ready_writer), "--owner-fd", str(self.owner_reader)),
                *options,
            ],
            pass_fds=[ready_writer, self.owner_reader],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.close(ready_writer)
        os.close(self.owner_reader)
        assert select.select([ready], [], [], READY_SECONDS)[0], "no word from the kernel"
        self.first_words = os.read(ready, 4096).decode()
        os.close(ready)

    @property
    def paths(self) -> InstancePaths:
        return instance_paths(self.name)

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def state(self) -> dict[str, Any]:
        """Ask the kernel for its state."""
        path = self.paths.folder / "state.json"
        path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_until(path.exists)
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    def wait_for_sessions(self, count: int) -> dict[str, Any]:
        """Wait until that many sessions are there; return the state then."""
        states: list[dict[str, Any]] = []

        def reached() -> bool:
            states.append(self.state())
            return len(states[-1]["server"]["sessions"]) == count

        wait_until(reached)
        return states[-1]

    def end(self) -> int:
        """Wait for the end of the process; return its exit code."""
        code = self.process.wait(END_SECONDS)
        self.close()
        return code

    def errors(self) -> str:
        """Return what it wrote to standard error; it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it in order; return its exit code."""
        self.process.send_signal(number)
        return self.end()

    def close(self) -> None:
        """Give up the owner's end of the pipe."""
        if self.owner >= 0:
            os.close(self.owner)
            self.owner = -1

    def leave(self) -> None:
        """See to it that nothing is left of it: a kernel whose owner has gone stops."""
        self.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stderr is not None
            self.process.stderr.close()


class User:
    """One user process that runs a piece of code."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PRELUDE + textwrap.dedent(code), kernel.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], END_SECONDS)[0], "no word from the user"
        line = self.process.stdout.readline().strip()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return line

    def kill(self) -> None:
        """End it as no program can prevent."""
        self.process.kill()
        self.finish()

    def finish(self) -> str:
        """Let it go on to its end; return what it still said."""
        with contextlib.suppress(BrokenPipeError):
            output, errors = self.process.communicate(timeout=END_SECONDS)
        assert errors == "" or self.process.returncode < 0, errors
        return output


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short runtime folder of the test's own; sockets are all gone at its end."""
    folder = Path(tempfile.mkdtemp(prefix="she-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(runtime_folder: Path) -> Iterator[Callable[..., Kernel]]:
    """Start kernels: start("--verifier", name="x"), start(holder=True, descriptors=100)."""
    kernels: list[Kernel] = []

    def start_one(
        *options: str, holder: bool = False, name: str = "", descriptors: int = 0
    ) -> Kernel:
        what = [str(KERNEL_WITH_HOLDER)] if holder else ["-m", "kernel_proc"]
        program = [sys.executable, "-P", *what]
        if descriptors:
            program = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"', *program]
        kernels.append(Kernel(runtime_folder, program, *options, name=name))
        return kernels[-1]

    yield start_one
    for kernel in kernels:
        kernel.leave()


@pytest.fixture
def kernel(start: Callable[..., Kernel]) -> Kernel:
    """A kernel with the holder device, checking itself."""
    kernel = start("--verifier", holder=True)
    assert kernel.first_words == "ready\n", kernel.first_words
    return kernel


@pytest.fixture(scope="module")
def shared_kernel(private_run: Path) -> Iterator[Kernel]:
    """One such kernel for those tests of a module that leave it as they found it."""
    folder = Path(tempfile.mkdtemp(prefix="she-"))
    kernel = Kernel(folder, [sys.executable, "-P", str(KERNEL_WITH_HOLDER)], "--verifier")
    try:
        assert kernel.first_words == "ready\n", kernel.first_words
        yield kernel
        assert kernel.process.poll() is None, kernel.log
    finally:
        kernel.leave()
        shutil.rmtree(folder)


@pytest.fixture
def run(kernel: Kernel) -> Iterator[Callable[[str], User]]:
    """Run user programs against `kernel`."""
    users: list[User] = []

    def run_one(code: str) -> User:
        users.append(User(kernel, code))
        return users[-1]

    yield run_one
    for user in users:
        if user.process.poll() is None:
            user.process.kill()
        for stream in (user.process.stdin, user.process.stdout, user.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        user.process.wait()
