"""Requests to a kernel: returned status, status block, event, buffers, as NT leaves them."""

import ctypes
from array import array
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    FILE_READ_ACCESS,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_FILL,
    noop_code,
    noop_fail_code,
)
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_HANDLE,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_SUCCESS,
    nt_error,
)
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess

METHODS = (METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER)
COMPLETIONS = (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
# The values of the W1-W8 matrix that a driver can complete with and the no-op device returns.
STATUSES = (0, 0x102, 0x0EADBEEF, 0x4EADBEEF, 0x80000005, 0x8EADBEEF, 0xC0000002, 0xCEADBEEF)
UNTOUCHED = (0x11111111, 77)


def address_of(buffer: Any) -> int:
    return ctypes.addressof(buffer)


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


@pytest.fixture
def device(process: UserProcess):
    with process.open_device("noop") as opened:
        yield opened


@pytest.fixture
def overlapped(process: UserProcess):
    with process.open_device("noop", overlapped=True) as opened:
        yield opened


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [0, 1, 64, 5000])
def test_bytes_come_back(
    process: UserProcess, device: Any, overlapped: Any, method: int, completion: int, length: int
):
    data = bytes(range(256)) * (length // 256 + 1)
    code = noop_code(method, completion)
    for handle in (device, overlapped):
        output = bytearray(b"#" * (length + 3))
        # A direct method without a small input fills its whole large buffer.
        filled = 0 if length or method != METHOD_OUT_DIRECT else 3
        assert handle.device_io_control(code, data[:length], output) == length + filled
        assert output == data[:length] + (bytes([NOOP_FILL] * 3) if filled else b"###")
    if length:
        source, target = process.allocate(length), process.allocate(length)
        source.view[:] = data[:length]
        assert device.device_io_control(code, source, target) == length
        assert bytes(target.view) == data[:length]


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_large_buffers_go_by_address(device: Any, completion: int):
    data = bytes(range(256)) * 0x2800  # 2.5 MiB
    output = bytearray(len(data))
    code = noop_code(METHOD_BUFFERED, completion)
    assert device.device_io_control(code, data, output) == len(data)
    assert output == data


def test_exactly_information_bytes_are_stored(device: Any):
    output = bytearray(b"abcdef")
    code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
    assert device.device_io_control(code, b"ghi", output) == 3
    assert output == b"ghidef"
    assert device.device_io_control(code, b"0123456789", output) == 6
    assert output == b"012345"
    assert device.device_io_control(code, b"0123456789") == 10


def test_typed_buffers(device: Any):
    numbers = array("Q", [1, 2, 3])
    output = array("Q", [0, 0, 0])
    assert device.device_io_control(noop_code(METHOD_BUFFERED, 0), numbers, output) == 24
    assert output == numbers


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", METHODS)
def test_w3_w4_synchronous(device: Any, method: int, status: int, completion: int):
    """W3: returned = iosb. W4: the status block is untouched if NT_ERROR, even if pended."""
    source = ctypes.create_string_buffer(status.to_bytes(4, "little"), 4)
    iosb = IoStatusBlock(*UNTOUCHED)
    returned = device.nt_device_io_control(
        noop_fail_code(method, completion), iosb, input_address=address_of(source), input_length=4
    )
    assert returned == status
    written = UNTOUCHED if nt_error(status) else (status, 0)
    assert (iosb.status, iosb.information) == written


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", METHODS)
def test_w5_w6_overlapped(
    process: UserProcess, overlapped: Any, method: int, status: int, completion: int
):
    """W5: delivered unless NT_ERROR without pending. W6: the event is reset at the start."""
    source = ctypes.create_string_buffer(status.to_bytes(4, "little"), 4)
    iosb = IoStatusBlock(*UNTOUCHED)
    pended = completion != COMPLETION_INLINE
    delivered = pended or not nt_error(status)
    with process.create_event(signaled=True) as event:
        returned = overlapped.nt_device_io_control(
            noop_fail_code(method, completion),
            iosb,
            input_address=address_of(source),
            input_length=4,
            event=event,
        )
        assert returned == (STATUS_PENDING if pended else status)
        assert event.wait(10 if delivered else 0) is delivered
    assert (iosb.status, iosb.information) == ((status, 0) if delivered else UNTOUCHED)


@pytest.mark.parametrize("status", STATUSES)
def test_w2_raw_buffered_output(device: Any, status: int):
    """Buffered output by address: exactly Information bytes are stored."""
    source = ctypes.create_string_buffer(b"ghi", 3)
    target = ctypes.create_string_buffer(b"abcdef", 6)
    iosb = IoStatusBlock()
    fields = {
        "input_address": address_of(source),
        "input_length": 3,
        "output_address": address_of(target),
        "output_length": 6,
    }
    code = noop_code(METHOD_BUFFERED, COMPLETION_DPC)
    assert device.nt_device_io_control(code, iosb, **fields) == STATUS_SUCCESS
    assert (iosb.status, iosb.information) == (0, 3)
    assert target.raw == b"ghidef"
    status_bytes = ctypes.create_string_buffer(status.to_bytes(4, "little"), 4)
    fields |= {"input_address": address_of(status_bytes), "input_length": 4}
    device.nt_device_io_control(noop_fail_code(METHOD_BUFFERED, COMPLETION_DPC), iosb, **fields)
    assert target.raw == b"ghidef"  # Information is 0


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_addresses_that_are_not_mapped(device: Any, overlapped: Any, method: int):
    for handle in (device, overlapped):
        iosb = IoStatusBlock(*UNTOUCHED)
        code = noop_code(method, COMPLETION_INLINE)
        returned = handle.nt_device_io_control(
            code, iosb, input_address=0x1000, input_length=16, output_address=0x2000,
            output_length=16,
        )  # fmt: skip
        assert returned == STATUS_ACCESS_VIOLATION
        assert (iosb.status, iosb.information) == UNTOUCHED


def test_null_pointers_have_no_length(device: Any):
    iosb = IoStatusBlock()
    code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
    returned = device.nt_device_io_control(code, iosb, input_length=16, output_length=16)
    assert (returned, iosb.information) == (STATUS_SUCCESS, 0)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_overlapped_result(overlapped: Any, completion: int):
    output = bytearray(3)
    request = overlapped.start(noop_code(METHOD_BUFFERED, completion), b"abc", output, 0xC0FFEE)
    assert request.wait(10) == 3
    assert request.done
    assert (request.status, request.information, request.apc_context) == (0, 3, 0xC0FFEE)
    assert request.returned in (STATUS_SUCCESS, STATUS_PENDING)
    assert output == b"abc"
    assert request.wait(0) == 3


def test_overlapped_failures(overlapped: Any):
    failing = (0xC0000002).to_bytes(4, "little")
    with pytest.raises(NtStatusError) as info:
        overlapped.start(noop_fail_code(METHOD_BUFFERED, COMPLETION_INLINE), failing)
    assert info.value.status == 0xC0000002
    request = overlapped.start(noop_fail_code(METHOD_BUFFERED, COMPLETION_DEVICE), failing)
    with pytest.raises(NtStatusError):
        request.wait(10)
    assert request.status == 0xC0000002
    warning = (0x80000005).to_bytes(4, "little")
    with pytest.raises(NtStatusError, match=r"STATUS_BUFFER_OVERFLOW \(0x80000005\)"):
        overlapped.device_io_control(noop_fail_code(METHOD_BUFFERED, COMPLETION_INLINE), warning)


def test_many_overlapped_at_once(process: UserProcess, overlapped: Any):
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    for _ in range(10):
        outputs = [bytearray(2) for _ in range(30)]
        requests = [
            overlapped.start(code, number.to_bytes(2, "little"), output)
            for number, output in enumerate(outputs)
        ]
        for number, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            assert request.wait(10) == 2
            assert int.from_bytes(output, "little") == number
    assert process.channel.outstanding == {}


def test_waiting_for_the_file_object(overlapped: Any):
    iosb = IoStatusBlock()
    source = ctypes.create_string_buffer(8)
    overlapped.nt_device_io_control(
        noop_code(METHOD_NEITHER, COMPLETION_DEVICE), iosb, input_address=address_of(source),
        input_length=8,
    )  # fmt: skip
    assert overlapped.wait(10)
    assert (iosb.status, iosb.information) == (0, 8)


def test_events(process: UserProcess):
    with process.create_event(manual_reset=False, signaled=True) as event:
        assert event.wait(0)
        assert not event.wait(0)
        assert not event.wait(0.01)
    with process.create_event(manual_reset=True, signaled=True) as event:
        assert event.wait(0)
        assert event.wait(None)
    with pytest.raises(NtStatusError) as info:
        event.wait(0)
    assert info.value.status == STATUS_INVALID_HANDLE


def test_handles(process: UserProcess, device: Any):
    second = device.duplicate()
    assert second.handle not in (0, device.handle)
    device.close()
    device.close()
    code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
    with pytest.raises(NtStatusError, match="STATUS_INVALID_HANDLE") as info:
        device.device_io_control(code)
    assert isinstance(info.value, OSError)
    assert isinstance(info.value, SofthcaError)
    assert second.device_io_control(code, b"x", bytearray(1)) == 1
    assert not second.overlapped
    second.close()


def test_handles_of_the_wrong_kind_and_closed_events(process: UserProcess, device: Any):
    code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
    iosb = IoStatusBlock()
    with process.open_device("noop") as other:
        returned = device.nt_device_io_control(code, iosb, event=other)
        assert returned == STATUS_OBJECT_TYPE_MISMATCH
    number = other.handle or 0xFFFF
    answer, _ = process.channel.port().call(4, 0, device.handle, code, number)
    assert answer[6] == STATUS_INVALID_HANDLE


def test_refusals(process: UserProcess, device: Any, overlapped: Any):
    with pytest.raises(NtStatusError) as info:
        process.open_device("no such device")
    assert info.value.status == STATUS_OBJECT_NAME_NOT_FOUND
    for handle in (device, overlapped):
        with pytest.raises(NtStatusError) as info:
            handle.device_io_control(0x80010000)
        assert info.value.status == STATUS_INVALID_DEVICE_REQUEST
    with pytest.raises(SofthcaError, match="was not opened for overlapped I/O"):
        device.start(0x80010000)
    with pytest.raises(TypeError):
        device.device_io_control(noop_code(METHOD_BUFFERED, 0), b"x", b"constant")


def test_cancel_with_nothing_to_cancel(overlapped: Any):
    overlapped.cancel()


def test_access_wanted_is_granted(process: UserProcess):
    with process.open_device("noop", access=FILE_READ_ACCESS) as reader:
        assert reader.device_io_control(noop_code(METHOD_IN_DIRECT, 0), b"x", b"yz") == 1
