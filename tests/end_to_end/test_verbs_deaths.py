"""The HCA, or the kernel, is killed under four processes that are in every call there is.

Each process has a thread in a verb, in a query, opening the device, in a poll loop, in
get_cq_event, get_async_event, select on either descriptor, in a pended request, and arming. All of them end with EIO within 2 s.
"""

import errno
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from tests.end_to_end.conftest import wait_until
from tests.end_to_end.verbs_holdings import everything_held
from tests.end_to_end.verbs_waiters import WAITS
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4
REFUSED = ("PyverbsRDMAError", str(errno.EIO))
#: What else an end may look like: the event is another thread's; the driver has answered, or the
#: connection is over.
ALLOWED = {
    "select_async": [("EOFError", "None")],
    "pended": [("OSError", str(errno.EIO)), ("KernelDied", "None")],
    "open": [("PyverbsRDMAError", "-1")],  # there is no kernel to open it on
}
WITHIN_SECONDS = 2.0


@contextmanager
def waiters(kernel: StartedKernel) -> Iterator["subprocess.Popen[str]"]:
    """Start the processes; every thread of them is at work."""
    started = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.end_to_end.verbs_waiters", kernel.name, str(PROCESSES)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stderr is not None
    try:
        ready = sorted(started.stdout.readline() for _ in range(PROCESSES))
        assert ready == [f"{number} ready\n" for number in range(PROCESSES)], started.stderr.read()
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def check_all_end(started: "subprocess.Popen[str]", killed: float, fatal: int) -> dict[str, float]:
    """Every call of every process ended with EIO in time; how late the latest of each kind."""
    output, errors = started.communicate(timeout=20)
    assert errors == ""
    lines = [line.split() for line in output.splitlines()]
    latest = dict.fromkeys(WAITS, 0.0)
    ended = [line for line in lines if len(line) == 5]
    assert sorted(line[:2] for line in ended) == sorted(
        [str(number), name] for number in range(PROCESSES) for name in WAITS
    )
    for _, name, kind, code, when in ended:
        latest[name] = max(latest[name], float(when) - killed)
        assert (kind, code) in ALLOWED.get(name, ()) or (kind, code) == REFUSED, (name, kind, code)
    for number in range(PROCESSES):
        rest = [line[1:] for line in lines if line[0] == str(number) and len(line) < 5]
        assert rest == [["fatal", str(fatal)], ["closed"]]
    assert max(latest.values()) < WITHIN_SECONDS, latest
    return latest


def test_every_call_ends_with_eio_when_the_hca_is_killed():
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as kernel:
        nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
        hca = kernel_state(kernel.name)["hca"]["link"]["process"]
        with waiters(kernel) as started:
            killed = time.monotonic()
            os.kill(hca, signal.SIGKILL)
            latest = check_all_end(started, killed, fatal=1)
        print({name: f"{seconds:.3f} s" for name, seconds in latest.items()})
        wait_until(lambda: not kernel_state(kernel.name)["server"]["sessions"])
        state = everything_held(kernel_state(kernel.name))
        for what in ("contexts", "dead contexts", "irps", "open files", "locked", "threads"):
            assert state[what] == nothing[what], what
        assert (state["arenas"], state["pool"]) == (nothing["arenas"], nothing["pool"])
        with pytest.raises(PyverbsRDMAError, match="Failed to open device mthca0") as caught:
            Context(name="mthca0", kernel=kernel.name)
        assert caught.value.reason
        assert kernel.running
    assert kernel.exit_code == 0


def test_every_call_ends_with_eio_when_the_kernel_is_killed():
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}") as kernel, waiters(kernel) as started:
        killed = time.monotonic()
        os.kill(kernel.pid, signal.SIGKILL)
        latest = check_all_end(started, killed, fatal=0)
    print({name: f"{seconds:.3f} s" for name, seconds in latest.items()})


def _verb(context: Context, cq: CQ, channel: CompChannel) -> None:
    context.query_device()


def _poll(context: Context, cq: CQ, channel: CompChannel) -> None:
    cq.poll()


def _event(context: Context, cq: CQ, channel: CompChannel) -> None:
    channel.get_cq_event(cq)


def _create(context: Context, cq: CQ, channel: CompChannel) -> None:
    PD(context)


@pytest.mark.parametrize("first", [None, _verb, _poll, _event, _create])
@pytest.mark.parametrize("wanted", [False, True])
def test_whoever_learns_of_it_first_the_fatal_event_comes_once(first: Any, wanted: bool):
    machine = Machine(KernelSettings(verifier=True), in_process=True)
    machine.start_hca()
    assert machine.hca is not None
    with (
        UserProcess.in_process(machine.connect_in_process("verbs")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        channel = CompChannel(context)
        cq = CQ(context, 4, None, channel)
        if wanted:
            assert not select.select([context.async_fd], [], [], 0)[0]
        machine.hca.link.kill("a test")
        if first is not None:
            with pytest.raises(PyverbsRDMAError) as caught:
                first(context, cq, channel)
            assert caught.value.error_code == errno.EIO
        event = context.get_async_event()
        assert event.event_type == e.IBV_EVENT_DEVICE_FATAL
        event.ack()
        assert select.select([context.async_fd], [], [], 0)[0]
        with pytest.raises(PyverbsRDMAError) as caught:
            context.get_async_event()
        assert caught.value.error_code == errno.EIO
    machine.close()
