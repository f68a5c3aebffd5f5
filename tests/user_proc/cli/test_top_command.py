"""`softhca top` on a real kernel: as lines, as JSON, on a terminal; how it ends."""

import json
import os
import pty
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from shared.ioctl_codes import COMPLETION_INLINE, METHOD_BUFFERED, NOOP_DEVICE, noop_code
from tests.ready_python import Program
from tests.user_proc.cli.conftest import COMMAND, environment
from tests.user_proc.verbs.self_connected import run
from user_proc.cli.top_view import lines_of_sample
from user_proc.process import UserProcess
from user_proc.top.sample import Watch
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs.device import Context

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]
REQUESTS = 210
END_SECONDS = 20.0


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"top-{uuid.uuid4().hex[:8]}") as started:
        yield started


def test_what_a_program_does_is_told(kernel: StartedKernel):
    with (
        UserProcess.connect(kernel.name) as process,
        Context(name="mthca0", process=process) as context,
        process.open_device(NOOP_DEVICE) as device,
    ):
        watch = Watch(kernel.name)
        code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
        for _ in range(REQUESTS):
            device.device_io_control(code, b"x", bytearray(1))
        run(context)
        sample = watch.next_sample(0.0)
    seconds, rates = sample["seconds"], sample["rates"]
    assert REQUESTS <= rates["requests"] * seconds * 1.02 <= REQUESTS + 100
    assert rates["verbs"] * seconds >= 10
    assert rates["commands"] * seconds >= 10
    assert rates["doorbells"] > 0
    assert rates["interrupts"] > 0
    timed = sample["request_us"]
    assert timed["timed"] >= REQUESTS // 7
    assert 0 < timed["p50"] <= timed["p90"] <= timed["p99"] <= timed["longest"]
    (session,) = sample["sessions"]
    assert (session["pid"], session["state"]) == (os.getpid(), "open")
    assert session["rss_bytes"] > 1 << 20
    hca = sample["hca"]
    shares = [hca[f"{name}_percent"] for name in ("busy", "looking", "asleep")]
    assert hca["state"] == "up"
    assert shares[0] > 0
    assert 90 < sum(shares) < 200  # a sleep that began before may be in it, too
    assert sample["kernel"]["pid"] == kernel.pid
    narrow = list(lines_of_sample(sample, rows=5, width=60))
    head = narrow[: narrow.index("")]
    assert max(map(len, head)) <= 60
    rates_ = " ".join(line.strip() for line in head)
    assert all(f"{name.replace('_', ' ')} " in rates_ for name in rates)
    lines = list(lines_of_sample(sample, rows=5))
    assert lines[0].startswith(f"kernel {kernel.name} (pid {kernel.pid})")
    assert any(str(os.getpid()) in line.split() for line in lines)


def test_lines_follow_each_other_until_it_is_interrupted(begin: Begin, kernel: StartedKernel):
    top = begin("top", "--name", kernel.name, "--interval", "0.1", "--json")
    assert top.stdout is not None
    for _ in range(2):
        assert json.loads(top.stdout.readline())["name"] == kernel.name
    top.send_signal(signal.SIGINT)
    assert top.wait(END_SECONDS) == 0


def test_once_is_one_interval_in_words(softhca: Run, kernel: StartedKernel):
    done = softhca("top", "--name", kernel.name, "--interval", "0.1", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"kernel {kernel.name} (pid {kernel.pid}): ")
    assert "HCA up (pid" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_kernel_that_ends_is_one_sentence():
    name = f"top-{uuid.uuid4().hex[:8]}"
    with start_kernel(name) as mortal:
        top = subprocess.Popen(
            [*COMMAND, "top", "--name", name, "--interval", "0.1"],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert top.stdout is not None
            assert top.stdout.readline().startswith(f"kernel {name}")
            os.kill(mortal.pid, signal.SIGKILL)
            _, errors = top.communicate(timeout=END_SECONDS)
        finally:
            top.kill()
            top.communicate()
    assert (top.returncode, errors) == (3, f"softhca: the kernel {name!r} has ended\n")


def test_without_a_kernel_it_says_so(softhca: Run):
    done = softhca("top", "--name", "never-started", "--json")
    assert done.returncode == 3
    assert "never-started" in json.loads(done.stdout)["error"]
    assert softhca("top", "--interval", "0").returncode == 2


def test_a_terminal_is_drawn_anew_and_given_back(kernel: StartedKernel):
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*COMMAND, "top", "--name", kernel.name, "--interval", "0.2"],
            env={**environment(), "TERM": "xterm", "LINES": "30"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        ) as top:  # fmt: skip
            try:
                seen = read_until(ours, b"HCA up")
                assert b"\x1b[?1049h" in seen  # the alternate screen
                top.send_signal(signal.SIGINT)
                read_until(ours, b"\x1b[?1049l")
                assert top.wait(END_SECONDS) == 0
            finally:
                top.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(terminal: int, words: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + END_SECONDS
    while words not in seen:
        left = deadline - time.monotonic()
        assert left > 0, seen
        assert select.select([terminal], [], [], left)[0], seen
        seen += os.read(terminal, 1 << 16)
    return seen
