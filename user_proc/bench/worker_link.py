"""The benchmark's end of a user process: starting it, asking it, ending it.

Rules: one request at a time. The process ends when this end is closed, whatever closes it.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shared.clock import now_ns
from user_proc.errors import SofthcaError

_START_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 60.0
_END_NS: Final = 500_000_000
_ROOT: Final = Path(__file__).resolve().parent.parent.parent


class WorkerFailed(SofthcaError):
    """A user process of the benchmark could not do what it was asked, or is gone."""


def child_environment() -> dict[str, str]:
    """Return the environment of a started process: it finds the very packages used here."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)
    return environment


class WorkerLink:
    """A worker process: started by the constructor, ready when `wait_until_ready` returns."""

    def __init__(self, kernel_name: str, cpu: int | None = None) -> None:
        arguments = [sys.executable, "-P", "-m", "user_proc.bench.worker", kernel_name]
        if cpu is not None:
            arguments.append(str(cpu))
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # Ctrl-C in the terminal is the benchmark's to handle
        )
        self._buffer = b""
        self._end_by_ns: int | None = None

    def wait_until_ready(self) -> None:
        """Wait until the process is connected to its kernel; end it if it cannot be."""
        try:
            self._read(_START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self._process.pid

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        """Have a command carried out; raise WorkerFailed with its sentence if it cannot be."""
        self.send(do, **values)
        return self.receive()

    def send(self, do: str, **values: Any) -> None:
        """Give a command; its answer must be received before the next one is given."""
        line = json.dumps({"do": do, **values}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def receive(self) -> Mapping[str, Any]:
        """Return the answer to the command given, or raise WorkerFailed with its sentence."""
        return self._read(_ANSWER_SECONDS)

    def _read(self, seconds: float) -> Mapping[str, Any]:
        """Return the next answer, or raise when it does not come."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
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
            raise WorkerFailed(answer["error"])
        return answer

    def _gone(self) -> WorkerFailed:
        try:
            code: int | str = self._process.wait(_END_NS / 1e9)
        except subprocess.TimeoutExpired:
            code = "unknown"
        return WorkerFailed(f"a user process (pid {self.pid}) ended unexpectedly, exit code {code}")

    def begin_close(self) -> None:
        """Tell the process to end, by the end of its input; it has half a second from now."""
        if self._end_by_ns is None:
            self._end_by_ns = now_ns() + _END_NS
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process, by force if it has not ended in time."""
        self.begin_close()
        process = self._process
        assert process.stdout is not None
        assert self._end_by_ns is not None
        try:
            process.wait(max(0, self._end_by_ns - now_ns()) / 1e9)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()

    def __enter__(self) -> "WorkerLink":
        self.wait_until_ready()
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
