"""The mailbox driver of the documentation, in process: right, and wrong in six ways."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    close_handle,
    create_file,
    device_io_control_file,
)
from kernel_proc.machine import Machine
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.kthread import KThread, create_user_thread
from kernel_proc.settings import KernelSettings
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, ctl_code
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_CANCELLED,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from tests.drivers.mailbox_page import ENTRY, WRONG, driver_source

READ = ctl_code(0x8010, 0x800, METHOD_BUFFERED, 0)
WRITE = ctl_code(0x8010, 0x801, METHOD_NEITHER, 0)
MEMORY = 0x7000_0000_0000
OUTPUT = MEMORY + 0x1800


class Mailbox:
    """A machine with the driver, and one user with some memory."""

    def __init__(self, folder: Path, source: str, verifier: bool) -> None:
        path = folder / "mailbox.py"
        path.write_text(source)
        settings = KernelSettings(verifier=verifier, driver=(f"{path}:{ENTRY}",))
        self.machine = Machine(settings, in_process=True)
        self.door = self.machine.connect_in_process("user")
        self.memory = memoryview(bytearray(0x2000))
        space = self.door.session.address_space
        assert space.add_arena(9, MEMORY, len(self.memory), self.memory) == STATUS_SUCCESS
        self.thread = self.new_thread()
        status, self.handle = self.call(create_file, "mailbox", 3, False)
        assert status == STATUS_SUCCESS

    def new_thread(self) -> KThread:
        return create_user_thread(self.machine.processor, self.door.session.process, "thread")

    def call(self, service: Any, *args: Any, thread: KThread | None = None) -> Any:
        """Run one system service to its end."""
        thread = thread or self.thread
        values: list[Any] = []
        thread.enter_kernel(lambda: values.append(service(self.machine.io, thread, *args)))
        self.machine.processor.run_until(lambda: bool(values))
        return values[0]

    def read(self, length: int = 16, thread: KThread | None = None) -> DeviceControlRequest:
        request = DeviceControlRequest(
            self.handle, READ, output_address=OUTPUT, output_length=length
        )
        self.call(device_io_control_file, request, thread=thread)
        return request

    def write(self, letter: bytes, address: int = MEMORY) -> int:
        self.memory[: len(letter)] = letter
        request = DeviceControlRequest(
            self.handle, WRITE, input_address=address, input_length=len(letter)
        )
        status: int = self.call(device_io_control_file, request)
        return status

    def received(self, request: DeviceControlRequest) -> bytes:
        self.machine.processor.run_until(lambda: request.finished)
        assert request.iosb_status == STATUS_SUCCESS
        return bytes(self.memory[0x1800 : 0x1800 + request.information])

    def stop(self) -> None:
        processor = self.machine.processor
        self.machine.request_stop("test")
        processor.run_until(lambda: processor.dispatcher.stopping)


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture(params=[False, True], ids=["free", "verifier"])
def mailbox(tmp_path: Path, request: pytest.FixtureRequest) -> Mailbox:
    return Mailbox(tmp_path, driver_source(), request.param)


# As it should be


def test_a_pended_read_is_completed_by_a_later_write(mailbox: Mailbox):
    reading = mailbox.read()
    assert not reading.finished
    assert mailbox.write(b"hello") == STATUS_SUCCESS
    assert mailbox.received(reading) == b"hello"


def test_a_read_finds_what_was_written_before_in_order(mailbox: Mailbox):
    for letter in (b"first", b"second", b""):
        mailbox.write(letter)
    assert [mailbox.received(mailbox.read()) for _ in range(3)] == [b"first", b"second", b""]


def test_a_letter_is_cut_to_the_readers_buffer(mailbox: Mailbox):
    mailbox.write(b"a long letter")
    assert mailbox.received(mailbox.read(6)) == b"a long"
    mailbox.write(b"a long letter")
    assert mailbox.received(mailbox.read(0)) == b""


def test_a_letter_nobody_can_read_is_a_status(mailbox: Mailbox):
    assert mailbox.write(b"letter", address=0x10_0000_0000) == STATUS_ACCESS_VIOLATION
    mailbox.write(b"next")
    assert mailbox.received(mailbox.read()) == b"next"


def test_letters_are_bounded_in_length_and_number(mailbox: Mailbox):
    request = DeviceControlRequest(mailbox.handle, WRITE, input_address=MEMORY, input_length=5000)
    assert mailbox.call(device_io_control_file, request) == STATUS_SUCCESS
    assert request.information == 4096
    for number in range(64):  # one more than there is room for
        assert mailbox.write(bytes([number])) == STATUS_SUCCESS
    received = [mailbox.received(mailbox.read()) for _ in range(64)]
    assert received == [bytes([number]) for number in range(64)]
    assert not mailbox.read().finished


def test_the_driver_has_at_most_forty_lines():
    lines = [line for line in driver_source().splitlines() if line.strip()]
    assert len(lines) <= 40


def test_an_unknown_code_is_refused(mailbox: Mailbox):
    request = DeviceControlRequest(mailbox.handle, ctl_code(0x8010, 0x900, 0, 0))
    assert mailbox.call(device_io_control_file, request) == STATUS_INVALID_DEVICE_REQUEST


def test_reads_are_cancelled_and_the_letter_goes_to_the_next(mailbox: Mailbox):
    first = mailbox.read()
    other = mailbox.read(thread=mailbox.new_thread())
    mailbox.call(cancel_io_file, mailbox.handle)
    assert (first.finished, first.iosb_status) == (True, STATUS_CANCELLED)
    mailbox.write(b"kept")
    assert mailbox.received(other) == b"kept"


def test_the_last_handle_ends_its_reads(mailbox: Mailbox):
    reading = mailbox.read()
    mailbox.call(close_handle, mailbox.handle)
    mailbox.machine.processor.run_until(lambda: reading.finished)
    assert reading.iosb_status == STATUS_CANCELLED


def test_nothing_is_left_when_the_user_goes_and_the_driver_is_unloaded(mailbox: Mailbox):
    mailbox.read()
    mailbox.door.close()
    mailbox.stop()
    assert mailbox.machine.stopped_clean
    assert "mailbox" not in mailbox.machine.io.devices


# Wrong


def go_wrong(mailbox: Mailbox) -> BugCheck:
    """Read, write, and end the process: the driver breaks its rule on the way."""

    def use() -> None:
        mailbox.read()
        mailbox.write(b"hello")
        mailbox.door.close()

    with pytest.raises(BugCheck) as caught:
        use()
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_stops_the_machine(tmp_path: Path, name: str):
    wrong = WRONG[name]
    stop = go_wrong(Mailbox(tmp_path, wrong.source(), verifier=True))
    assert stop.code == wrong.code
    if wrong.first_parameter is not None:
        assert stop.parameters[0] == wrong.first_parameter


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.free_code])
def test_without_the_verifier_some_are_found_too(tmp_path: Path, name: str):
    wrong = WRONG[name]
    assert go_wrong(Mailbox(tmp_path, wrong.source(), verifier=False)).code == wrong.free_code


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if not wrong.free_code])
def test_without_the_verifier_others_go_on(tmp_path: Path, name: str):
    mailbox = Mailbox(tmp_path, WRONG[name].source(), verifier=False)
    reading = mailbox.read()
    mailbox.write(b"hello")
    if name == "forgets to mark pending":
        assert not reading.finished  # for ever
    else:
        assert reading.finished
    assert mailbox.machine.processor.bug_checked is None


def stop_of(folder: Path, name: str) -> BugCheck:
    return go_wrong(Mailbox(folder, WRONG[name].source(), verifier=True))


def test_the_address_that_was_touched_is_the_first_parameter(tmp_path: Path):
    stop = stop_of(tmp_path, "touches a user pointer from a DPC")
    assert stop.parameters == (OUTPUT, 2, 1, 0)
    assert stop.report["in_dpc"] is True
    assert stop.report["driver"].startswith("driver_entry.<locals>.deliver (mailbox.py:")


def test_who_left_pages_locked_is_named(tmp_path: Path):
    stop = stop_of(tmp_path, "leaks locked pages")
    assert stop.parameters[2:] == (MEMORY, 1)
    assert "locked by driver_entry.<locals>.control (mailbox.py:" in stop.headline()


def test_the_wait_is_named_with_its_level(tmp_path: Path):
    stop = stop_of(tmp_path, "waits at DISPATCH_LEVEL")
    assert stop.parameters == (0x122, 2, 0, 0)
    assert "KeDelayExecutionThread called at DISPATCH_LEVEL" in stop.headline()


def test_the_irp_is_a_parameter(tmp_path: Path):
    for name in (
        "completes twice",
        "forgets to mark pending",
        "forwards with a cancel routine set",
    ):
        stop = stop_of(tmp_path, name)
        place = 0 if stop.code == 0x44 else 1
        assert any(f"IRP {stop.parameters[place]:#x}" in irp for irp in stop.report["irps"])


def test_pending_is_the_status_of_a_read_that_waits(mailbox: Mailbox):
    request = DeviceControlRequest(mailbox.handle, READ, output_address=OUTPUT, output_length=16)
    assert mailbox.call(device_io_control_file, request) == STATUS_PENDING
