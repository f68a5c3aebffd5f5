"""A process that has the command `softhca` imported, and runs it in a child whenever it is asked.

Each run is a process of its own with the streams, folder and environment it is given; only the
start of an interpreter, which most of a short command's time goes into, is done once.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 1 << 16
#: What the commands import when they run.
USED = (
    "rich.progress",
    "rich.traceback",
    "typer.rich_utils",
    "user_proc.bench.bench_run",
    "user_proc.run_document",
    "user_proc.transport.kernel_control",
    "user_proc.verbs.device",
)


#: Not by -m, which the command would show in its help.
_SERVE = f"from {__name__} import serve; serve()"


class ReadyCommand:
    """The asking side."""

    def __init__(self, asking: socket.socket) -> None:
        self._asking = asking

    def run(
        self, arguments: Sequence[str], folder: Path, environment: dict[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; kill it after so many seconds."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            wanted = json.dumps([*arguments, str(folder), environment]).encode()
            socket.send_fds(self._asking, [wanted], [output.fileno(), errors.fileno()])
            pid = int(self._asking.recv(LONGEST))
            self._asking.settimeout(seconds)
            try:
                code = int(self._asking.recv(LONGEST))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            texts = [Path(f"/proc/self/fd/{one.fileno()}").read_text() for one in (output, errors)]
        return subprocess.CompletedProcess([*arguments], code, *texts)


@pytest.fixture(scope="session")
def ready_command() -> Iterator[ReadyCommand]:
    """The command, imported once for all runs of it."""
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asking:
        with asked:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE, str(asked.fileno())],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[asked.fileno()],
            )
        yield ReadyCommand(asking)
    process.wait()


def _next_run(asked: socket.socket) -> bool:
    """Do runs in children; True in a child, which is to run the command, False at the end."""
    while True:
        wanted, streams, _, _ = socket.recv_fds(asked, LONGEST, 2)
        if not wanted:
            return False
        pid = os.fork()
        if not pid:
            *sys.argv[1:], folder, environment = json.loads(wanted)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            for stream, number in zip(streams, (1, 2), strict=True):
                os.dup2(stream, number)
                os.close(stream)
            asked.close()
            return True
        for stream in streams:
            os.close(stream)
        asked.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        asked.send(str(os.waitstatus_to_exitcode(status)).encode())


def serve() -> None:
    """Serve the socket; in each child be the command."""
    command = importlib.import_module("user_proc.cli.main")
    for name in USED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if _next_run(socket.socket(fileno=int(sys.argv[1]))):
        sys.argv[0] = "softhca"
        command.main()
