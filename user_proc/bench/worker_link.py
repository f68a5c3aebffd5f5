"""The benchmark's end of its user processes: starting them, asking them, ending them.

Rules: one request at a time to each. A process ends when this end is closed, whatever closes it.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any, Final, Self

from shared.clock import now_ns
from user_proc.bench.worker_service import CROWD_OPTION
from user_proc.errors import SofthcaError
from user_proc.transport.child_environment import child_environment

IRP_WORKER: Final = "user_proc.bench.worker"
_START_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 60.0
_END_NS: Final = 500_000_000


class WorkerFailed(SofthcaError):
    """A user process of the benchmark could not do what it was asked, or is gone."""


class WorkerRefused(WorkerFailed):
    """A user process answered that it could not do what it was asked; it goes on."""


class WorkerPipes:
    """A way to a worker process; `pid` is known when it is ready."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes], pid: int = 0) -> None:
        self.pid = pid
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._end_by_ns: int | None = None

    def wait_until_ready(self) -> None:
        """Wait until the process is connected to its kernel; end it if it cannot be."""
        try:
            ready = self._read(_START_SECONDS)["ready"]
        except BaseException:
            self.close()
            raise
        self.pid = self.pid or ready

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        """Have a command carried out; raise WorkerFailed with its sentence if it cannot be."""
        self.send(do, **values)
        return self.receive()

    def send(self, do: str, **values: Any) -> None:
        """Give a command; its answer must be received before the next one is given."""
        line = json.dumps({"do": do, **values}) + "\n"
        try:
            self._commands.write(line.encode())
            self._commands.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def receive(self) -> Mapping[str, Any]:
        """Return the answer to the command given, or raise WorkerFailed with its sentence."""
        return self._read(_ANSWER_SECONDS)

    def _read(self, seconds: float) -> Mapping[str, Any]:
        """Return the next answer, or raise when it does not come."""
        descriptor = self._answers.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(seconds):
                    raise WorkerFailed(
                        f"a user process (pid {self.pid}) has not answered for {seconds:g} s"
                    )
                data = os.read(descriptor, 1 << 20)
                if not data:
                    raise self._gone()
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerRefused(answer["error"])
        return answer

    def _gone(self) -> WorkerFailed:
        return WorkerFailed(
            f"a user process (pid {self.pid}) ended unexpectedly, exit code {self._exit_code()}"
        )

    def _exit_code(self) -> int | str:
        return "unknown"

    def begin_close(self) -> None:
        """Tell the process to end, by the end of its input; it has half a second from now."""
        if self._end_by_ns is None:
            self._end_by_ns = now_ns() + _END_NS
            with contextlib.suppress(BrokenPipeError):
                self._commands.close()

    def close(self) -> None:
        """Hear no more of it."""
        self.begin_close()
        self._answers.close()

    def __enter__(self) -> Self:
        self.wait_until_ready()
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class WorkerLink(WorkerPipes):
    """A worker process: started by the constructor, ready when `wait_until_ready` returns."""

    def __init__(self, kernel_name: str, cpu: int | None = None, module: str = IRP_WORKER) -> None:
        arguments = [sys.executable, "-P", "-m", module, kernel_name]
        if cpu is not None:
            arguments.append(str(cpu))
        self._process = process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # Ctrl-C in the terminal is the benchmark's to handle
        )
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(process.stdin, process.stdout, process.pid)

    def _exit_code(self) -> int | str:
        try:
            return self._process.wait(_END_NS / 1e9)
        except subprocess.TimeoutExpired:
            return "unknown"

    def close(self) -> None:
        """End the process, by force if it has not ended in time."""
        self.begin_close()
        try:
            _end(self._process, self._end_by_ns or 0)
        finally:
            super().close()


class WorkerCrowd:
    """Many workers of one start: a process that forks them, and a way to each."""

    def __init__(self, kernel_name: str, count: int, module: str, cpu: int | None = None) -> None:
        self.members: list[WorkerPipes] = []
        with contextlib.ExitStack() as theirs:
            pairs: list[tuple[int, int]] = []
            for _ in range(count):
                command_reader, command_writer = os.pipe()
                answer_reader, answer_writer = os.pipe()
                for descriptor in (command_reader, answer_writer):
                    theirs.callback(os.close, descriptor)
                pairs.append((command_reader, answer_writer))
                member = WorkerPipes(
                    os.fdopen(command_writer, "wb"), os.fdopen(answer_reader, "rb")
                )
                self.members.append(member)
            arguments = [sys.executable, "-P", "-m", module, kernel_name]
            if cpu is not None:
                arguments.append(str(cpu))
            arguments += [CROWD_OPTION, ",".join(f"{first}:{second}" for first, second in pairs)]
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                env=child_environment(),
                process_group=0,  # which the forked ones are in, too
                pass_fds=[descriptor for pair in pairs for descriptor in pair],
            )

    def wait_until_ready(self) -> None:
        """Wait until every process is connected to its kernel."""
        for member in self.members:
            member.wait_until_ready()

    def begin_close(self) -> None:
        """Tell every process to end."""
        for member in self.members:
            member.begin_close()

    def close(self) -> None:
        """End all of them, by force if they have not ended in time."""
        self.begin_close()
        try:
            _end(self._process, now_ns() + _END_NS, whole_group=True)
        finally:
            for member in self.members:
                member.close()


def _end(process: "subprocess.Popen[bytes]", by_ns: int, whole_group: bool = False) -> None:
    """Wait for a process that was told to end; kill it, or its group, when it takes too long."""
    try:
        process.wait(max(0, by_ns - now_ns()) / 1e9)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
