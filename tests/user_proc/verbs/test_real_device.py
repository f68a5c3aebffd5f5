"""The verbs on the whole machine: in this process, across processes, and when the kernel dies."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verb_codes import HCA_CONTROL_DEVICE, IOCTL_RESET_HCA, VERB_RESULT
from tests.user_proc.verbs.self_connected import run
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context, get_device_list
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

PROGRAM = Path(__file__).with_name("self_connected.py")

WAITERS = """
import sys
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
context = Context(name="mthca0")
channel = CompChannel(context)
cq = CQ(context, 4, None, channel)
waits = {
    "poll": cq.poll,
    "event": lambda: channel.get_cq_event(cq),
    "async": context.get_async_event,
    "verb": lambda: context.query_port(1),
}
print("ready", flush=True)
try:
    while True:
        waits[sys.argv[1]]()
except Exception as error:
    print(type(error).__name__, error.error_code, flush=True)
context.close()
print("closed", flush=True)
"""


def test_on_a_machine_in_this_process():
    machine = Machine(KernelSettings(verifier=True, seed=3), in_process=True)
    machine.start_hca()
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        with Context(name="mthca0", process=process) as context:
            run(context)
        assert [device.name for device in get_device_list(process=process)] == [b"mthca0"]
    assert machine.inspect()["server"]["sessions"] == []
    machine.close()


def test_the_device_dies_under_a_context_and_the_program_closes_in_order():
    machine = Machine(KernelSettings(verifier=True, seed=3), in_process=True)
    machine.start_hca()
    assert machine.hca is not None
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        with Context(name="mthca0", process=process) as context:
            channel = CompChannel(context)
            cq, pd = CQ(context, 4, None, channel), PD(context)
            machine.hca.link.kill("a test")
            assert context.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
            for act in (cq.poll, pd.context.query_device, lambda: channel.get_cq_event(cq)):
                with pytest.raises(PyverbsRDMAError) as caught:
                    act()
                assert caught.value.error_code == errno.EIO
        with pytest.raises(PyverbsRDMAError):
            Context(name="mthca0", process=process)
    machine.close()


def test_after_a_reset_a_new_context_works_beside_an_old_one():
    machine = Machine(KernelSettings(verifier=True, seed=3), in_process=True)
    machine.start_hca()
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        old = Context(name="mthca0", process=process)
        queue = CQ(old, 4)
        for _ in range(2):
            with process.open_device(HCA_CONTROL_DEVICE) as control:
                output = bytearray(VERB_RESULT.size)
                control.device_io_control(IOCTL_RESET_HCA, None, output)
                assert VERB_RESULT.unpack(output)[0] == 0
            with Context(name="mthca0", process=process) as fresh:
                assert fresh.session().doorbells is not old.session().doorbells
                run(fresh)
                for act in (queue.poll, old.query_device):
                    with pytest.raises(PyverbsRDMAError) as caught:
                        act()
                    assert caught.value.error_code == errno.EIO
        assert old.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
        old.close()
        with Context(name="mthca0", process=process) as fresh:
            run(fresh)
    machine.close()


def test_a_context_opened_while_the_hca_was_reset_has_the_doorbells_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
):
    machine = Machine(KernelSettings(verifier=True, seed=3), in_process=True)
    machine.start_hca()
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        with Context(name="mthca0", process=process) as context:
            stale = context.session().doorbells
        open_device = process.open_device

        def after_a_reset(name: str, *more: Any, **options: Any) -> Any:
            if name != HCA_CONTROL_DEVICE:
                with open_device(HCA_CONTROL_DEVICE) as control:
                    control.device_io_control(IOCTL_RESET_HCA, None, bytearray(24))
            return open_device(name, *more, **options)

        monkeypatch.setattr(process, "open_device", after_a_reset)
        with Context(name="mthca0", process=process) as context:
            assert context.session().doorbells is not stale
            run(context)
    machine.close()


def test_a_kernel_without_an_hca_has_no_devices():
    machine = Machine(KernelSettings(hca=False), in_process=True)
    machine.start_hca()
    with UserProcess.in_process(machine.connect_in_process("verbs")) as process:
        assert get_device_list(process=process) == []
        with pytest.raises(PyverbsRDMAError, match=r"Failed to find device mthca0: .*without an"):
            Context(name="mthca0", process=process)
    machine.close()


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"verbs-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


@pytest.mark.processes
def test_a_whole_program_across_processes(kernel: StartedKernel):
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM)],
        env=os.environ | {"SOFTHCA_NAME": kernel.name, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.processes
def test_contexts_share_a_connection_that_ends_with_the_last(kernel: StartedKernel):
    one, other = (Context(name="mthca0", kernel=kernel.name) for _ in range(2))
    process = one.session().process
    assert other.session().process is process
    one.close()
    PD(other)
    assert not process.closed
    other.close()
    assert process.closed


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads, on purpose
def test_a_forked_child_opens_a_context_of_its_own(kernel: StartedKernel):
    with Context(name="mthca0", kernel=kernel.name) as context:
        child = os.fork()
        if not child:
            code = 1
            try:
                with Context(name="mthca0", kernel=kernel.name) as own:
                    run(own)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        run(context)


@pytest.mark.processes
def test_many_threads_use_one_context(kernel: StartedKernel):
    failures: list[BaseException] = []
    with Context(name="mthca0", kernel=kernel.name) as context:

        def lives() -> None:
            try:
                for _ in range(5):
                    run(context)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=lives) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.processes
def test_a_context_out_of_reach_is_closed_when_the_next_is_opened(kernel: StartedKernel):
    context = Context(name="mthca0", kernel=kernel.name)
    channel, session, descriptor = CompChannel(context), context.session(), context.async_fd
    assert channel.fd != descriptor
    del context, channel
    gc.collect()
    with Context(name="mthca0", kernel=kernel.name) as other:
        assert session.trouble == "its context has been closed"
        process = other.session().process
        assert process is session.process
    assert process.closed


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["event", "async"])
def test_a_wait_for_an_event_can_be_interrupted(kernel: StartedKernel, kind: str):
    with Context(name="mthca0", kernel=kernel.name) as context:
        channel = CompChannel(context)
        cq = CQ(context, 4, None, channel)
        wait = {"event": lambda: channel.get_cq_event(cq), "async": context.get_async_event}[kind]
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        run(context)


@pytest.mark.processes
def test_every_wait_ends_when_the_kernel_dies():
    with start_kernel(f"verbs-{uuid.uuid4().hex[:8]}") as kernel:
        waiters = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", WAITERS, kind],
                env=os.environ
                | {"SOFTHCA_NAME": kernel.name, "PYTHONPATH": str(PROGRAM.parents[3])},
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind in ("poll", "event", "async", "verb")
        ]
        for waiter in waiters:
            assert waiter.stdout is not None
            assert waiter.stdout.readline() == "ready\n"
        os.kill(kernel.pid, signal.SIGKILL)
        killed = time.monotonic()
        for waiter in waiters:
            assert waiter.communicate(timeout=20)[0] == "PyverbsRDMAError 5\nclosed\n"
        assert time.monotonic() - killed < 3


@pytest.mark.processes
def test_a_refusal_of_the_driver_has_its_reason(kernel: StartedKernel):
    with (
        Context(name="mthca0", kernel=kernel.name) as context,
        pytest.raises(PyverbsRDMAError, match="there is no port 9: the device has ports 1 to 2"),
    ):
        context.query_port(9)
