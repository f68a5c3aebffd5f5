"""The benchmark device: what a run does exactly, what it refuses, and how it ends early."""

import time
from array import array
from typing import Any

import pytest

from kernel_proc.channel_interface.direct_calls import DirectCalls
from kernel_proc.clients.benchmark_client import MAX_COUNT
from kernel_proc.clients.direct_client import DirectCall
from kernel_proc.clients.timed_operations import MAX_DEPTH
from kernel_proc.io_manager import completion as completion_module
from kernel_proc.io_manager.irp_flags import IRP_MJ_INTERNAL_DEVICE_CONTROL
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.system_services import (
    cancel_io_file,
    close_handle,
    device_io_control_file,
    run_down_process,
)
from kernel_proc.scheduling.kthread import create_system_thread
from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    IOCTL_BENCHMARK_RUN,
    IOCTL_QUERY_COUNTERS,
    METHOD_BUFFERED,
    ctl_code,
    noop_code,
)
from shared.message_codec import decode_as, encode
from shared.messages import BENCHMARK_PATHS, COUNTERS_MAX_LENGTH, BenchmarkRun, Counters
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_NO_SUCH_DEVICE,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from tests.kernel_proc.devices.user_box import UserBox, buffered, by_address

COMPLETIONS = (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
CLIENTS = ("irp", "irp_built", "irp_reused", "direct")
COUNT, WARMUP = 40, 3
EACH = COUNT + WARMUP


def plan(
    handle: int,
    path: str,
    completion: int = 0,
    payload: int = 64,
    count: int = COUNT,
    depth: int = 1,
) -> DeviceControlRequest:
    data = encode(BenchmarkRun(path, completion, payload, count, WARMUP, depth))
    return buffered(handle, IOCTL_BENCHMARK_RUN, data, 8 * (count + 1))


def samples_of(data: bytes) -> "array[int]":
    """The times of the operations; the time of all together stands behind them."""
    samples = array("Q")
    samples.frombytes(data)
    assert samples.pop() >= max(samples)
    return samples


def run(box: UserBox, path: str, completion: int, payload: int, depth: int = 1) -> "array[int]":
    handle = box.open("benchmark")
    request = plan(handle, path, completion, payload, depth=depth)
    box.control(request)
    box.finish(request)
    assert request.iosb_status == STATUS_SUCCESS
    samples = samples_of(request.output or b"")
    assert len(samples) == COUNT
    assert all(samples)
    box.close(handle)
    return samples


# --- what a run does --------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [0, 64, 65536])
@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("path", CLIENTS)
def test_each_operation_is_one_call_and_one_completion(
    box: UserBox, monkeypatch: pytest.MonkeyPatch, path: str, completion: int, payload: int
):
    calls: list[int] = []
    completions: list[int] = []
    dispatch = box.noop.major_function[IRP_MJ_INTERNAL_DEVICE_CONTROL]

    def counting_dispatch(device: Any, irp: Any) -> int:
        calls.append(irp.stack[irp.current_location].io_control_code)
        return dispatch(device, irp)

    def counting_completion(irp: Any, boost: int = 0) -> None:
        completions.append(boost)
        completion_module.complete_request(irp, boost)

    box.noop.major_function[IRP_MJ_INTERNAL_DEVICE_CONTROL] = counting_dispatch
    monkeypatch.setattr("kernel_proc.devices.noop.complete_request", counting_completion)
    before = _totals(box)
    run(box, path, completion, payload)
    after = _totals(box)
    change = {name: after[name] - before[name] for name in after}
    irps = {"irp": EACH, "irp_built": EACH, "irp_reused": 1, "direct": 1}[path]  # direct: the query
    own_irps = 4  # create, run, cleanup and close of the benchmark device itself
    sent = EACH if path != "direct" else 1
    assert len(calls) == len(completions) == sent
    assert change["irps"] == irps + own_irps
    assert change["dpcs"] == (EACH if completion != COMPLETION_INLINE else 0)
    assert change["interrupts"] == (EACH if completion == COMPLETION_DEVICE else 0)
    copies = 2 * EACH if path == "irp_built" and payload else 0
    own_copies = 2  # the plan in, the samples out
    assert change["copies"] == copies + own_copies
    own_bytes = len(encode(BenchmarkRun(path, completion, payload, COUNT, WARMUP)))
    own_bytes += 8 * (COUNT + 1)
    assert change["bytes_copied"] == copies * payload + own_bytes


@pytest.mark.parametrize("path", ["irp", "direct"])
@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
def test_one_dpc_drains_a_batch(box: UserBox, path: str, completion: int):
    handle = box.open("benchmark")
    before = _totals(box)
    request = plan(handle, path, completion, 64, depth=16)
    box.control(request)
    box.finish(request)
    after = _totals(box)
    assert len(samples_of(request.output or b"")) == COUNT
    batches = 1 + 3  # of 3 operations to warm up; 16, 16 and 8 of the 40
    assert after["dpcs"] - before["dpcs"] == batches
    assert after["interrupts"] - before["interrupts"] == (
        batches if completion == COMPLETION_DEVICE else 0
    )
    irps = EACH if path == "irp" else 1  # direct: the query
    own_irps = 1  # the run
    assert after["irps"] - before["irps"] == irps + own_irps
    box.close(handle)


def test_a_request_of_a_batch_waits_for_those_before_it(box: UserBox):
    samples = run(box, "irp", COMPLETION_DPC, 0, depth=16)
    # All end in one go and the first was given first, so it waits longest.
    for first in (0, 16):
        assert samples[first] > samples[first + 15]


def test_a_failing_request_of_a_batch_fails_the_run(box: UserBox):
    handle = box.open("benchmark")
    submit = box.noop.device_extension.direct.submit

    def refuse_some(request: Any) -> int:
        if request.context == 3:
            request.completion = 99
        return int(submit(request))

    box.noop.device_extension.direct.calls = DirectCalls(refuse_some)
    request = plan(handle, "direct", COMPLETION_DPC, 64, depth=16)
    box.control(request)
    box.finish(request)
    assert request.iosb_status == STATUS_INVALID_PARAMETER
    box.close(handle)


def _totals(box: UserBox) -> dict[str, int]:
    return {
        "irps": box.io.irps_allocated,
        "dpcs": box.processor.dpcs,
        "interrupts": box.processor.interrupts,
        "copies": box.io.copy_counters.copies,
        "bytes_copied": box.io.copy_counters.bytes_copied,
    }


@pytest.mark.parametrize("path", [path for path in BENCHMARK_PATHS if path.startswith("floor")])
def test_every_floor_gives_its_samples(box: UserBox, path: str):
    if path == "floor_private_copy":
        return _private_copy(box)
    run(box, path, 0, 4096)
    assert len(box.processor.dispatcher.threads) == 1  # the user's; no partner is left
    return None


def _private_copy(box: UserBox) -> None:
    handle = box.open("benchmark")
    data = encode(BenchmarkRun("floor_private_copy", 0, 4096, COUNT, WARMUP))
    source, target = box.buffer("private", len(data)), box.buffer("private", 4096)
    source.fill(data)
    request = by_address(handle, IOCTL_BENCHMARK_RUN, source, target)
    assert box.control(request) == STATUS_SUCCESS
    assert request.information == 8 * (COUNT + 1)
    assert all(samples_of(target.content[: request.information]))
    box.close(handle)


def test_the_thread_switch_floor_really_switches(box: UserBox):
    before = box.processor.dispatcher.switches
    run(box, "floor_thread_switch", 0, 0)
    assert box.processor.dispatcher.switches - before >= 2 * EACH


def test_others_are_served_while_a_run_lasts(box: UserBox):
    bench, noop = box.open("benchmark"), box.open()
    long_run = plan(bench, "irp", COMPLETION_INLINE, 0, count=5_000)
    assert box.control(long_run) == STATUS_PENDING
    other = buffered(noop, noop_code(METHOD_BUFFERED, COMPLETION_DEVICE), b"abc", 3)
    box.control(other, thread=box.new_thread())
    box.finish(other)
    assert other.output == b"abc"
    assert not long_run.finished
    box.finish(long_run)
    assert long_run.iosb_status == STATUS_SUCCESS
    box.close(bench)
    box.close(noop)


# --- counters ---------------------------------------------------------------------------------


def counters(box: UserBox, handle: int) -> Counters:
    request = buffered(handle, IOCTL_QUERY_COUNTERS, b"", COUNTERS_MAX_LENGTH)
    assert box.control(request) == STATUS_SUCCESS
    return decode_as(Counters, request.output or b"")


def test_counters_are_the_machines_own_totals(box: UserBox):
    box.benchmark.device_extension.wire_bytes = lambda: 4711
    handle = box.open("benchmark")
    first = counters(box, handle)
    assert first.wire_bytes == 4711
    assert first.irps == box.io.irps_allocated
    run(box, "irp", COMPLETION_DEVICE, 64)
    begin = time.process_time_ns()
    while time.process_time_ns() - begin < 20_000_000:
        pass
    second = counters(box, handle)
    assert second.dpcs - first.dpcs == second.interrupts - first.interrupts == EACH
    spent = second.cpu_user_ns + second.cpu_system_ns - first.cpu_user_ns - first.cpu_system_ns
    assert spent >= 15_000_000
    box.close(handle)


def test_counters_need_room(box: UserBox):
    handle = box.open("benchmark")
    assert box.control(buffered(handle, IOCTL_QUERY_COUNTERS, b"", 4)) == STATUS_BUFFER_TOO_SMALL
    box.close(handle)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_plan", "status"),
    [
        (BenchmarkRun("teleport", 0, 0, 1, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 3, 0, 1, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, (1 << 20) + 1, 1, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, 0, 0, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, 0, MAX_COUNT + 1, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, 0, 1, MAX_COUNT + 1), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, 0, 1, 0), STATUS_BUFFER_TOO_SMALL),
        (BenchmarkRun("irp", 0, 0, 100, 0), STATUS_BUFFER_TOO_SMALL),
        (BenchmarkRun("irp", 1, 0, 1, 0, 0), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 1, 0, 1, 0, MAX_DEPTH + 1), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp", 0, 0, 1, 0, 2), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("irp_built", 1, 0, 1, 0, 2), STATUS_INVALID_PARAMETER),
        (BenchmarkRun("floor_private_copy", 0, 64, 1, 0), STATUS_INVALID_PARAMETER),
    ],
)
def test_a_plan_nobody_can_perform_is_refused(box: UserBox, run_plan: BenchmarkRun, status: int):
    handle = box.open("benchmark")
    room = 16 if run_plan.payload == 64 else 8
    assert box.control(buffered(handle, IOCTL_BENCHMARK_RUN, encode(run_plan), room)) == status
    box.close(handle)


@pytest.mark.parametrize("data", [b"", b"\x93\x14", b"\xc1", encode(Counters(*range(8)))])
def test_what_is_no_plan_is_refused(box: UserBox, data: bytes):
    handle = box.open("benchmark")
    assert box.control(buffered(handle, IOCTL_BENCHMARK_RUN, data, 8)) == STATUS_INVALID_PARAMETER
    box.close(handle)


def test_an_unknown_code_is_refused(box: UserBox):
    handle = box.open("benchmark")
    request = buffered(handle, ctl_code(0x8002, 0x8FF, METHOD_BUFFERED, 0))
    assert box.control(request) == STATUS_INVALID_DEVICE_REQUEST
    box.close(handle)


def test_a_private_copy_of_what_cannot_be_read_faults(box: UserBox):
    handle = box.open("benchmark")
    data = encode(BenchmarkRun("floor_private_copy", 0, 1 << 20, 1, 0))
    request = buffered(handle, IOCTL_BENCHMARK_RUN, data, 1 << 20)
    # The output travels inline, so that the address says nothing and only the driver looks at it.
    request.output_address = 8
    assert box.control(request) == STATUS_ACCESS_VIOLATION
    box.close(handle)


@pytest.mark.parametrize("path", CLIENTS)
def test_without_a_no_op_device_a_client_fails_and_the_kernel_goes_on(box: UserBox, path: str):
    handle = box.open("benchmark")
    del box.io.devices["noop"]
    request = plan(handle, path)
    assert box.control(request) == STATUS_PENDING
    box.finish(request)
    assert request.iosb_status == STATUS_NO_SUCH_DEVICE
    box.close(handle)


# --- ending early -----------------------------------------------------------------------------


def begin_long_run(box: UserBox, path: str, then: Any, depth: int = 1) -> DeviceControlRequest:
    """Start a run that would take very long, then call `then(io, thread, handle)`."""
    handle = box.open("benchmark")
    request = plan(handle, path, COMPLETION_DPC, 0, count=MAX_COUNT, depth=depth)

    def control_then(io: Any, thread: Any) -> None:
        assert device_io_control_file(io, thread, request) == STATUS_PENDING
        then(io, thread, handle)

    box.service(control_then)
    box.finish(request)
    return request


@pytest.mark.parametrize(
    ("path", "depth"), [("irp", 1), ("irp", 16), ("direct", 1), ("floor_thread_switch", 1)]
)
@pytest.mark.parametrize("then", [cancel_io_file, close_handle])
def test_a_run_ends_soon_after_cancel_or_close(box: UserBox, path: str, depth: int, then: Any):
    begin = time.perf_counter()
    request = begin_long_run(box, path, then, depth)
    assert request.iosb_status == STATUS_CANCELLED
    assert request.information == 0
    assert time.perf_counter() - begin < 0.5
    for handle in list(box.process.handle_table.entries):
        box.close(handle)


def test_the_end_of_a_process_ends_its_run(box: UserBox):
    handle = box.open("benchmark")
    request = plan(handle, "irp", COMPLETION_DEVICE, 0, count=MAX_COUNT)
    assert box.control(request) == STATUS_PENDING
    ended = create_system_thread(box.processor, run_down_process, box.io, box.process)
    box.processor.run_until(lambda: ended.ended)
    assert box.benchmark.device_extension.runs == {}
    assert box.benchmark.open_count == 0


def test_direct_calls_of_a_closed_client_leave_nothing(box: UserBox):
    def body() -> None:
        call = DirectCall(box.noop, COMPLETION_DEVICE, 64)
        for _ in range(5):
            call()
        call.close()

    box.processor.run_thread(body)
    assert box.pended == {"queued": 0, "commanded": 0}
