"""Start kernel processes from the user side.

A kernel is started by exec, in a session of its own, and says on a pipe that it is ready or why it
is not. One that is bound to its owner holds the reading end of a second pipe: whatever ends the
owner closes the writing end, and the kernel stops. Its folder and log are the kernel's to make,
once it has the lock: what it writes before that goes to a file without a name.

Rules: any thread.
Spec: pidfd_open(2), setsid(2), memfd_create(2).
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shared.clock import now_ns
from shared.connection_file import (
    DEFAULT_INSTANCE,
    InstancePaths,
    instance_paths,
    prepare_root,
)
from user_proc.errors import KernelStartFailed, WrongKernelSetting
from user_proc.transport.child_environment import child_environment
from user_proc.transport.kernel_control import STOP_SECONDS, folder_errors
from user_proc.transport.kernels_used import note_kernel
from user_proc.transport.watched_process import end_process, has_ended, reap

READY_SECONDS: Final = 10.0

_GIVE_UP_SECONDS: Final = 5.0
_EXIT_SECONDS: Final = 5.0
_WRONG_USAGE: Final = 2  # the kernel's exit code for options it does not take
_MAX_LINE: Final = 4096
_MODEL: Final = "latency_model"
_PROFILE: Final = "hca_profile"
_ON_BY_DEFAULT: Final = ("hca", "threaded_dpcs")  # what False says something about
_MAX_OUTPUT: Final = 1 << 20


class StartedKernel:
    """A kernel this process has started; a context manager that stops it."""

    def __init__(self, name: str, log: Path, pid: int, pidfd: int, owner_fd: int | None) -> None:
        self.name: Final = name
        self.pid: Final = pid
        self.log: Final = log
        self.exit_code: int | None = None
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

        True if it ended in order; it has removed its files then, and its log, if that is in its
        folder and it is bound to us, or tells of nothing unusual.
        """
        if self._pidfd < 0:
            return self.exit_code == 0
        in_time = end_process(self._pidfd, timeout)
        self.exit_code = reap(self._pidfd)
        self._close()
        return in_time and self.exit_code == 0

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


def start_kernel(
    name: str = DEFAULT_INSTANCE,
    *,
    owner_bound: bool = True,
    settings: Mapping[str, object] | None = None,
    timeout: float = READY_SECONDS,
) -> StartedKernel:
    """Start a kernel and wait until it is ready.

    `settings` are the kernel's options by name (`verifier=True` becomes `--verifier`,
    `driver=["mailbox.py:driver_entry"]` loads a driver, `log="FILE"` keeps its log there,
    `hca=False` becomes `--no-hca`); files are found from the folder of this process. A kernel that
    is not bound to its owner goes on when this process ends.
    """
    with folder_errors():
        paths = instance_paths(name)
        prepare_root(paths)
    options = dict(settings or {})
    log = Path(os.path.abspath(str(options.pop("log", None) or paths.log)))
    with contextlib.ExitStack() as stack:
        output = os.memfd_create("softhca-kernel-output")
        stack.callback(os.close, output)
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
            pid, pidfd = _spawn(paths, log, passed, options, output)
            closing_writer.close()  # so that the kernel's end is the pipe's end
            kernel = StartedKernel(name, log, pid, pidfd, owner_fd)
        except BaseException:
            if owner_fd is not None:
                os.close(owner_fd)
            raise
        try:
            _wait_until_ready(kernel, ready_reader, output, timeout)
            note_kernel(name)
        except BaseException as error:
            # In order, so that it takes its files with it; it hears of it when it has started.
            kernel.stop(_GIVE_UP_SECONDS)
            if kernel.exit_code == _WRONG_USAGE and isinstance(error, KernelStartFailed):
                raise WrongKernelSetting(str(error)) from None
            raise
    return kernel


def _spawn(
    paths: InstancePaths,
    log: Path,
    passed: list[int],
    settings: Mapping[str, object],
    output: int,
) -> tuple[int, int]:
    """Execute the kernel; give its pid and pidfd."""
    arguments = [sys.executable, "-P", "-m", "kernel_proc", "--name", paths.name]
    arguments += ["--log", str(log), "--take-output"]
    for option, descriptor in zip(("--ready-fd", "--owner-fd"), passed, strict=False):
        arguments += [option, str(descriptor)]
    for setting, value in settings.items():
        option = "--" + setting.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif isinstance(value, (list, tuple)):
            for one in value:
                arguments += [option, _driver_from_here(str(one))]
        elif value is False and setting in _ON_BY_DEFAULT:
            arguments.append("--no-" + setting.replace("_", "-"))
        elif value is not False and value is not None:
            text = str(value)
            arguments += [option, _from_here(setting, text)]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=child_environment(),
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


def _from_here(setting: str, text: str) -> str:
    """Name a file of the HCA's so that the kernel, which runs in another folder, finds it."""
    is_model = setting == _MODEL and ("/" in text or text.endswith(".toml"))
    return os.path.abspath(text) if is_model or setting == _PROFILE else text


def _driver_from_here(specification: str) -> str:
    """Name a driver's file so that the kernel, which runs in another folder, finds it."""
    place, colon, entry = specification.rpartition(":")
    if "/" in place or place.endswith(".py"):
        return f"{os.path.abspath(place)}{colon}{entry}"
    return specification


def _wait_until_ready(kernel: StartedKernel, reader: int, output: int, timeout: float) -> None:
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
        why = f"it ended at once; its last words: {_last_words(output, kernel.log)}"
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


def _last_words(output: int, log: Path) -> str:
    """Give the last line it wrote, to its log if it came so far."""
    text = os.pread(output, _MAX_OUTPUT, 0).decode("utf-8", "replace")
    with contextlib.suppress(OSError):
        text += log.read_text(encoding="utf-8", errors="replace")
    lines = text.strip().splitlines()
    return lines[-1] if lines else "(none)"
