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
from tests.ready_python import Program, ReadyPython

__all__ = ["ready_command", "stacks_given_back"]

READY_SECONDS = 20.0
END_SECONDS = 20.0
STEP_SECONDS = 0.005

#: What kernels and users have imported when they are forked.
READY_KERNEL = ReadyPython("kernel_proc.machine", "tests.end_to_end.kernel_with_holder")
READY_USER = ReadyPython(
    "tests.end_to_end.hostile_verbs_user",
    "tests.end_to_end.traffic_end",
    "tests.end_to_end.verbs_things",
    "tests.end_to_end.xrc_end",
    "tests.holder_driver",
)

PLAIN_KERNEL = "import sys; from kernel_proc.__main__ import main; sys.exit(main(sys.argv[1:]))"
KERNEL_WITH_HOLDER = (
    "import sys; from tests.end_to_end.kernel_with_holder import main; sys.exit(main(sys.argv[1:]))"
)
EXECUTED = ["-m", "kernel_proc"]

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


def state_of(pid: int) -> str:
    """Return the letter of a process's state: T for one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Kernel:
    """One kernel process and what can be seen of it from outside."""

    def __init__(
        self, folder: Path, program: str | list[str], *options: str, name: str = ""
    ) -> None:
        """Fork a ready kernel that runs the code, or execute the command."""
        self.name = name or f"k{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.log_path = folder / f"{self.name}.log"
        self.owner_reader, self.owner = os.pipe()
        ready, ready_writer = os.pipe()
        passed = [ready_writer, self.owner_reader]
        arguments = [
            *("--name", self.name, "--log", str(self.log_path)),
            *("--ready-fd", str(ready_writer), "--owner-fd", str(self.owner_reader)),
            *options,
        ]
        self.process: Program | subprocess.Popen[str] = (
            READY_KERNEL.start(
                program,
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=None,
                passed=passed,
                new_session=True,
            )
            if isinstance(program, str)
            else subprocess.Popen(
                [*program, *arguments],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
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
        self.process = READY_USER.start(PRELUDE + textwrap.dedent(code), kernel.name)

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


@pytest.fixture(scope="session", autouse=True)
def ready_pythons(private_run: Path) -> Iterator[None]:
    """What has been forked from has ended before the run looks for leftovers."""
    yield
    READY_KERNEL.close()
    READY_USER.close()


@pytest.fixture
def start(runtime_folder: Path) -> Iterator[Callable[..., Kernel]]:
    """Start kernels: start("--verifier", name="x"), start(holder=True), start(descriptors=100).

    One whose start is what is tested is executed: start(executed=True); `code` is run by one that
    differs otherwise.
    """
    kernels: list[Kernel] = []

    def start_one(
        *options: str,
        holder: bool = False,
        executed: bool = False,
        code: str = "",
        name: str = "",
        descriptors: int = 0,
    ) -> Kernel:
        program: str | list[str] = code or (KERNEL_WITH_HOLDER if holder else PLAIN_KERNEL)
        if executed or descriptors:
            program = [sys.executable, "-P", *(["-c", program] if holder else EXECUTED)]
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
    kernel = start("--verifier", holder=True, executed=False)
    assert kernel.first_words == "ready\n", kernel.first_words
    return kernel


@pytest.fixture(scope="module")
def shared_kernel(private_run: Path) -> Iterator[Kernel]:
    """One such kernel for those tests of a module that leave it as they found it."""
    folder = Path(tempfile.mkdtemp(prefix="she-"))
    kernel = Kernel(folder, KERNEL_WITH_HOLDER, "--verifier")
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
