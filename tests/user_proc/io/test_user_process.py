"""A program's connection: opened, shared by threads, forked, interrupted, forgotten, closed."""

import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared.ioctl_codes import COMPLETION_DPC, METHOD_BUFFERED, noop_code
from user_proc.errors import (
    ConnectionClosed,
    InvalidInstanceName,
    KernelDied,
    KernelNotRunning,
)
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

CODE = noop_code(METHOD_BUFFERED, COMPLETION_DPC)
ROOT = Path(__file__).resolve().parents[3]


def test_two_connections_of_one_process(kernel: Any):
    before = os.listdir("/proc/self/fd")
    with UserProcess.connect(kernel.name) as first, UserProcess.connect(kernel.name) as second:
        assert first.session != second.session
        assert first.kernel_pid == second.kernel_pid == kernel.pid
        assert not first.closed
        assert first.echo(b"a") + second.echo(b"b") == b"ab"
    assert first.closed
    assert os.listdir("/proc/self/fd") == before


def test_close_is_final_and_may_be_repeated(kernel: Any):
    process = UserProcess.connect(kernel.name)
    device = process.open_device("noop")
    buffer = process.allocate(64)
    process.close()
    process.close()
    device.close()
    buffer.release()
    for use in (process.echo, process.create_event, lambda: process.open_device("noop")):
        with pytest.raises(ConnectionClosed, match="is closed: connect again"):
            use()
    with pytest.raises(ConnectionClosed):
        process.allocate(1 << 22)


def test_threads_share_a_connection_and_a_handle(process: UserProcess):
    def work(number: int) -> None:
        data, output = b"%d" % number, bytearray(1)
        with process.open_device("noop", overlapped=True) as own:
            for handle in (device, own) * 20:
                assert handle.device_io_control(CODE, data, output) == 1
                assert output == data

    with process.open_device("noop") as device, ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert process.counters().late_answers == 0
    assert process.channel.outstanding == {}


def test_close_while_threads_wait(kernel: Any):
    process = UserProcess.connect(kernel.name)
    event = process.create_event()
    waiting = threading.Barrier(4)

    def wait() -> None:
        process.echo()
        waiting.wait()
        event.wait()

    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(wait) for _ in range(3)]
        waiting.wait()
        process.close()
        for one in waits:
            with pytest.raises(ConnectionClosed):
                one.result(timeout=10)


def test_nobody_to_connect_to():
    with pytest.raises(KernelNotRunning):
        UserProcess.connect("nobody-here")
    with pytest.raises(InvalidInstanceName, match="cannot name an instance"):
        UserProcess.connect("no/name")


def test_death_of_the_kernel_is_seen_everywhere_within_two_seconds():
    kernel = start_kernel(f"dies-{os.getpid()}")
    with UserProcess.connect(kernel.name) as process:
        event = process.create_event()
        device = process.open_device("noop", overlapped=True)
        with ThreadPoolExecutor(4) as pool:
            os.kill(kernel.pid, signal.SIGSTOP)
            waits = [
                pool.submit(event.wait),
                pool.submit(process.echo, b"x"),
                pool.submit(device.start, CODE),
                pool.submit(process.allocate, 1 << 20),
            ]
            os.kill(kernel.pid, signal.SIGKILL)
            assert select.select([kernel.pidfd], [], [], 5)[0]
            for wait in waits:
                with pytest.raises(KernelDied):
                    wait.result(timeout=2)
        for late in (process.echo, event.wait, lambda: process.open_device("noop")):
            with pytest.raises(KernelDied):
                late()
        with ThreadPoolExecutor(1) as pool, pytest.raises(KernelDied, match="has ended"):
            pool.submit(process.echo).result(timeout=2)
        device.close()
    kernel.stop()


def run(program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


FORGETFUL = """
import sys
from user_proc.process import UserProcess
process = UserProcess.connect(sys.argv[1])
device = process.open_device("noop", overlapped=True)
buffer = process.allocate(100)
process.echo()
"""


def test_a_program_that_forgets_to_close_ends_quietly(kernel: Any):
    process = run(FORGETFUL, kernel.name)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "", "")


INTERRUPTED = """
import sys
from user_proc.process import UserProcess
with UserProcess.connect(sys.argv[1]) as process, process.create_event() as event:
    for _ in range(3):
        process.echo()
        try:
            print("waiting", flush=True)
            event.wait()
        except KeyboardInterrupt:
            print("interrupted", process.echo(b"usable"), event.wait(0), flush=True)
    print(process.counters().late_answers)
"""


def test_ctrl_c_ends_the_wait_and_leaves_the_connection_usable(kernel: Any):
    process = run(INTERRUPTED, kernel.name)
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted b'usable' False\n"
    assert int(process.stdout.readline()) <= 3  # an interrupt may come before the request is sent
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


FORKED = """
import os, sys, warnings
from user_proc.errors import ForkedProcess
from user_proc.process import UserProcess
warnings.filterwarnings("ignore", category=DeprecationWarning)  # fork beside threads, on purpose
# pyzmq leaves the parent's sockets alone in the child, and says that it does.
warnings.filterwarnings("ignore", "Unclosed (socket|context)", ResourceWarning)
process = UserProcess.connect(sys.argv[1])
device = process.open_device("noop", overlapped=True)
process.echo()
child = os.fork()
if child == 0:
    for use in (process.echo, device.close, process.create_event, lambda: device.start(0)):
        try:
            use()
        except ForkedProcess as error:
            print("refused", flush=True)
    process.close()
    with UserProcess.connect(sys.argv[1]) as own:
        print(own.echo(b"own connection"), flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(process.echo(b"parent"), device.device_io_control(int(sys.argv[2]), b"x", bytearray(1)))
process.close()
"""


def test_a_forked_child_is_refused_and_may_connect_itself(kernel: Any):
    process = run(FORKED, kernel.name, str(CODE))
    output, errors = process.communicate(timeout=20)
    assert errors == ""
    assert output.splitlines() == ["refused"] * 4 + ["b'own connection'", "0", "b'parent' 1"]
    assert process.returncode == 0


THREADS_GO = """
import sys, threading
from user_proc.process import UserProcess
with UserProcess.connect(sys.argv[1]) as process:
    for _ in range(200):  # many more than a session may have at one time
        thread = threading.Thread(target=process.create_event)
        thread.start()
        thread.join()
    print(process.counters().threads)
"""


def test_threads_that_end_make_room_for_others(kernel: Any):
    process = run(THREADS_GO, kernel.name)
    output, errors = process.communicate(timeout=30)
    assert (output, errors) == ("0\n", "")
