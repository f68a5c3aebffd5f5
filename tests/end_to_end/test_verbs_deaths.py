"""The HCA, or the kernel, is killed under four processes that are in every call there is.

Each process has a thread in a verb, in a query, opening the device, in a poll loop, in
get_cq_event, get_async_event, select on either descriptor, in a pended request, and arming. All of
them end with EIO within 2 s.
"""

import errno
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_CONNECTION,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_THREAD_IS_TERMINATING,
)
from shared.verb_codes import HCA_CONTROL_DEVICE, IOCTL_RESET_HCA, VERB_RESULT
from tests.end_to_end.conftest import READY_USER, wait_until
from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from tests.end_to_end.verbs_things import Things
from tests.end_to_end.verbs_waiters import WAITS
from tests.ready_python import Program
from tests.user_proc.verbs.self_connected import run
from user_proc.errors import NtStatusError
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.event_pump import EventPump
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.verb_session import VerbRefusal

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
def waiters(kernel: StartedKernel) -> Iterator[Program]:
    """Start the processes; every thread of them is at work."""
    started = READY_USER.start(
        "from tests.end_to_end.verbs_waiters import main; main()",
        *(kernel.name, str(PROCESSES)),
        stdin=subprocess.DEVNULL,
        new_session=True,
    )
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


def check_all_end(started: Program, killed: float, fatal: tuple[int, ...]) -> dict[str, float]:
    """Every call of every process ended with EIO in time; how late the latest of each kind.

    `fatal` says how many DEVICE_FATAL events each process may have got.
    """
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
        assert rest in [[["fatal", str(count)], ["closed"]] for count in fatal]
    assert max(latest.values()) < WITHIN_SECONDS, latest
    return latest


def test_every_call_ends_with_eio_when_the_hca_is_killed():
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as kernel:
        nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
        hca = kernel_state(kernel.name)["hca"]["link"]["process"]
        with waiters(kernel) as started:
            killed = time.monotonic()
            os.kill(hca, signal.SIGKILL)
            latest = check_all_end(started, killed, fatal=(1,))
        print({name: f"{seconds:.3f} s" for name, seconds in latest.items()})
        wait_until(lambda: not kernel_state(kernel.name)["server"]["sessions"])
        state = everything_held(kernel_state(kernel.name))
        for what in ("contexts", "dead contexts", "irps", "open files", "locked", "threads"):
            assert state[what] == nothing[what], what
        assert (state["arenas"], state["pool"]) == (nothing["arenas"], nothing["pool"])
        with pytest.raises(PyverbsRDMAError, match="Failed to open device mthca0") as caught:
            Context(name="mthca0", kernel=kernel.name)
        assert caught.value.error_code == errno.EIO
        assert caught.value.reason == "the device has failed and has not been reset"
        assert kernel.running
    assert kernel.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_every_call_ends_with_eio_when_the_kernel_ends(number: int):
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}") as kernel, waiters(kernel) as started:
        killed = time.monotonic()
        os.kill(kernel.pid, number)
        # A kernel that stops in order stops its HCA before it is gone: a poll may see that first.
        latest = check_all_end(started, killed, fatal=(0, 1) if number == signal.SIGTERM else (0,))
    print({name: f"{seconds:.3f} s" for name, seconds in latest.items()})


def reset_hca(kernel: str) -> int:
    """Ask the control device for another HCA; the errno of its answer."""
    output = bytearray(VERB_RESULT.size)
    with (
        UserProcess.connect(kernel) as process,
        process.open_device(HCA_CONTROL_DEVICE) as device,
    ):
        device.device_io_control(IOCTL_RESET_HCA, None, output)
    number: int = VERB_RESULT.unpack(output)[0]
    return number


def test_after_a_reset_new_contexts_work_and_the_old_ones_close():
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as kernel:
        nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
        for life in range(3):
            old = Things(Context(name="mthca0", kernel=kernel.name))
            hca = kernel_state(kernel.name)["hca"]["link"]["process"]
            os.kill(hca, signal.SIGKILL)
            assert old.context.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
            assert reset_hca(kernel.name) == 0
            with Context(name="mthca0", kernel=kernel.name) as fresh:
                run(fresh)
                for use in (Context.query_device, PD, lambda context: CQ(context, 4)):
                    with pytest.raises(PyverbsRDMAError) as caught:
                        use(old.context)
                    assert caught.value.error_code == errno.EIO
                run(fresh)
            old.context.close()
            assert kernel_state(kernel.name)["hca"]["driver"]["resets"] == life + 1
        assert reset_hca(kernel.name) == 0  # of an HCA that is well
        wait_for_nothing_more(kernel.name, nothing)
        assert kernel.running
    assert kernel.exit_code == 0


#: A program that goes on: when its device has died it opens the next one, until it is told to end.
UNDETERRED = """
import select, sys
from tests.user_proc.verbs.self_connected import run
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
lives, told = 0, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        context = Context(name="mthca0", kernel=sys.argv[1])
    except PyverbsRDMAError as error:
        assert error.error_code == 5, error
        continue
    lives += 1
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            run(context)
            if told < lives:
                told = lives
                print("runs", flush=True)
    except PyverbsRDMAError as error:
        assert error.error_code == 5, error
    context.close()
print("lives", lives, flush=True)
"""


def test_programs_go_on_with_the_next_hca_after_each_reset():
    lives = 5
    with start_kernel(f"deaths-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as kernel:
        nothing: dict[str, Any] = everything_held(kernel_state(kernel.name))
        programs = [READY_USER.start(UNDETERRED, kernel.name) for _ in range(2)]
        for life in range(lives):
            for program in programs:
                assert program.stdout is not None
                assert program.stdout.readline() == "runs\n", life
            if life < lives - 1:
                os.kill(kernel_state(kernel.name)["hca"]["link"]["process"], signal.SIGKILL)
                assert reset_hca(kernel.name) == 0
        for program in programs:
            output, errors = program.communicate("\n", timeout=20)
            assert (output, errors) == (f"lives {lives}\n", "")
        wait_for_nothing_more(kernel.name, nothing)
    assert kernel.exit_code == 0


@pytest.mark.parametrize(
    "status",
    [STATUS_INVALID_CONNECTION, STATUS_PROCESS_IS_TERMINATING, STATUS_THREAD_IS_TERMINATING],
)
def test_a_session_that_is_run_down_is_over_whatever_the_kernel_still_answers(status: int):
    machine = Machine(KernelSettings(verifier=True), in_process=True)
    machine.start_hca()
    with (
        UserProcess.in_process(machine.connect_in_process("verbs")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        session, cq = context.session(), CQ(context, 4)
        refusal = session.refused(NtStatusError(status))
        assert isinstance(refusal, VerbRefusal)
        assert (refusal.errno, refusal.session_is_over) == (errno.EIO, True)
        assert session.dead
        for wait in (cq.poll, context.get_async_event):
            with pytest.raises(PyverbsRDMAError) as caught:
                wait()
            assert caught.value.error_code == errno.EIO
    machine.close()


def test_another_status_is_the_refusal_of_one_call():
    machine = Machine(KernelSettings(verifier=True), in_process=True)
    machine.start_hca()
    with (
        UserProcess.in_process(machine.connect_in_process("verbs")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        session = context.session()
        refusal = session.refused(NtStatusError(STATUS_INSUFFICIENT_RESOURCES))
        assert isinstance(refusal, VerbRefusal)
        assert (refusal.errno, refusal.session_is_over) == (errno.EAGAIN, False)
        assert not session.dead
        PD(context).close()
    machine.close()


@pytest.mark.parametrize("step", ["doorbells", "first verb", "events"])
def test_an_opening_that_fails_says_why_although_its_file_cannot_be_closed(
    step: str, monkeypatch: pytest.MonkeyPatch
):
    """What is cleared up afterwards fails as well, as it does in a kernel that is stopping."""
    machine = Machine(KernelSettings(verifier=True), in_process=True)
    machine.start_hca()
    ended = NtStatusError(STATUS_INVALID_CONNECTION)

    def fail(*_: object, **__: object) -> None:
        raise ended

    target, name = {
        "doorbells": (UserProcess, "open_doorbells"),
        "first verb": (DeviceHandle, "device_io_control"),
        "events": (EventPump, "want"),
    }[step]
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, fail)
            patch.setattr(DeviceHandle, "close", fail)
            with pytest.raises(PyverbsRDMAError, match="Failed to open device") as caught:
                Context(name="mthca0", process=process)
        assert caught.value.error_code == errno.EIO
        Context(name="mthca0", process=process).close()
    machine.close()


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
