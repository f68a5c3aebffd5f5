"""NtDeviceIoControlFile: the order of its steps, and what each method moves."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import attach_device_to_device_stack, call_driver
from kernel_proc.io_manager.driver_object import DriverObject, create_device
from kernel_proc.io_manager.irp import (
    copy_current_irp_stack_location_to_next,
    get_current_irp_stack_location,
    mark_irp_pending,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import (
    FILE_READ_DATA,
    FILE_WRITE_DATA,
    IRP_BUFFERED_IO,
    SYNCHRONIZE,
)
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    close_handle,
    create_event,
    device_io_control_file,
    duplicate_handle,
)
from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.mdl import map_locked_pages
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.wait import USER_MODE
from shared.ioctl_codes import (
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    ctl_code,
)
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_ACCESS_VIOLATION,
    STATUS_BUFFER_OVERFLOW,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_UNSUCCESSFUL,
)
from shared.trace_points import trace

ARENA = 0x7000_0000_0000
HOLE = 0x6000_0000_0000
TEXT = b"This string is from the driver\0"


def code(method: int = METHOD_BUFFERED, access: int = 0) -> int:
    return ctl_code(0x8003, 0x800, method, access)


def answer(status: int, information: int, data: bytes = b"") -> Any:
    """A dispatch routine that writes `data` into the system buffer and completes at once."""

    def control(device: Any, irp: Any) -> int:
        if data:
            irp.system_buffer[: len(data)] = data
        return finish(irp, status, information)

    return control


def finish(irp: Any, status: int = STATUS_SUCCESS, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


def pend(machine: Any) -> list[Any]:
    kept: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.on_control = control
    return kept


def inline(handle: int, data: bytes | None, output_length: int, **more: Any) -> Any:
    return DeviceControlRequest(
        handle, code(), data, output_length=output_length, output_inline=True, **more
    )


# METHOD_BUFFERED


def test_w11a_no_input_and_a_large_output(machine: Any):
    def control(device: Any, irp: Any) -> int:
        length = min(get_current_irp_stack_location(irp).output_buffer_length, len(TEXT))
        irp.system_buffer[:length] = TEXT[:length]
        return finish(irp, STATUS_SUCCESS, length)

    machine.scripted.on_control = control
    handle = machine.open()
    status, request = machine.control(inline(handle, None, 32))
    assert status == STATUS_SUCCESS
    assert request.output == TEXT
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, len(TEXT))


def test_w11b_more_input_than_output(machine: Any):
    def control(device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        assert bytes(irp.system_buffer) == bytes(64)
        length = min(location.output_buffer_length, len(TEXT))
        irp.system_buffer[:length] = TEXT[:length]
        return finish(irp, STATUS_SUCCESS, length)

    machine.scripted.on_control = control
    handle = machine.open()
    _, request = machine.control(inline(handle, bytes(64), 10))
    assert request.output == TEXT[:10]
    assert request.information == 10


@pytest.mark.parametrize(
    ("input_length", "output_length", "size"), [(0, 0, None), (5, 0, 5), (0, 7, 7), (5, 7, 7)]
)
def test_the_system_buffer_is_as_large_as_the_larger_side(
    machine: Any, input_length: int, output_length: int, size: int | None
):
    seen: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        buffer = irp.system_buffer
        seen.append((None if buffer is None else bytes(buffer), irp.flags & IRP_BUFFERED_IO))
        return finish(irp)

    machine.scripted.on_control = control
    data = b"x" * input_length or None
    machine.control(inline(machine.open(), data, output_length))
    if size is None:
        assert seen == [(None, 0)]
    else:
        assert seen == [((data or b"").ljust(size, b"\0"), IRP_BUFFERED_IO)]


@pytest.mark.parametrize("way", ["inline", "arena"])
def test_copies_are_the_input_and_the_information(machine: Any, way: str):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 3)
    handle = machine.open()
    machine.memory[:8] = b"12345678"
    counters = machine.io.copy_counters
    if way == "inline":
        _, request = machine.control(inline(handle, b"12345678", 6))
        assert request.output == b"123"
    else:
        request = DeviceControlRequest(handle, code(), None, ARENA, 8, ARENA + 100, 6)
        machine.control(request)
        assert bytes(machine.memory[100:106]) == b"123\0\0\0"
    assert (counters.copies, counters.bytes_copied) == (2, 11)


def test_a_warning_copies_back_and_an_error_does_not(machine: Any):
    handle = machine.open()
    machine.scripted.on_control = answer(STATUS_BUFFER_OVERFLOW, 2, b"zz")
    status, request = machine.control(inline(handle, None, 4))
    assert (status, request.output) == (STATUS_BUFFER_OVERFLOW, b"zz")
    machine.scripted.on_control = answer(STATUS_UNSUCCESSFUL, 2, b"zz")
    status, request = machine.control(inline(handle, None, 4))
    assert (status, request.output, request.iosb_written) == (STATUS_UNSUCCESSFUL, None, False)


def test_information_beyond_the_buffer_is_clamped_and_counted(machine: Any):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 1000)
    _, request = machine.control(inline(machine.open(), b"abcdefgh", 4))
    assert request.output == b"abcd"
    assert request.information == 1000
    assert machine.io.information_violations == 1


def test_without_an_output_buffer_information_is_the_drivers(machine: Any):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 1000)
    _, request = machine.control(inline(machine.open(), b"abc", 0))
    assert (request.output, request.information) == (None, 1000)
    assert machine.io.information_violations == 0


def test_null_pointers_have_no_length(machine: Any):
    seen: list[tuple[int, int]] = []

    def control(device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        seen.append((location.input_buffer_length, location.output_buffer_length))
        return finish(irp)

    machine.scripted.on_control = control
    handle = machine.open()
    machine.control(DeviceControlRequest(handle, code(), None, 0, 8, 0, 8))
    machine.control(DeviceControlRequest(handle, code(), None, 0, 8, 0, 8, output_inline=True))
    assert seen == [(0, 0), (0, 8)]


def test_an_output_that_goes_away_is_the_status_of_the_request(machine: Any):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 4, b"data")
    space = machine.process.address_space

    def control(device: Any, irp: Any) -> int:
        space.remove_arena(1)
        return answer(STATUS_SUCCESS, 4, b"data")(device, irp)

    machine.scripted.on_control = control
    handle = machine.open()
    request = DeviceControlRequest(handle, code(), None, 0, 0, ARENA, 4)
    status, request = machine.control(request)
    assert status == STATUS_ACCESS_VIOLATION
    assert request.finished
    assert not request.iosb_written
    assert machine.io.copy_counters.copies == 0


def test_a_fault_at_copy_back_of_a_pended_overlapped_request(machine: Any):
    kept = pend(machine)
    handle = machine.open(synchronous=False)
    done: list[Any] = []
    request = DeviceControlRequest(handle, code(), None, 0, 0, ARENA, 4, on_finished=done.append)
    assert machine.control(request)[0] == STATUS_PENDING
    machine.process.address_space.remove_arena(1)
    finish(kept[0], STATUS_SUCCESS, 4)
    machine.settle()
    assert done == [request]
    assert (request.iosb_written, request.iosb_status) == (True, STATUS_ACCESS_VIOLATION)


def test_completions_that_meet_a_copy_back_that_waits(machine: Any):
    """The APC waits at APC_LEVEL for the user's memory; the next one comes after it."""
    kept = pend(machine)
    handle = machine.open(synchronous=False)
    gate = Event(machine.processor, notification=False)
    space = machine.process.address_space
    write = space.write

    def slow_write(address: int, data: Any) -> None:
        data = bytes(data)
        gate.wait()
        write(address, data)

    space.write = slow_write
    done: list[Any] = []
    requests = [
        DeviceControlRequest(
            handle, code(), b"%d" % number, 0, 0, ARENA + number, 1, on_finished=done.append
        )
        for number in range(3)
    ]
    for request in requests:
        machine.control(request)
    for irp in kept[:2]:
        finish(irp, STATUS_SUCCESS, 1)
    machine.settle()
    assert not done
    finish(kept[2], STATUS_SUCCESS, 1)
    for number in range(3):
        gate.set()
        machine.settle()
        assert done == requests[: number + 1]
    assert bytes(machine.memory[:3]) == b"012"


# The direct methods


def test_s3_in_direct_reads_the_callers_pages_and_buffers_the_small_input(machine: Any):
    seen: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        mapping = map_locked_pages(irp.mdl_address)
        seen.append((bytes(irp.system_buffer), bytes(mapping.view)))
        irp.system_buffer[:] = b"XXX"
        assert machine.process.locked_pages == 1
        return finish(irp, STATUS_SUCCESS, irp.mdl_address.byte_count)

    machine.scripted.on_control = control
    machine.memory[:8] = b"inp-pay\0"
    request = DeviceControlRequest(
        machine.open(), code(METHOD_IN_DIRECT), None, ARENA, 3, ARENA + 4, 4
    )
    _, request = machine.control(request)
    assert seen == [(b"inp", b"pay\0")]
    assert bytes(machine.memory[:3]) == b"inp"
    assert request.information == 4
    assert machine.process.locked_pages == 0


def test_out_direct_writes_the_callers_pages_without_a_copy(machine: Any):
    def control(device: Any, irp: Any) -> int:
        map_locked_pages(irp.mdl_address).view[:] = b"DATA"
        return finish(irp, STATUS_SUCCESS, 4)

    machine.scripted.on_control = control
    request = DeviceControlRequest(
        machine.open(), code(METHOD_OUT_DIRECT), None, 0, 0, ARENA + 4, 4
    )
    machine.control(request)
    assert bytes(machine.memory[4:8]) == b"DATA"
    counters = machine.io.copy_counters
    assert (counters.copies, counters.bytes_copied) == (0, 0)


def test_direct_without_output_has_no_mdl(machine: Any):
    seen: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        seen.append((irp.mdl_address, irp.system_buffer))
        return finish(irp)

    machine.scripted.on_control = control
    machine.control(DeviceControlRequest(machine.open(), code(METHOD_OUT_DIRECT), b"abc"))
    assert seen == [(None, bytearray(b"abc"))]


def test_pages_are_unlocked_by_who_completes_and_not_by_the_thread(machine: Any):
    kept = pend(machine)
    handle = machine.open(synchronous=False)
    machine.control(DeviceControlRequest(handle, code(METHOD_OUT_DIRECT), None, 0, 0, ARENA, 4))
    assert machine.process.locked_pages == 1
    Dpc(machine.processor, lambda *_: finish(kept[0])).insert()
    assert machine.process.locked_pages == 0
    machine.settle()
    assert not machine.thread.irps


@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_pages_that_cannot_be_locked_undo_the_request(machine: Any, method: int):
    handle = machine.open()
    status, request = machine.control(
        DeviceControlRequest(handle, code(method), b"abc", 0, 0, HOLE, 4)
    )
    assert status == STATUS_ACCESS_VIOLATION
    assert request.finished
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0
    assert not machine.thread.irps
    assert machine.process.pool_charged == 0
    assert machine.process.locked_pages == 0


def test_direct_output_needs_an_address(machine: Any):
    request = DeviceControlRequest(
        machine.open(), code(METHOD_OUT_DIRECT), b"abc", output_length=4, output_inline=True
    )
    assert machine.control(request)[0] == STATUS_INVALID_PARAMETER


# METHOD_NEITHER


def test_neither_hands_over_raw_addresses(machine: Any):
    seen: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        assert irp.requestor_mode == USER_MODE
        seen.append((location.type3_input_buffer, irp.user_buffer, irp.system_buffer))
        space = irp.thread.process.address_space
        space.write(irp.user_buffer, space.read(location.type3_input_buffer, 4))
        return finish(irp, STATUS_SUCCESS, 4)

    machine.scripted.on_control = control
    machine.memory[:4] = b"abcd"
    request = DeviceControlRequest(
        machine.open(), code(METHOD_NEITHER), None, ARENA, 4, ARENA + 8, 4
    )
    machine.control(request)
    assert seen == [(ARENA, ARENA + 8, None)]
    assert bytes(machine.memory[8:12]) == b"abcd"
    assert machine.io.copy_counters.copies == 0


def test_neither_is_not_probed_and_the_drivers_guard_makes_the_status(machine: Any):
    def control(device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        try:
            irp.thread.process.address_space.read(location.type3_input_buffer, 4)
        except AccessViolation as fault:
            return finish(irp, fault.status)
        return finish(irp)

    machine.scripted.on_control = control
    request = DeviceControlRequest(machine.open(), code(METHOD_NEITHER), None, HOLE, 4, HOLE, 4)
    assert machine.control(request)[0] == STATUS_ACCESS_VIOLATION
    assert machine.scripted.calls["DEVICE_CONTROL"] == 1


@pytest.mark.parametrize("more", [{"input": b"abc"}, {"output_inline": True}])
def test_neither_needs_addresses(machine: Any, more: dict[str, Any]):
    request = DeviceControlRequest(machine.open(), code(METHOD_NEITHER), output_length=4, **more)
    assert machine.control(request)[0] == STATUS_INVALID_PARAMETER
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0


# Steps 1 to 5


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_the_probe_comes_before_the_handle(machine: Any, method: int):
    request = DeviceControlRequest(0x7777, code(method), None, 2**47 - 1, 4)
    status, request = machine.control(request)
    assert status == STATUS_ACCESS_VIOLATION
    assert request.finished


def test_handles_are_checked(machine: Any):
    _, event = machine.call(create_event, True, False)
    assert machine.control(inline(0x7777, b"x", 0))[0] == STATUS_INVALID_HANDLE
    assert machine.control(inline(event, b"x", 0))[0] == STATUS_OBJECT_TYPE_MISMATCH


@pytest.mark.parametrize("access", range(4))
@pytest.mark.parametrize("granted", range(4))
def test_the_codes_access_is_compared_with_the_handles(machine: Any, access: int, granted: int):
    handle = machine.open(access=granted)
    status, _ = machine.control(DeviceControlRequest(handle, code(METHOD_BUFFERED, access)))
    assert status == (STATUS_ACCESS_DENIED if access & ~granted else STATUS_SUCCESS)
    assert machine.scripted.calls["DEVICE_CONTROL"] == int(status == STATUS_SUCCESS)


def test_event_handles_are_checked(machine: Any):
    handle = machine.open()
    _, event = machine.call(create_event, True, True)
    _, weak = machine.call(duplicate_handle, event, SYNCHRONIZE)
    for bad, status in (
        (0x7777, STATUS_INVALID_HANDLE),
        (handle, STATUS_OBJECT_TYPE_MISMATCH),
        (weak, STATUS_ACCESS_DENIED),
    ):
        assert machine.control(inline(handle, b"x", 0, event_handle=bad))[0] == status
    assert machine.file_of(event).read_state() == 1
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0


def test_w6_the_event_is_reset_even_if_the_request_never_starts(machine: Any):
    handle = machine.open(access=FILE_READ_DATA | FILE_WRITE_DATA)
    _, event = machine.call(create_event, True, True)
    machine.process.pool_quota = 10
    status, _ = machine.control(inline(handle, b"x" * 100, 0, event_handle=event))
    assert status == STATUS_QUOTA_EXCEEDED
    assert machine.file_of(event).read_state() == 0


@pytest.mark.parametrize("method", range(4))
def test_quota(machine: Any, method: int):
    handle = machine.open()
    machine.process.pool_quota = 100
    request = DeviceControlRequest(handle, code(method), None, ARENA, 8)
    assert machine.control(request)[0] == STATUS_QUOTA_EXCEEDED
    assert machine.process.pool_charged == 0
    assert not machine.thread.irps


def test_the_system_buffer_is_charged_while_the_request_lasts(machine: Any):
    kept = pend(machine)
    handle = machine.open(synchronous=False)
    machine.control(inline(handle, b"x" * 5000, 0))
    assert 5000 < machine.process.pool_charged < 6000
    finish(kept[0])
    machine.settle()
    assert machine.process.pool_charged == 0


def test_a_synchronous_file_serialises_its_requests(machine: Any):
    kept = pend(machine)
    handle = machine.open()
    other = machine.new_thread()
    first = machine.start(device_io_control_file, inline(handle, b"1", 0))
    second = machine.start(device_io_control_file, inline(handle, b"2", 0), thread=other)
    assert [bytes(irp.system_buffer) for irp in kept] == [b"1"]
    finish(kept[0])
    machine.settle()
    assert first.done
    assert first.value == STATUS_SUCCESS
    assert not second.done
    assert [bytes(irp.system_buffer) for irp in kept[1:]] == [b"2"]
    finish(kept[1], STATUS_UNSUCCESSFUL)
    machine.settle()
    assert second.value == STATUS_UNSUCCESSFUL
    assert not machine.file_of(handle).busy


def test_two_handles_of_one_device_are_not_serialised(machine: Any):
    kept = pend(machine)
    machine.start(device_io_control_file, inline(machine.open(), b"1", 0))
    other = machine.new_thread()
    handle = machine.open(thread=other)
    machine.start(device_io_control_file, inline(handle, b"2", 0), thread=other)
    assert len(kept) == 2
    for irp in kept:
        finish(irp)
    machine.settle()


def test_a_thread_that_ends_while_it_waits_for_the_file_lock(machine: Any):
    kept = pend(machine)
    handle = machine.open()
    other = machine.new_thread()
    machine.start(device_io_control_file, inline(handle, b"1", 0))
    second = machine.start(device_io_control_file, inline(handle, b"2", 0), thread=other)
    other.terminate()
    machine.settle()
    assert second.value == STATUS_THREAD_IS_TERMINATING
    finish(kept[0])
    machine.settle()
    assert not machine.file_of(handle).busy


def test_completion_from_a_dpc_while_the_thread_waits(machine: Any):
    kept = pend(machine)
    handle = machine.open()
    call = machine.start(device_io_control_file, request := inline(handle, b"abc", 3))
    dpc = Dpc(machine.processor, lambda *_: finish(kept[0], STATUS_SUCCESS, 3))
    machine.processor.schedule_hardware(dpc.insert)
    machine.settle()
    assert call.value == STATUS_SUCCESS
    assert request.output == b"abc"


def test_overlapped_completion_calls_back_once_and_only_after_the_service(machine: Any):
    kept = pend(machine)
    handle = machine.open(synchronous=False)
    done: list[Any] = []
    status, request = machine.control(inline(handle, b"abc", 3, on_finished=done.append))
    assert (status, request.finished, request.iosb_written) == (STATUS_PENDING, False, False)
    finish(kept[0], STATUS_SUCCESS, 2)
    machine.settle()
    assert done == [request]
    assert (request.output, request.information, request.finished) == (b"ab", 2, True)


def test_overlapped_completed_inline_is_known_on_return(machine: Any):
    def control(device: Any, irp: Any) -> int:
        mark_irp_pending(irp)
        finish(irp, STATUS_SUCCESS, 3)
        return STATUS_PENDING

    machine.scripted.on_control = control
    handle = machine.open(synchronous=False)
    done: list[Any] = []
    status, request = machine.control(inline(handle, b"abc", 3, on_finished=done.append))
    assert (status, request.finished, request.output) == (STATUS_PENDING, True, b"abc")
    assert done == []


def test_a_request_can_be_filled_and_used_again(machine: Any):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 2)
    request = inline(machine.open(), b"ab", 2)
    machine.control(request)
    assert request.output == b"ab"
    request.reset()
    assert (request.output, request.iosb_written, request.information) == (None, False, 0)
    request.input = b"cd"
    machine.control(request)
    assert request.output == b"cd"


def test_a_terminating_thread_starts_nothing(machine: Any):
    handle = machine.open()
    machine.thread.terminating = True
    status, request = machine.control(inline(handle, b"x", 0))
    assert status == STATUS_THREAD_IS_TERMINATING
    assert request.finished


# Stacks and trace points


def test_a_user_request_passes_a_driver_attached_above(verified: Any):
    passed: list[str] = []
    upper = DriverObject(verified.processor, "upper")
    device = create_device(upper, None, 0x8004)
    attach_device_to_device_stack(device, verified.scripted.device)

    def completed(device: Any, irp: Any, context: Any) -> int:
        passed.append("up")
        if irp.pending_returned:
            mark_irp_pending(irp)
        return STATUS_SUCCESS

    def forward(device: Any, irp: Any) -> int:
        passed.append("down")
        copy_current_irp_stack_location_to_next(irp)
        set_completion_routine(irp, completed)
        return call_driver(verified.scripted.device, irp)

    upper.major_function[:] = [forward] * len(upper.major_function)
    kept = pend(verified)
    handle = verified.open(synchronous=False)
    assert passed == ["down", "up"]
    status, request = verified.control(inline(handle, b"abc", 3))
    assert status == STATUS_PENDING
    finish(kept[0], STATUS_SUCCESS, 3)
    verified.settle()
    assert request.output == b"abc"
    assert passed == ["down", "up"] * 2
    verified.call(close_handle, handle)
    assert passed == ["down", "up"] * 4
    assert verified.scripted.log == ["CREATE", "DEVICE_CONTROL", "CLEANUP", "CLOSE"]


def test_the_stages_of_a_request_are_traced_when_asked(machine: Any):
    machine.scripted.on_control = answer(STATUS_SUCCESS, 2)
    handle = machine.open()
    trace.clear()
    trace.enabled = True
    try:
        machine.control(inline(handle, b"ab", 2, trace_id=77))
    finally:
        trace.enabled = False
    points = [point.point for point in trace.last() if point.id == 77]
    assert points == [
        "io service",
        "io buffers",
        "io driver called",
        "io completing",
        "io copying back",
        "io copied back",
        "io finished",
        "io driver returned",
    ]
    trace.clear()
    machine.control(inline(handle, b"ab", 2, trace_id=77))
    assert not trace.last()


def test_a_request_shows_itself(machine: Any):
    _, request = machine.control(inline(machine.open(), b"ab", 2))
    assert "STATUS_SUCCESS" in repr(request)
    assert "IOSB untouched" in repr(DeviceControlRequest())
