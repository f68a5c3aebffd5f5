"""Start, stop and look at kernel processes from the user side.

A kernel is started by exec, in a session of its own, and says on a pipe that it is ready or why it
is not. One that is bound to its owner holds the reading end of a second pipe: whatever ends the
owner closes the writing end, and the kernel stops. To stop a kernel by name, the process in the
connection file must be the very one that wrote it (pid, start ticks, boot) and the lock must be
held; a pidfd opened before those checks is what is signalled, so never a stranger.

Rules: any thread; nothing is killed in doubt.
Spec: pidfd_open(2), setsid(2).
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shared.clock import now_ns
from shared.connection_file import (
    DEFAULT_INSTANCE,
    InstancePaths,
    RuntimeFolderError,
    instance_paths,
    list_instances,
    prepare_folder,
    read_record,
    running_record,
)
from user_proc.errors import KernelNotRunning, KernelStartFailed, RuntimeFolderUnusable
from user_proc.transport.watched_process import end_process, has_ended, reap

READY_SECONDS: Final = 10.0
STOP_SECONDS: Final = 10.0

_EXIT_SECONDS: Final = 5.0
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_MAX_LINE: Final = 4096
_LOG_TAIL: Final = 2000


class StartedKernel:
    """A kernel this process has started; a context manager that stops it."""

    def __init__(self, paths: InstancePaths, pid: int, pidfd: int, owner_fd: int | None) -> None:
        self.name: Final = paths.name
        self.pid: Final = pid
        self.log: Final = paths.log
        self.exit_code: int | None = None
        self._folder: Final = paths.folder
        self._pidfd = pidfd
        self._owner_fd = owner_fd

    @property
    def pidfd(self) -> int:
        """The kernel's pidfd, readable when it has ended; -1 after `stop`."""
        return self._pidfd

    @property
    def running(self) -> bool:
        """Tell whether the process has not ended yet."""
        return self._pidfd >= 0 and not has_ended(self._pidfd, 0)

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Have the kernel run every session down and end; by force when `timeout` seconds passed.

        True if it ended in order. The log of a kernel bound to us that ended so is removed.
        """
        if self._pidfd < 0:
            return self.exit_code == 0
        in_time = end_process(self._pidfd, timeout)
        self.exit_code = reap(self._pidfd)
        self._close()
        clean = in_time and self.exit_code == 0
        if clean and self._owner_fd is not None:
            self.log.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody else's files stay, and the folder
                self._folder.rmdir()
        return clean

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _close(self) -> None:
        os.close(self._pidfd)
        self._pidfd = -1
        if self._owner_fd is not None:
            os.close(self._owner_fd)


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """What is known of a kernel by its name alone.

    `state` is "running"; "dead" when only the leftovers of one that was killed are there; "none".
    """

    name: str
    state: str
    pid: int | None
    folder: Path

    @property
    def running(self) -> bool:
        """Tell whether it runs and is ready."""
        return self.state == "running"


def start_kernel(
    name: str = DEFAULT_INSTANCE,
    *,
    owner_bound: bool = True,
    settings: Mapping[str, object] | None = None,
    timeout: float = READY_SECONDS,
) -> StartedKernel:
    """Start a kernel and wait until it is ready.

    `settings` are the kernel's options by name (`verifier=True` becomes `--verifier`,
    `driver=["mailbox.py:driver_entry"]` loads a driver). A kernel that is not bound to its owner
    goes on when this process ends.
    """
    paths = _paths(name)
    try:
        prepare_folder(paths)
        log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except (RuntimeFolderError, OSError) as error:
        raise RuntimeFolderUnusable(str(error)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, log)
        ready_reader, ready_writer = os.pipe()
        stack.callback(os.close, ready_reader)
        closing_writer = stack.enter_context(contextlib.ExitStack())
        closing_writer.callback(os.close, ready_writer)
        passed = [ready_writer]
        owner_fd = None
        if owner_bound:
            owner_reader, owner_fd = os.pipe()
            stack.callback(os.close, owner_reader)
            passed.append(owner_reader)
        try:
            pid, pidfd = _spawn(paths, passed, settings or {}, log)
            closing_writer.close()  # so that the kernel's end is the pipe's end
            kernel = StartedKernel(paths, pid, pidfd, owner_fd)
        except BaseException:
            if owner_fd is not None:
                os.close(owner_fd)
            raise
        try:
            _wait_until_ready(kernel, ready_reader, timeout)
        except BaseException:
            kernel.stop(0.0)
            raise
    return kernel


def stop_kernel(name: str = DEFAULT_INSTANCE, timeout: float = STOP_SECONDS) -> bool:
    """Stop a kernel by name; True if it ended in order, False if it had to be killed."""
    paths = _paths(name)
    with _translated():
        record = read_record(paths)
        if record is None:
            raise KernelNotRunning(name)
        try:
            pidfd = os.pidfd_open(record.pid)
        except ProcessLookupError:
            raise KernelNotRunning(name) from None
        try:
            if running_record(paths) != record:
                raise KernelNotRunning(name)
            in_time = end_process(pidfd, timeout)
            reap(pidfd)
        finally:
            os.close(pidfd)
    return in_time


def kernel_status(name: str = DEFAULT_INSTANCE) -> KernelStatus:
    """Look at a kernel by name."""
    return _status(_paths(name))


def list_kernels() -> list[KernelStatus]:
    """Look at every instance of this user that runs or was killed, by name."""
    with _translated():
        states = [_status(paths) for paths in list_instances()]
    return [status for status in states if status.state != "none"]


def _status(paths: InstancePaths) -> KernelStatus:
    with _translated():
        record = running_record(paths)
        if record is not None:
            return KernelStatus(paths.name, "running", record.pid, paths.folder)
        record = read_record(paths)
    if record is not None:
        return KernelStatus(paths.name, "dead", record.pid, paths.folder)
    return KernelStatus(paths.name, "none", None, paths.folder)


def _spawn(
    paths: InstancePaths, passed: list[int], settings: Mapping[str, object], log: int
) -> tuple[int, int]:
    """Execute the kernel; give its pid and pidfd."""
    arguments = [sys.executable, "-P", "-m", "kernel_proc", "--name", paths.name]
    arguments += ["--log", str(paths.log)]
    for option, descriptor in zip(("--ready-fd", "--owner-fd"), passed, strict=False):
        arguments += [option, str(descriptor)]
    for setting, value in settings.items():
        option = "--" + setting.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif isinstance(value, (list, tuple)):
            for one in value:
                arguments += [option, _driver_from_here(str(one))]
        elif value is not False and value is not None:
            arguments += [option, str(value)]
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")  # so that it finds the very packages used here
    environment["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        cwd="/",
        start_new_session=True,  # Ctrl-C in the terminal is not the kernel's
        pass_fds=passed,
    )
    try:
        pidfd = os.pidfd_open(process.pid)
    except BaseException:
        process.kill()
        process.wait()
        raise
    # From here the pidfd watches and reaps it. Popen must not: it would complain of a child that
    # is meant to outlive it.
    process.returncode = 0
    return process.pid, pidfd


def _driver_from_here(specification: str) -> str:
    """Name a driver's file so that the kernel, which runs in another folder, finds it."""
    place, colon, entry = specification.rpartition(":")
    if "/" in place or place.endswith(".py"):
        return f"{os.path.abspath(place)}{colon}{entry}"
    return specification


def _wait_until_ready(kernel: StartedKernel, reader: int, timeout: float) -> None:
    """Read the kernel's one line; KernelStartFailed says what went wrong."""
    line = _read_line(reader, timeout)
    if line == "ready":
        return
    if line is None:
        why = f"it was not ready within {timeout:g} s"
    elif line.startswith("error: "):
        why = line.removeprefix("error: ")
    else:
        has_ended(kernel.pidfd, _EXIT_SECONDS)
        why = f"it ended at once; the end of {kernel.log}: {_tail(kernel.log)}"
    raise KernelStartFailed(f"the kernel {kernel.name!r} did not start: {why}")


def _read_line(reader: int, timeout: float) -> str | None:
    """Read up to a newline or the end; None when the time ran out."""
    deadline = now_ns() + round(timeout * 1e9)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    data = b""
    while b"\n" not in data and len(data) < _MAX_LINE:
        left_ms = (deadline - now_ns()) // 1_000_000
        if left_ms < 0 or not poll.poll(left_ms):
            return None
        chunk = os.read(reader, _MAX_LINE)
        if not chunk:
            break
        data += chunk
    return data.decode("utf-8", "replace").partition("\n")[0]


def _tail(log: Path) -> str:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
    except OSError:
        text = ""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "(empty)"


def _paths(name: str) -> InstancePaths:
    with _translated():
        return instance_paths(name)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Let what is wrong with the runtime folder be an error of the user side."""
    try:
        yield
    except RuntimeFolderError as error:
        raise RuntimeFolderUnusable(str(error)) from error
