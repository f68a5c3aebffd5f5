"""The same faults between real processes: kernel, HCA, and users that are told of by nobody.

What the clock makes long is not here; those in `fault_box.py` have a virtual one.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ioctl_codes import COMPLETION_INLINE, METHOD_BUFFERED, noop_code
from shared.nt_status import STATUS_QUOTA_EXCEEDED
from tests.end_to_end.conftest import wait_until
from tests.end_to_end.fault_scene import LENGTH, Scene, errno_of, reset_hca
from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.dm import DM, AllocDmAttr
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
NOOP = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
OK, PROT_ERR, ACCESS_ERR, RETRY_ERR = (
    int(status)
    for status in (
        e.IBV_WC_SUCCESS, e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_RETRY_EXC_ERR
    )
)  # fmt: skip


class Kernel(Scene):
    """The scene on a kernel process."""

    def __init__(self, kernel: StartedKernel) -> None:
        self.kernel = kernel
        self.name = kernel.name
        super().__init__(
            lambda name: UserProcess.connect(kernel.name),
            wait_until,
            lambda: kernel_state(kernel.name),
        )


@pytest.fixture(scope="module")
def scene() -> Iterator[Kernel]:
    with start_kernel(f"faults-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as kernel:
        nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
        made = Kernel(kernel)
        yield made
        made.clear()
        made.the_other_goes_on()
        made.close()
        wait_for_nothing_more(kernel.name, nothing)
        assert kernel.running
    assert kernel.exit_code == 0


@pytest.fixture(autouse=True)
def cleared(scene: Kernel) -> Iterator[None]:
    """After each test no fault is set, everything works, and nothing is held by the victim."""
    yield
    scene.clear()
    assert scene.hits() == []
    scene.the_other_goes_on()
    held = {one["session"]: one["locked_pages"] for one in scene.state()["server"]["sessions"]}
    assert set(held.values()) == {0}


def seconds(act: Callable[[], object]) -> float:
    before = time.monotonic()
    act()
    return time.monotonic() - before


def test_faults_of_commands(scene: Kernel):
    with scene.context() as context:
        scene.set("command-fails", command="SW2HW_MPT", status="EXCEED_LIM", nth=1)
        pd = PD(context)
        assert errno_of(lambda: MR(pd, LENGTH, 1)) == errno.ENOMEM
        scene.set("command-late", time="150ms", times=1)
        assert seconds(lambda: context.query_port(1)) >= 0.15
        MR(pd, LENGTH, 1)
        assert scene.hits() == [1, 1]


def test_faults_of_interrupts_and_event_queues(scene: Kernel):
    with scene.pair() as pair:
        scene.set("interrupt-doubled")
        for _ in range(3):
            pair.sent.req_notify()
            assert pair.statuses(1) == [OK]
            pair.channel.get_cq_event(pair.sent)
        scene.clear()
        pair.sent.req_notify()
        scene.set("interrupt-lost", times=3)
        assert pair.statuses(1) == [OK]
        for _ in range(2):  # the driver looks by itself, and finds the event with it
            assert seconds(lambda: pair.context.query_port(1)) < 5
        pair.channel.get_cq_event(pair.sent)
        assert scene.hits() == [3]
        pair.sent.req_notify()
        scene.set("event-queue-full", lasts="200ms")
        assert pair.statuses(1) == [OK]
        assert seconds(lambda: pair.channel.get_cq_event(pair.sent)) >= 0.1
        pair.sent.ack_events(5)


def test_faults_of_ports_and_links(scene: Kernel):
    with scene.pair() as pair:
        scene.set("port-down", port=1, lasts="250ms")
        kinds = []
        for _ in range(2):
            event = pair.context.get_async_event()
            kinds.append(event.event_type)
            event.ack()
        assert kinds == [e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_PORT_ACTIVE]
        assert pair.statuses(1) == [OK]
        scene.set("request-lost", every=3)
        scene.set("ack-lost", probability="20%", seed=5, queue_pair=pair.sender.qp_num)
        scene.set("request-doubled", every=2)
        assert pair.statuses(20) == [OK] * 20
        assert pair.statuses(20, e.IBV_WR_ATOMIC_FETCH_AND_ADD) == [OK] * 20
        assert int.from_bytes(pair.mr.read(8, LENGTH), "little") == 20
        assert min(scene.hits()) > 0
        assert scene.figures(pair.sender)["retries"] > 0
        scene.clear()
        scene.set("link-down", lasts="20s")
        assert pair.statuses(1) == [RETRY_ERR]


@pytest.mark.parametrize(
    ("point", "status"), [("remote-key-corrupt", ACCESS_ERR), ("local-key-corrupt", PROT_ERR)]
)
def test_faults_of_keys(scene: Kernel, point: str, status: int):
    with scene.pair() as pair:
        scene.set(point, nth=2)
        assert pair.statuses(2, e.IBV_WR_RDMA_WRITE) == [OK, status]


def test_an_hca_that_is_slow_or_stands_still(scene: Kernel):
    with scene.pair() as pair:
        scene.set("hca-slow", time="20ms", lasts="10s")
        assert seconds(lambda: pair.statuses(4)) >= 0.04
        scene.clear()
        scene.set("hca-paused", lasts="300ms")
        assert 0.2 <= seconds(lambda: pair.statuses(1)) < 5
        scene.set("hca-paused", lasts="300ms")
        assert len(scene.hits()) == 1  # it answers all the same
        assert seconds(lambda: pair.context.query_port(1)) >= 0.1


def test_a_kernel_that_is_slow_or_stands_still(scene: Kernel):
    with scene.pair() as pair:
        scene.set("kernel-slow", time="50ms", lasts="60s")
        assert seconds(lambda: pair.context.query_port(1)) >= 0.05
        scene.clear()
        pausing = threading.Thread(
            target=scene.set, args=("kernel-paused",), kwargs={"lasts": "1s"}
        )
        pausing.start()
        wait_until(lambda: seconds(pair.context.query_device) > 0.5)
        pausing.join()


@pytest.mark.parametrize("point", ["hca-failed", "hca-killed"])
def test_an_hca_that_dies(scene: Kernel, point: str):
    with scene.pair() as pair:
        scene.set(point)
        event = pair.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_DEVICE_FATAL
        event.ack()
        for act in (pair.sent.poll, pair.context.query_device):
            assert errno_of(act) == errno.EIO
        reset_hca(scene)


def test_faults_of_memory(scene: Kernel):
    with scene.context() as context:
        pd = PD(context)
        scene.set("hca-memory-fails")
        assert errno_of(lambda: DM(context, AllocDmAttr(LENGTH))) == errno.ENOMEM
        scene.clear()
        scene.set_for_user("page-lock-fails", times=1)
        assert errno_of(lambda: MR(pd, LENGTH, 1)) == errno.ENOMEM
        MR(pd, LENGTH, 1)
        scene.set_for_user("pool-fails", nth=1)
        with pytest.raises(NtStatusError) as caught, scene.process.open_device("noop") as device:
            device.device_io_control(NOOP)
        assert caught.value.status == STATUS_QUOTA_EXCEEDED
        scene.the_other_goes_on()
        scene.set_for_user("arena-fails")
        with pytest.raises(SofthcaError, match="STATUS_QUOTA_EXCEEDED"):
            scene.process.allocate(64 << 20)


#: A program whose messages are lost: it can be interrupted, as everybody can, and goes on.
INTERRUPTED = """
import sys
from user_proc.process import UserProcess
with UserProcess.connect(sys.argv[1]) as process, process.open_device("noop") as device:
    print(process.session, flush=True)
    sys.stdin.readline()
    try:
        print("calls", flush=True)
        device.device_io_control(int(sys.argv[2]))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    device.device_io_control(int(sys.argv[2]))
    print("goes on", flush=True)
"""


def test_messages_that_are_lost(scene: Kernel):
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", INTERRUPTED, scene.name, str(NOOP)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdin is not None
    try:
        scene.set("message-lost", session=int(program.stdout.readline()), nth=1)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "calls\n"
        wait_until(lambda: scene.hits() == [1])
        scene.the_other_goes_on()
        program.send_signal(signal.SIGINT)
        output, errors = program.communicate(timeout=20)
    finally:
        if program.poll() is None:
            program.kill()
            program.communicate()
    assert (output, errors) == ("interrupted\ngoes on\n", "")


def test_messages_that_are_cut_or_doubled(scene: Kernel):
    with scene.pair() as pair:
        scene.set_for_user("message-cut", part="payload", nth=1)
        with pytest.raises(PyverbsRDMAError, match="STATUS_INVALID_PARAMETER"):
            pair.context.query_port(1)
        scene.clear()
        scene.set_for_user("message-doubled")
        for _ in range(5):
            assert pair.context.query_port(1).state == e.IBV_PORT_ACTIVE
        pair.sent.req_notify()
        assert pair.statuses(2) == [OK, OK]
        pair.channel.get_cq_event(pair.sent)
        pair.sent.ack_events(1)


def test_no_fault_is_left_with_another_hca(scene: Kernel):
    scene.set("ack-lost")
    reset_hca(scene)
    assert scene.hits() == []
    with scene.pair() as pair:
        assert pair.statuses(3) == [OK] * 3
