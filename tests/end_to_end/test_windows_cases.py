"""Cases of Windows' own test suites through the door: W1 to W6, W8, W11, W13, K30, S1 to S3.

The drivers are files that a real kernel loads; the user process is this one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ioctl_codes import (
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    ctl_code,
)
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_PENDING,
    STATUS_SUCCESS,
    nt_error,
)
from tests.drivers import sioctl, status_matrix, wire_cases
from tests.drivers.status_matrix import (
    COMBINATIONS,
    METHODS,
    WORDS,
    code,
    expected_data,
    is_delivered,
)
from user_proc.errors import NtStatusError
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

NAME = "windows-cases"
UNTOUCHED = (0x7777_7777, 77)
OUTPUT = 256


@pytest.fixture(scope="module", autouse=True)
def _kernel() -> Iterator[None]:
    drivers = [
        f"{Path(driver.__file__)}:driver_entry" for driver in (status_matrix, wire_cases, sioctl)
    ]
    # Free: many combinations break a rule on purpose.
    with start_kernel(NAME, settings={"driver": drivers}):
        yield


@pytest.fixture
def process() -> Iterator[UserProcess]:
    with UserProcess.connect(NAME) as process:
        yield process


class Matrix:
    """The matrix device opened once, asked with addresses in an arena."""

    def __init__(self, process: UserProcess, *, overlapped: bool) -> None:
        self.process = process
        self.device = process.open_device(status_matrix.DEVICE, overlapped=overlapped)
        self.memory = process.allocate(512)

    def ask(self, method: int, ret: int, iosb: int, pending: int, **more: Any) -> Any:
        """Return what the service returned, and the status block."""
        block = IoStatusBlock(*UNTOUCHED)
        self.memory.view[: WORDS.size] = WORDS.pack(ret, iosb, pending)
        self.memory.view[OUTPUT : OUTPUT + 6] = b"abcdef"
        returned = self.device.nt_device_io_control(
            code(method),
            block,
            input_address=self.memory.address,
            input_length=WORDS.size,
            output_address=self.memory.address + OUTPUT,
            output_length=6,
            **more,
        )
        return returned, block

    def data(self) -> bytes:
        return bytes(self.memory.view[OUTPUT : OUTPUT + 6])


def test_w1_w2_w3_w4_synchronous_handle(process: UserProcess):
    matrix = Matrix(process, overlapped=False)
    asked = 0
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            returned, block = matrix.ask(method, ret, iosb, pending)
            assert returned == (iosb if ret == STATUS_PENDING else ret)
            expected = UNTOUCHED if nt_error(iosb) else (iosb, 3)
            assert (block.status, block.information) == expected
            assert matrix.data() == expected_data(method, iosb)
            asked += 1
    assert asked == 459


def test_w1_w2_w5_w6_overlapped_handle(process: UserProcess):
    matrix = Matrix(process, overlapped=True)
    asked = 0
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            with process.create_event(signaled=True) as event:
                returned, block = matrix.ask(method, ret, iosb, pending, event=event)
                delivered = is_delivered(iosb, pending)
                assert returned == ret
                assert event.wait(10 if delivered else 0) == delivered
            assert (block.status, block.information) == ((iosb, 3) if delivered else UNTOUCHED)
            assert matrix.data() == expected_data(method, iosb)
            asked += 1
    assert asked == 459


def test_w5_a_user_apc_comes_where_the_end_is_told(process: UserProcess):
    matrix = Matrix(process, overlapped=True)
    came: list[int] = []
    asked = 0
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            asked += 1
            _, block = matrix.ask(
                method, ret, iosb, pending,
                apc_context=asked, apc=lambda context, block: came.append(context),
            )  # fmt: skip
            delivered = is_delivered(iosb, pending)
            while delivered and not came:
                process.sleep_alertable(10)
            process.sleep_alertable(0)
            assert came == ([asked] if delivered else [])
            assert (block.status, block.information) == ((iosb, 3) if delivered else UNTOUCHED)
            came.clear()
    assert asked == 459


def test_w2_w3_with_the_bytes_in_the_message(process: UserProcess):
    with process.open_device(status_matrix.DEVICE) as device:
        for ret, iosb, pending in COMBINATIONS:
            output = bytearray(b"abcdef")
            returned, information = STATUS_SUCCESS, 0
            try:
                words = WORDS.pack(ret, iosb, pending)
                information = device.device_io_control(code(METHOD_BUFFERED), words, output)
            except NtStatusError as error:
                returned, information = error.status, error.information
            expected = iosb if ret == STATUS_PENDING else ret
            assert returned == (expected if expected >= 0x8000_0000 else STATUS_SUCCESS)
            assert information == (0 if nt_error(iosb) else 3)
            assert output == expected_data(METHOD_BUFFERED, iosb)


def test_w8_a_packet_comes_for_an_apc_context_alone(process: UserProcess):
    matrix = Matrix(process, overlapped=True)
    port = process.create_completion_port()
    port.associate(matrix.device, 77)
    for method in METHODS:
        for ret, iosb, pending in COMBINATIONS:
            matrix.ask(method, ret, iosb, pending, apc_context=0)
            matrix.ask(method, ret, iosb, pending, apc_context=0x1234)
    expected = [
        (77, 0x1234, iosb, 3)
        for _ in METHODS
        for _, iosb, pending in COMBINATIONS
        if is_delivered(iosb, pending)
    ]
    packets: list[Any] = []
    while len(packets) < len(expected):
        packets += port.remove(100, 10)[1]
    assert [tuple(packet) for packet in packets] == expected
    assert port.get(0) is None


@pytest.mark.parametrize(("input_length", "output_length"), [(0, 32), (64, 10)])
@pytest.mark.parametrize("overlapped", [False, True])
def test_w11_as_much_of_a_string_as_fits(
    process: UserProcess, overlapped: bool, input_length: int, output_length: int
):
    text = wire_cases.TEXT[:output_length]
    with process.open_device(wire_cases.DEVICE, overlapped=overlapped) as device:
        output = bytearray(b"#" * output_length)
        size = device.device_io_control(wire_cases.QUERY_TEXT, bytes(input_length), output)
    assert size == len(text)
    assert output == text + b"#" * (output_length - len(text))


def test_w13_duplicates_share_a_file_object(process: UserProcess):
    def look(device: Any) -> tuple[int, ...]:
        output = bytearray(wire_cases.COUNTS.size)
        assert device.device_io_control(wire_cases.QUERY_COUNTS, None, output) == len(output)
        return wire_cases.COUNTS.unpack(output)

    watcher = process.open_device(wire_cases.DEVICE)
    creates, cleanups, closes, _ = look(watcher)
    first, second = (process.open_device(wire_cases.DEVICE) for _ in range(2))
    assert look(first) == (creates + 2, cleanups, closes, creates + 1)
    assert look(second) == (creates + 2, cleanups, closes, creates + 2)
    duplicate = first.duplicate()
    assert look(duplicate) == (creates + 2, cleanups, closes, creates + 1)
    duplicate.close()
    assert look(first) == (creates + 2, cleanups, closes, creates + 1)
    duplicate = first.duplicate()
    first.close()
    assert look(duplicate) == (creates + 2, cleanups, closes, creates + 1)
    duplicate.close()
    assert look(second) == (creates + 2, cleanups + 1, closes + 1, creates + 2)
    second.close()
    assert look(watcher)[:3] == (creates + 2, cleanups + 2, closes + 2)
    watcher.close()


def ask_by_address(process: UserProcess, control_code: int) -> tuple[Any, tuple[int, ...]]:
    memory = process.allocate(512)
    block = IoStatusBlock(*UNTOUCHED)
    with process.open_device(wire_cases.DEVICE) as device:
        returned = device.nt_device_io_control(
            control_code,
            block,
            input_address=memory.address,
            input_length=8,
            output_address=memory.address + OUTPUT,
            output_length=wire_cases.SEEN.size,
        )
    assert (returned, block.status) == (STATUS_SUCCESS, STATUS_SUCCESS)
    assert block.information == wire_cases.SEEN.size
    return memory, wire_cases.SEEN.unpack(bytes(memory.view[OUTPUT : OUTPUT + block.information]))


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_k30_fast_io_gets_raw_user_addresses(process: UserProcess, method: int):
    memory, seen = ask_by_address(process, wire_cases.FAST[method])
    assert seen[:4] == (wire_cases.BY_FAST_IO, True, memory.address, memory.address + OUTPUT)


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_k30b_an_irp_follows_when_fast_io_declines(process: UserProcess, method: int):
    memory, seen = ask_by_address(process, wire_cases.DECLINED[method])
    addresses = (memory.address, memory.address + OUTPUT)
    assert seen[0] == wire_cases.BY_IRP
    assert seen[2:4] == (addresses if method == METHOD_NEITHER else (0, 0))
    assert seen[4:] == addresses


def ask_sioctl(
    process: UserProcess, device: str, code: int, sent: Any, room: int
) -> tuple[int, bytes]:
    """Return the status, and as many bytes of the output as Information says."""
    output = bytearray(room)
    with process.open_device(device) as sample:
        try:
            information = sample.device_io_control(code, sent, output)
        except NtStatusError as error:
            return error.status, b""
    return STATUS_SUCCESS, bytes(output[:information])


@pytest.mark.parametrize("device", [sioctl.OLD_DEVICE, sioctl.DEVICE])
def test_s1_lengths_and_codes_sioctl_refuses(process: UserProcess, device: str):
    for known in sioctl.CODES.values():
        for sent, room in ((b"", 64), (b"question", 0)):
            assert ask_sioctl(process, device, known, sent, room)[0] == STATUS_INVALID_PARAMETER
        status, _ = ask_sioctl(process, device, known, b"question", 37)
        refused = device == sioctl.DEVICE
        assert status == (STATUS_INVALID_PARAMETER if refused else STATUS_SUCCESS)
    unknown = ctl_code(sioctl.DEVICE_TYPE, 0xA00, METHOD_BUFFERED, 0)
    status, _ = ask_sioctl(process, device, unknown, b"question", 64)
    assert status == STATUS_INVALID_DEVICE_REQUEST


@pytest.mark.parametrize("room", [10, 38, 64])
def test_s2_information_is_what_fits_of_the_message(process: UserProcess, room: int):
    buffered = sioctl.CODES[METHOD_BUFFERED]
    answer = ask_sioctl(process, sioctl.OLD_DEVICE, buffered, b"question", room)
    assert answer == (STATUS_SUCCESS, sioctl.MESSAGE[:room])


@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_s3_the_system_buffer_never_reaches_the_caller(process: UserProcess, method: int):
    sent = process.allocate(8)  # the kernel has this very memory, too
    sent.view[:] = b"question"
    status, answer = ask_sioctl(process, sioctl.DEVICE, sioctl.CODES[method], sent, 64)
    assert (status, len(answer)) == (STATUS_SUCCESS, 64)  # Information is the MDL's byte count
    message = sioctl.MESSAGE if method == METHOD_OUT_DIRECT else b""
    assert answer == message.ljust(64, b"\0")
    assert bytes(sent.view) == b"question"
