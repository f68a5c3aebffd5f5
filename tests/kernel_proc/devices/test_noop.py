"""The no-op device: every method, every way of completing, its failures and odd lengths."""

import itertools

import pytest

from kernel_proc.channel_interface.direct_calls import IOCTL_INTERNAL_QUERY_DIRECT_CALLS
from kernel_proc.io_manager.device_control import DeviceControlRequest, device_io_control_file
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_FILL,
    ctl_code,
    noop_code,
    noop_fail_code,
)
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_BUFFER_OVERFLOW,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_UNSUCCESSFUL,
)
from tests.kernel_proc.devices.user_box import UserBox, buffered, by_address

COMPLETIONS = (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
MEMORIES = ("arena", "private")
PATTERN = bytes(range(1, 101))


def returned(completion: int) -> int:
    """What the service returns on an overlapped handle."""
    return STATUS_SUCCESS if completion == COMPLETION_INLINE else STATUS_PENDING


# --- each method ------------------------------------------------------------------------------


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    ("in_length", "out_length", "information"),
    [(100, 100, 100), (100, 40, 40), (40, 100, 40), (100, 0, 100), (0, 100, 0), (0, 0, 0)],
)
def test_buffered_gives_back_the_input_and_counts_two_copies(
    box: UserBox, completion: int, in_length: int, out_length: int, information: int
):
    handle = box.open()
    request = buffered(
        handle, noop_code(METHOD_BUFFERED, completion), PATTERN[:in_length], out_length
    )
    before = box.io.copy_counters.copies, box.io.copy_counters.bytes_copied
    assert box.control(request) == returned(completion)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, information)
    copied_back = information if out_length else 0
    assert (request.output or b"") == PATTERN[:copied_back]
    assert box.io.copy_counters.copies - before[0] == bool(in_length) + bool(copied_back)
    assert box.io.copy_counters.bytes_copied - before[1] == in_length + copied_back
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(("source_in", "target_in"), list(itertools.product(MEMORIES, MEMORIES)))
def test_neither_moves_the_bytes_between_raw_addresses(
    box: UserBox, completion: int, source_in: str, target_in: str
):
    handle = box.open()
    source, target = box.buffer(source_in, 100), box.buffer(target_in, 64)
    source.fill(PATTERN)
    request = by_address(handle, noop_code(METHOD_NEITHER, completion), source, target)
    before = box.io.copy_counters.copies
    assert box.control(request) == returned(completion)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 64)
    assert target.content == PATTERN[:64]
    copies = 0 if (source_in, target_in) == ("arena", "arena") else 2
    assert box.io.copy_counters.copies - before == copies
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_neither_without_output_only_reads(box: UserBox, completion: int, memory: str):
    handle = box.open()
    source = box.buffer(memory, 100)
    source.fill(PATTERN)
    request = by_address(handle, noop_code(METHOD_NEITHER, completion), source)
    box.control(request)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 100)
    assert source.content == PATTERN
    box.close(handle)


def test_private_memory_larger_than_a_piece_arrives_whole(box: UserBox):
    handle = box.open()
    length = (1 << 20) + 4321
    source, target = box.buffer("private", length), box.buffer("private", length)
    source.fill(bytes(i * 7 % 251 for i in range(length)))
    request = by_address(handle, noop_code(METHOD_NEITHER, COMPLETION_INLINE), source, target)
    assert box.control(request) == STATUS_SUCCESS
    assert request.information == length
    assert target.content == source.content
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_out_direct_writes_into_the_callers_pages(box: UserBox, completion: int, memory: str):
    handle = box.open()
    target = box.buffer(memory, 64)
    request = by_address(handle, noop_code(METHOD_OUT_DIRECT, completion), None, target)
    request.input = PATTERN
    box.control(request)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 64)
    assert target.content == PATTERN[:64]
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_in_direct_leaves_both_inputs_alone(box: UserBox, completion: int, memory: str):
    handle = box.open()
    second = box.buffer(memory, 64)
    second.fill(PATTERN[:64])
    request = by_address(handle, noop_code(METHOD_IN_DIRECT, completion), None, second)
    request.input = PATTERN[::-1]
    box.control(request)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 64)
    assert second.content == PATTERN[:64]
    box.close(handle)


@pytest.mark.parametrize("touch", [True, False])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_a_direct_method_without_small_input_moves_its_large_buffer(
    box: UserBox, method: int, memory: str, touch: bool
):
    handle = box.open()
    target = box.buffer(memory, 100)
    target.fill(PATTERN)
    code = noop_code(method, COMPLETION_DEVICE, touch=touch)
    request = by_address(handle, code, None, target)
    before = box.io.copy_counters.copies, box.io.copy_counters.bytes_copied
    box.control(request)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 100)
    filled = touch and method == METHOD_OUT_DIRECT
    assert target.content == (bytes([NOOP_FILL]) * 100 if filled else PATTERN)
    copied = touch and memory == "private"
    assert box.io.copy_counters.copies - before[0] == copied
    assert box.io.copy_counters.bytes_copied - before[1] == 100 * copied
    box.close(handle)


def test_filling_reaches_beyond_a_mebibyte(box: UserBox):
    handle = box.open()
    length = (1 << 20) + 77
    target = box.buffer("private", length)
    code = noop_code(METHOD_OUT_DIRECT, COMPLETION_INLINE)
    assert box.control(by_address(handle, code, None, target)) == STATUS_SUCCESS
    assert target.content == bytes([NOOP_FILL]) * length
    box.close(handle)


@pytest.mark.parametrize("memory", ["arena", "private"])
@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT, METHOD_NEITHER])
def test_a_long_payload_keeps_nobody_waiting_and_is_never_held_whole(
    box: UserBox, monkeypatch: pytest.MonkeyPatch, method: int, memory: str
):
    monkeypatch.setattr("kernel_proc.devices.noop_payload._PIECE", 1000)
    monkeypatch.setattr("kernel_proc.devices.noop_payload._FILLED", bytes(1000))
    length = 5500
    data = bytes(range(250)) * 22
    source, target = box.buffer(memory, length), box.buffer(memory, length)
    source.fill(data)
    largest: list[int] = []
    read = box.space.read_in_any_context

    def watched(address: int, size: int) -> bytes:
        largest.append(size)
        return read(address, size)

    monkeypatch.setattr(box.space, "read_in_any_context", watched)
    handle = box.open()
    large = source if method == METHOD_IN_DIRECT else target
    request = DeviceControlRequest(
        handle,
        noop_code(method, COMPLETION_INLINE),
        input_address=source.address if method == METHOD_NEITHER else 0,
        input_length=length if method == METHOD_NEITHER else 0,
        output_address=large.address,
        output_length=length,
    )
    other_turns: list[int] = []

    def other() -> None:
        while not call.done:
            other_turns.append(1)
            box.processor.dispatcher.yield_execution()

    call = box.begin(device_io_control_file, request)
    create_system_thread(box.processor, other)
    box.processor.run_until(lambda: call.done)
    assert call.value == STATUS_SUCCESS
    assert len(other_turns) >= 5
    assert all(size <= 1000 for size in largest)
    if method == METHOD_NEITHER:
        assert target.content == data


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_code_that_ignores_the_payload_does_not_touch_it(box: UserBox, completion: int):
    handle = box.open()
    source, target = box.buffer("arena", 100), box.buffer("arena", 64)
    source.fill(PATTERN)
    code = noop_code(METHOD_NEITHER, completion, touch=False)
    request = by_address(handle, code, source, target)
    # An address that would fault if it were touched.
    request.input_address = 8
    box.control(request)
    box.finish(request)
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 64)
    assert target.content == bytes(64)
    box.close(handle)


# --- ways of completing -----------------------------------------------------------------------


def test_inline_uses_neither_dpc_nor_interrupt(box: UserBox):
    handle = box.open()
    dpcs, interrupts = box.processor.dpcs, box.processor.interrupts
    request = buffered(handle, noop_code(METHOD_BUFFERED, COMPLETION_INLINE))
    assert box.control(request) == STATUS_SUCCESS
    assert (box.processor.dpcs, box.processor.interrupts) == (dpcs, interrupts)
    box.close(handle)


def test_dpc_has_completed_when_the_service_returns(box: UserBox):
    handle = box.open()
    dpcs, interrupts = box.processor.dpcs, box.processor.interrupts
    request = buffered(handle, noop_code(METHOD_BUFFERED, COMPLETION_DPC))
    assert box.control(request) == STATUS_PENDING
    assert request.finished
    assert (box.processor.dpcs - dpcs, box.processor.interrupts - interrupts) == (1, 0)
    box.close(handle)


def test_the_device_acts_after_pending_was_returned(box: UserBox):
    handle = box.open()
    dpcs, interrupts = box.processor.dpcs, box.processor.interrupts
    request = buffered(handle, noop_code(METHOD_BUFFERED, COMPLETION_DEVICE))
    assert box.control(request) == STATUS_PENDING
    assert not request.finished
    assert box.pended == {"queued": 0, "commanded": 1}
    assert box.processor.interrupts == interrupts
    box.finish(request)
    assert (box.processor.dpcs - dpcs, box.processor.interrupts - interrupts) == (1, 1)
    box.close(handle)


def test_one_interrupt_finishes_every_command_given_before_it(box: UserBox):
    handle = box.open()
    interrupts = box.processor.interrupts
    requests = [
        buffered(handle, noop_code(METHOD_BUFFERED, COMPLETION_DEVICE), PATTERN[:n], n)
        for n in (3, 5, 7)
    ]
    threads = [box.new_thread() for _ in requests]
    finished: list[int] = []
    for request in requests:
        request.on_finished = lambda done: finished.append(done.information)
    calls = [
        box.begin(lambda io, thread, r: _control(box, r, thread), request, thread=thread)
        for request, thread in zip(requests, threads, strict=True)
    ]
    box.processor.run_until(lambda: all(call.done for call in calls))
    for request in requests:
        box.finish(request)
    assert finished == [3, 5, 7]
    assert box.processor.interrupts - interrupts <= len(requests)
    box.close(handle)


def _control(box: UserBox, request: object, thread: object) -> int:
    from kernel_proc.io_manager.system_services import device_io_control_file

    return device_io_control_file(box.io, thread, request)  # type: ignore[arg-type]  # lambda's


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_synchronous_handle_returns_when_it_is_done(box: UserBox, completion: int):
    handle = box.open(synchronous=True)
    request = buffered(handle, noop_code(METHOD_BUFFERED, completion), PATTERN, 100)
    assert box.control(request) == STATUS_SUCCESS
    assert (request.finished, request.output) == (True, PATTERN)
    box.close(handle)


def test_a_line_raised_without_cause_is_not_claimed(box: UserBox):
    extension = box.noop.device_extension
    before = extension.inspect()["spurious_interrupts"]
    extension.interrupt.request()
    assert extension.inspect()["spurious_interrupts"] == before + 1


# --- failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
@pytest.mark.parametrize("status", [STATUS_UNSUCCESSFUL, STATUS_BUFFER_OVERFLOW, 0x4EAD_BEEF])
def test_a_failing_code_completes_with_the_status_it_was_given(
    box: UserBox, completion: int, method: int, status: int
):
    handle = box.open()
    data = status.to_bytes(4, "little")
    code = noop_fail_code(method, completion)
    if method == METHOD_BUFFERED:
        request = buffered(handle, code, data)
    else:
        source = box.buffer("private", 4)
        source.fill(data)
        request = by_address(handle, code, source)
    assert box.control(request) == (status if completion == COMPLETION_INLINE else STATUS_PENDING)
    box.finish(request)
    if completion == COMPLETION_INLINE and status == STATUS_UNSUCCESSFUL:
        assert not request.iosb_written  # an error known at once is told by the return value alone
    else:
        assert (request.iosb_status, request.information) == (status, 0)
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize(
    "data", [b"", b"\1\2\3", STATUS_PENDING.to_bytes(4, "little"), b"\xff" * 4]
)
def test_what_cannot_be_a_final_status_is_refused(box: UserBox, completion: int, data: bytes):
    handle = box.open()
    request = buffered(handle, noop_fail_code(METHOD_BUFFERED, completion), data)
    assert box.control(request) == STATUS_INVALID_PARAMETER
    box.close(handle)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_fault_in_the_callers_memory_is_the_status(box: UserBox, completion: int):
    handle = box.open()
    code = noop_code(METHOD_NEITHER, completion)
    good, bad = box.buffer("private", 64), box.buffer("private", 64)
    for address in (0, 8, 0x0000_7FFF_FFFF_FFF0, 0xFFFF_8000_0000_0000):
        bad.address = address
        for source, target in ((bad, good), (good, bad)):
            request = by_address(handle, code, source, target)
            assert box.control(request) == STATUS_ACCESS_VIOLATION
            assert not request.iosb_written
    box.close(handle)


@pytest.mark.parametrize(
    "code",
    [
        ctl_code(0x8001, 0x8FF, METHOD_BUFFERED, 0),
        ctl_code(0x1234, 0x800, METHOD_BUFFERED, 0),
        IOCTL_INTERNAL_QUERY_DIRECT_CALLS,
    ],
)
def test_other_codes_are_refused_to_users(box: UserBox, code: int):
    handle = box.open()
    request = by_address(handle, code)
    assert box.control(request) == STATUS_INVALID_DEVICE_REQUEST
    box.close(handle)


def test_the_name_is_taken_once_loaded(box: UserBox):
    from kernel_proc.devices import noop

    with pytest.raises(RaisedStatus):
        noop.load(box.io)
