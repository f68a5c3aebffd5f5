"""An interpreter that has imported what programs need, and forks one whenever it is asked.

Each program is a process of its own, with the streams, arguments, folder, environment and
descriptors it is given, and ends as any process does; only the start of an interpreter and its
imports, which most of a short program's time goes into, are done once.

Rules: the interpreter has one thread. It is nobody's terminal's: Ctrl-C reaches the one who asks.
Spec: fork(2), SCM_RIGHTS of unix(7), pidfd_open(2).
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 1 << 17
MOST_DESCRIPTORS = 16

#: Not by -m, so that this module is imported under its own name.
_SERVE = f"from {__name__} import serve; serve()"

_FAREWELL = b"that was all"  # without it, whoever asked was killed
_STANDARD = 3  # stdin, stdout, stderr
_MAIN = "__main__"


class Program:
    """A running program, with as much of subprocess.Popen as tests use."""

    def __init__(
        self, pid: int, pidfd: int, status: int, streams: Sequence[IO[str] | None]
    ) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = streams
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code of a program that has ended, minus the signal that ended it."""
        self._wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code."""
        self._wait(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(["program", str(self.pid)], timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended; also when whoever forked it has died."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it as no program can prevent."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, data: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Give it its last input, and wait for its end; what it has still written."""
        texts = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            texts[place] = stream.read()
            stream.close()

        readers = [
            threading.Thread(target=read, args=(place, stream), daemon=True)
            for place, stream in enumerate((self.stdout, self.stderr))
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(data)
                self.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():  # a child of the program still has its end
                raise subprocess.TimeoutExpired(["program", str(self.pid)], timeout or 0)
        return texts[0], texts[1]

    def _wait(self, timeout: float | None) -> None:
        if self.returncode is not None or not select.select([self._status], [], [], timeout)[0]:
            return
        word = os.read(self._status, 32)
        assert word, f"whoever forked the program {self.pid} has died"
        os.close(self._status)
        os.close(self._pidfd)
        self.returncode = int(word)


def _ends(number: int, kind: int | None, mode: str) -> tuple[int, IO[str] | None]:
    """Return the program's end of a stream, and the caller's of a pipe."""
    if kind is None:
        return os.dup(number), None
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    reader, writer = os.pipe()
    theirs, ours = (reader, writer) if mode == "w" else (writer, reader)
    return theirs, os.fdopen(ours, mode)


class ReadyPython:
    """The asking side. The interpreter starts when it is first asked; `close` ends it."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._asking: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(
        self,
        code: str,
        *arguments: str,
        stdin: int | None = subprocess.PIPE,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        passed: Sequence[int] = (),
        new_session: bool = False,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Run code as __main__ with these arguments.

        Its folder and environment are those of the caller now, unless others are given; the
        descriptors passed have the same numbers there. A stream is a pipe, subprocess.DEVNULL, or
        the caller's own for None.
        """
        ends = [_ends(0, stdin, "w"), _ends(1, stdout, "r"), _ends(2, stderr, "r")]
        status, tell = os.pipe()
        given = [*(theirs for theirs, _ in ends), tell]
        place = os.getcwd() if folder is None else str(folder)
        variables = dict(os.environ if environment is None else environment)
        words = json.dumps([code, arguments, place, variables, new_session, list(passed)])
        with self._lock:
            asking = self._ready()
            socket.send_fds(asking, [words.encode()], [*given, *passed])
            pid, pidfds, _, _ = socket.recv_fds(asking, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        for descriptor in given:
            os.close(descriptor)
        return Program(int(pid), pidfds[0], status, [ours for _, ours in ends])

    def _ready(self) -> socket.socket:
        if self._asking is None:
            asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with asked:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _SERVE, str(asked.fileno()), *self._modules],
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[asked.fileno()],
                    start_new_session=True,
                )
            self._asking = asking
        return self._asking

    def close(self) -> None:
        """Let the interpreter end."""
        if self._asking is not None and self._process is not None:
            with contextlib.suppress(ConnectionError):  # it has been killed
                self._asking.send(_FAREWELL)
            self._asking.close()
            self._process.wait()
            self._asking = self._process = None


# --- the interpreter -----------------------------------------------------------------------------


class _Forker:
    """What the interpreter does until it is a program itself, or the one who asks has gone."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._poll = select.poll()
        self._poll.register(asked, select.POLLIN)
        self._running: dict[int, tuple[int, int]] = {}  # by pidfd: the pid, and whom to tell

    def next_program(self) -> str | None:
        """Return the code that this process, a new one, is to run; None at the end."""
        while True:
            for ready, _ in self._poll.poll():
                if ready != self._asked.fileno():
                    self._reap(ready)
                    continue
                wanted, descriptors = self._hear()
                if not wanted:
                    self._end_all()
                if wanted in (b"", _FAREWELL):
                    return None
                if not (pid := os.fork()):
                    return self._become(wanted, descriptors)
                self._watch(pid, descriptors)

    def _hear(self) -> tuple[bytes, list[int]]:
        most = _STANDARD + 1 + MOST_DESCRIPTORS
        try:
            wanted, descriptors, _, _ = socket.recv_fds(self._asked, LONGEST, most)
        except ConnectionResetError:  # whoever asked was killed before it had its answer
            return b"", []
        return wanted, descriptors

    def _watch(self, pid: int, descriptors: list[int]) -> None:
        status = descriptors.pop(_STANDARD)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, status
        self._poll.register(pidfd, select.POLLIN)
        with contextlib.suppress(BrokenPipeError):  # that is heard next
            socket.send_fds(self._asked, [str(pid).encode()], [pidfd])

    def _end_all(self) -> None:
        """Ask the programs of somebody who was killed to end."""
        for pidfd in self._running:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        pid, status = self._running.pop(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(status, str(code).encode())
        os.close(status)

    def _become(self, wanted: bytes, descriptors: list[int]) -> str:
        """Be a process of its own, with nothing of the others'."""
        self._asked.close()
        for pidfd, (_, status) in self._running.items():
            os.close(pidfd)
            os.close(status)
        code, arguments, folder, environment, new_session, numbers = json.loads(wanted)
        os.close(descriptors.pop(_STANDARD))  # the status is not its own to tell
        above = 1 + max(numbers, default=0)  # out of the way of the numbers wanted
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        for descriptor, number in zip(moved, (*range(_STANDARD), *numbers), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        if new_session:
            os.setsid()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["-c", *arguments]
        assert isinstance(code, str)
        return code


def serve() -> None:
    """Import what is named, serve the socket; in each child be the program."""
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    code = _Forker(socket.socket(fileno=int(sys.argv[1]))).next_program()
    if code is None:
        return
    program: Any = types.ModuleType(_MAIN)
    sys.modules[_MAIN] = program
    exec(compile(code, "<string>", "exec"), vars(program))
