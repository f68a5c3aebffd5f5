"""Programs of a ready interpreter when it, or who asked it, is killed."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.ready_python import ROOT, ReadyPython

SECONDS = 20.0
STAYS = "print('there', flush=True); import select; select.select([], [], [])"
ASKER = f"""
import signal
from tests.ready_python import ReadyPython
ready = ReadyPython()
program = ready.start({STAYS!r}, stdin=None)
assert program.stdout.readline() == "there\\n"
print(program.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def ready() -> Iterator[ReadyPython]:
    """An interpreter of the test's own."""
    ready = ReadyPython()
    yield ready
    ready.close()


def test_whoever_asked_is_killed_and_the_programs_are_asked_to_end():
    with subprocess.Popen(
        [sys.executable, "-P", "-c", ASKER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as asker:
        assert asker.stdout is not None
        pidfd = os.pidfd_open(int(asker.stdout.readline()))
        asker.kill()
        assert select.select([pidfd], [], [], SECONDS)[0]
        os.close(pidfd)


def test_a_program_can_be_killed_when_the_interpreter_was(ready: ReadyPython):
    program = ready.start(STAYS)
    assert program.stdout is not None
    assert program.stdout.readline() == "there\n"
    assert ready._process is not None
    ready._process.kill()
    for _ in range(2):
        with pytest.raises(AssertionError, match="whoever forked the program"):
            program.wait(SECONDS)
    program.kill()
    assert program.stdout.read() == ""  # its end is closed
    for stream in (program.stdin, program.stdout, program.stderr):
        assert stream is not None
        stream.close()


def test_a_program_that_ended_is_not_signalled(ready: ReadyPython):
    program = ready.start("raise SystemExit(3)", stdin=None, stdout=None, stderr=None)
    assert program.wait(SECONDS) == 3
    program.send_signal(signal.SIGKILL)
    assert program.poll() == 3
