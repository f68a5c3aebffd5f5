"""Cancelling through the door, duplicated handles, and the rights a handle grants."""

import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DPC,
    FILE_READ_ACCESS,
    FILE_WRITE_ACCESS,
    METHOD_BUFFERED,
    noop_code,
)
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_CANCELLED,
    STATUS_INVALID_HANDLE,
    STATUS_OBJECT_TYPE_MISMATCH,
)
from tests.drivers.gate import AWAIT, KEEP, NEED_READ, NEED_WRITE, RELEASE, word
from user_proc.errors import NtStatusError
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


@pytest.fixture
def gate(process: UserProcess):
    with process.open_device("gate", overlapped=True) as opened:
        yield opened


def status_of(request: Any) -> int:
    with pytest.raises(NtStatusError) as caught:
        request.wait(10)
    return caught.value.status


def refused(call: Any, *arguments: Any) -> int:
    with pytest.raises(NtStatusError) as caught:
        call(*arguments)
    return caught.value.status


def test_cancel_ex_ends_the_request_it_names_and_no_other(gate: Any):
    held = [gate.start(KEEP, b"x") for _ in range(3)]
    assert gate.cancel_ex(held[1])
    assert status_of(held[1]) == STATUS_CANCELLED
    assert not gate.cancel_ex(held[1])
    assert not held[0].done
    assert gate.device_io_control(RELEASE, word(0)) == 0
    assert held[0].wait(10) == 0
    assert gate.cancel_ex()
    assert status_of(held[2]) == STATUS_CANCELLED
    assert not gate.cancel_ex()


def test_cancel_ex_is_for_the_requests_of_its_file(process: UserProcess, gate: Any):
    with (
        process.open_device("gate", overlapped=True) as other,
        process.create_event() as event,
    ):
        held = gate.start(KEEP, b"x")
        assert not other.cancel_ex(held)
        assert not other.cancel_ex()
        port = process.channel.port()
        assert port.call(5, 0x400, event.handle)[0][6] == STATUS_OBJECT_TYPE_MISMATCH
        other.close()
        assert refused(other.cancel_ex) == STATUS_INVALID_HANDLE
        assert refused(other.cancel_ex, held) == STATUS_INVALID_HANDLE
        with gate.duplicate() as second:
            assert second.cancel_ex(held)
        assert status_of(held) == STATUS_CANCELLED


def test_what_cannot_be_cancelled_any_more_is_told(process: UserProcess):
    with process.open_device("noop", overlapped=True) as device:
        done = device.start(noop_code(METHOD_BUFFERED, COMPLETION_DPC), b"x")
        assert done.wait(10) == 1
        assert not device.cancel_ex(done)


def test_cancel_io_is_for_the_calling_thread_cancel_io_ex_for_all(inside: Any):
    kernel = inside()
    with kernel.connect() as process, process.open_device("gate", overlapped=True) as gate:
        held = gate.start(KEEP, b"x")
        with process.channel.another_thread():
            gate.cancel()
            assert not held.done
            assert gate.cancel_ex(held)
            assert status_of(held) == STATUS_CANCELLED


def test_rights_are_those_asked_for(process: UserProcess):
    for access, allowed, denied in (
        (FILE_READ_ACCESS, NEED_READ, NEED_WRITE),
        (FILE_WRITE_ACCESS, NEED_WRITE, NEED_READ),
    ):
        for overlapped in (False, True):
            with process.open_device("gate", overlapped, access) as handle:
                assert handle.device_io_control(allowed) == 0
                assert refused(handle.device_io_control, denied) == STATUS_ACCESS_DENIED
                iosb = IoStatusBlock(0x11111111)
                assert handle.nt_device_io_control(denied, iosb) == STATUS_ACCESS_DENIED
                assert iosb.status == 0x11111111
    with process.open_device("gate", access=0) as handle:
        assert refused(handle.device_io_control, NEED_READ) == STATUS_ACCESS_DENIED


def test_w13_a_duplicate_shares_the_file_and_may_have_less_rights(process: UserProcess):
    with process.open_device("gate") as whole, whole.duplicate(FILE_READ_ACCESS) as reader:
        assert reader.device_io_control(NEED_READ) == 0
        assert refused(reader.device_io_control, NEED_WRITE) == STATUS_ACCESS_DENIED
        assert refused(reader.duplicate, FILE_WRITE_ACCESS) == STATUS_ACCESS_DENIED
        with reader.duplicate() as same:
            assert refused(same.device_io_control, NEED_WRITE) == STATUS_ACCESS_DENIED
        whole.close()
        assert reader.device_io_control(NEED_READ) == 0


# With threads that really wait


@pytest.mark.processes
def test_a_synchronous_request_is_cancelled_from_another_thread(kernel: Any, threads: Any):
    with (
        UserProcess.connect(kernel.name) as process,
        process.open_device("gate") as gate,
        process.open_device("gate") as control,
        process.create_event() as event,
    ):
        kept = threads(gate.device_io_control, KEEP, b"x")
        control.device_io_control(AWAIT, word(1))
        assert process.cancel_synchronous_io(kept.thread)
        assert refused(kept.join) == STATUS_CANCELLED
        assert not process.cancel_synchronous_io(kept.thread)  # it has ended
        waiting = threads(event.wait, 10)
        assert not process.cancel_synchronous_io(waiting.thread)  # a wait is no I/O
        event.set()
        assert waiting.join()


@pytest.mark.processes
def test_an_overlapped_request_is_no_synchronous_one(kernel: Any, threads: Any):
    with (
        UserProcess.connect(kernel.name) as process,
        process.open_device("gate", overlapped=True) as gate,
    ):
        held: SimpleQueue[Any] = SimpleQueue()

        def keep(event: Any) -> None:
            held.put(gate.start(KEEP, b"x"))
            event.wait(10)

        with process.create_event() as event:
            keeper = threads(keep, event)
            gate.device_io_control(AWAIT, word(1))
            assert not process.cancel_synchronous_io(keeper.thread)
            assert gate.cancel_ex()
            assert status_of(held.get(timeout=10)) == STATUS_CANCELLED
            event.set()
            keeper.join()


STANDS_AT_THE_LOCK = """
import sys, threading
from tests.drivers.gate import AWAIT, KEEP, RELEASE, word
from user_proc.process import UserProcess
with UserProcess.connect(sys.argv[1]) as process, process.open_device("gate") as gate:
    with process.open_device("gate") as control:
        keeper = threading.Thread(target=gate.device_io_control, args=(KEEP, b"x"))
        keeper.start()
        control.device_io_control(AWAIT, word(1))
        try:
            print("waiting", flush=True)
            gate.device_io_control(KEEP, b"y")
        except KeyboardInterrupt:
            print("interrupted", process.echo(b"usable"), flush=True)
        process.create_event().close()  # not behind the one given up
        print("served", flush=True)
        control.device_io_control(RELEASE, word(0))
        keeper.join()
"""


@pytest.mark.processes
def test_ctrl_c_at_the_lock_of_a_synchronous_file(kernel: Any):
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", STANDS_AT_THE_LOCK, kernel.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "interrupted b'usable'\n"
    assert program.communicate(timeout=20) == ("served\n", "")
