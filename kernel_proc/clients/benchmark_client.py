"""The driver of the device "benchmark": runs kernel clients and floors, and tells the counters.

The answer to IOCTL_BENCHMARK_RUN is one time for each operation, then the time of all together. It
is pended while a system thread performs the operations, so that the kernel
serves everyone else; the private-copy floor alone runs in the thread that asked, because it reads
that thread's own output buffer. What a run performs is imported at the first one.

Rules: dispatch at PASSIVE_LEVEL. A run ends early when it is cancelled or its file is closed.
Spec: shared/ioctl_codes.py, shared/messages.py; plan of the IRP benchmark: docs/benchmark.md.
"""

import contextlib
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.clients.timed_loop import Stopped, TimedLoop
from kernel_proc.clients.trace_control import TRACE_CODES, control_trace
from kernel_proc.io_manager.cancellation import release_cancel_spin_lock, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DeviceObject, DriverObject, create_device
from kernel_proc.io_manager.irp import Irp, mark_irp_pending
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
)
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import (
    BENCHMARK_DEVICE,
    BENCHMARK_DEVICE_TYPE,
    COMPLETION_DEVICE,
    IOCTL_BENCHMARK_RUN,
    IOCTL_COMMAND_JOURNAL,
    IOCTL_QUERY_COUNTERS,
    IOCTL_TRANSFER_RUN,
    IOCTL_VERBS_RUN,
)
from shared.message_codec import MessageError, decode_as, encode
from shared.messages import BenchmarkRun, Counters
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

MAX_COUNT: Final = 100_000
MAX_PAYLOAD: Final = 1 << 20
_SAMPLE: Final = 8


class BenchmarkExtension:
    """What the driver keeps for its device: the runs under way, and who counts wire bytes."""

    __slots__ = ("driver", "runs", "wire_bytes")

    def __init__(self, driver: DriverObject, wire_bytes: Callable[[], int]) -> None:
        self.driver = driver
        self.runs: dict[Irp, TimedLoop] = {}
        self.wire_bytes = wire_bytes

    def counters(self) -> Counters:
        """Return the running totals of this kernel process."""
        io, processor = self.driver.io, self.driver.processor
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Counters(
            copies=io.copy_counters.copies,
            bytes_copied=io.copy_counters.bytes_copied,
            wire_bytes=self.wire_bytes(),
            irps=io.irps_allocated,
            dpcs=processor.dpcs,
            interrupts=processor.interrupts,
            cpu_user_ns=round(used.ru_utime * 1e9),
            cpu_system_ns=round(used.ru_stime * 1e9),
        )

    def cancel(self, device: DeviceObject | None, irp: Irp) -> None:
        """Tell a run to end early; its thread completes the request (WDK: Cancel routine)."""
        self.runs[irp].stopped = True
        release_cancel_spin_lock(irp.processor, irp.cancel_irql)


def _read_run(irp: Irp, input_length: int, output_length: int) -> BenchmarkRun:
    """Return the checked plan of a run; raise RaisedStatus for one that cannot be performed."""
    from kernel_proc.clients.timed_operations import is_possible

    try:
        run = decode_as(BenchmarkRun, bytes(irp.system_buffer or b"")[:input_length])
    except MessageError as error:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, str(error)) from error
    if (
        not is_possible(run)
        or run.completion > COMPLETION_DEVICE
        or run.payload > MAX_PAYLOAD
        or not 1 <= run.count <= MAX_COUNT
        or run.warmup > MAX_COUNT
    ):
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "no plan this driver performs")
    if output_length < (run.count + 1) * _SAMPLE:
        raise RaisedStatus(STATUS_BUFFER_TOO_SMALL, "no room for the samples")
    return run


def _device_control(device: DeviceObject, irp: Irp) -> int:
    location = irp.stack[irp.current_location]
    extension: BenchmarkExtension = device.device_extension
    try:
        if location.io_control_code == IOCTL_QUERY_COUNTERS:
            return _query_counters(extension, irp, location.output_buffer_length)
        if location.io_control_code in TRACE_CODES:
            return _complete(irp, STATUS_SUCCESS, control_trace(irp, location))
        if location.io_control_code == IOCTL_COMMAND_JOURNAL:
            from kernel_proc.clients.verbs_client import read_command_journal

            return _complete(irp, STATUS_SUCCESS, read_command_journal(device.io, irp, location))
        if location.io_control_code == IOCTL_VERBS_RUN:
            from kernel_proc.clients.verbs_client import ProgramLoop

            programs = ProgramLoop.planned_by(device.io, irp, location)
            return _start(extension, irp, programs, programs.perform, "verbs")
        if location.io_control_code == IOCTL_TRANSFER_RUN:
            from kernel_proc.clients.transfer_client import TransferLoop

            transfers = TransferLoop.planned_by(device.io, irp, location)
            return _start(extension, irp, transfers, transfers.perform, "transfers")
        if location.io_control_code != IOCTL_BENCHMARK_RUN:
            raise RaisedStatus(STATUS_INVALID_DEVICE_REQUEST, "unknown control code")
        run = _read_run(irp, location.input_buffer_length, location.output_buffer_length)
        loop = TimedLoop(device.processor, irp.thread, run.count, run.warmup)
        if run.path == "floor_private_copy":
            return _run_in_caller(irp, run, loop)
    except RaisedStatus as refusal:
        return _complete(irp, refusal.status, 0)
    return _start(extension, irp, loop, lambda: _perform(extension, run, loop), run.path)


def _query_counters(extension: BenchmarkExtension, irp: Irp, output_length: int) -> int:
    packed = encode(extension.counters())
    if output_length < len(packed):
        raise RaisedStatus(STATUS_BUFFER_TOO_SMALL, "no room for the counters")
    irp.system_buffer[: len(packed)] = packed
    return _complete(irp, STATUS_SUCCESS, len(packed))


def _run_in_caller(irp: Irp, run: BenchmarkRun, loop: TimedLoop) -> int:
    """Read the caller's own output buffer again and again; a fault ends the run."""
    from kernel_proc.clients.kernel_floors import PrivateCopy

    thread = irp.thread
    location = irp.stack[irp.current_location]
    if thread is None or thread.process is None or run.payload > location.output_buffer_length:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "no private memory of that length")
    try:
        loop.run(PrivateCopy(thread.process.address_space, irp.user_buffer, run.payload))
    except Stopped:
        return _complete(irp, STATUS_CANCELLED, 0)
    return _complete(irp, STATUS_SUCCESS, _store(irp, loop))


def _start(
    extension: BenchmarkExtension,
    irp: Irp,
    loop: TimedLoop,
    perform: Callable[[], object],
    name: str,
) -> int:
    """Pend the request and have a system thread perform the run."""
    mark_irp_pending(irp)
    extension.runs[irp] = loop
    set_cancel_routine(irp, extension.cancel)
    if irp.cancel and set_cancel_routine(irp, None) is not None:
        loop.stopped = True
    create_system_thread(
        irp.processor, _finish, extension, irp, loop, perform, name=f"benchmark {name}"
    )
    return STATUS_PENDING


def _finish(
    extension: BenchmarkExtension, irp: Irp, loop: TimedLoop, perform: Callable[[], object]
) -> None:
    """Perform a run and complete its request; the body of a system thread."""
    status, information = STATUS_SUCCESS, 0
    try:
        perform()
    except Stopped:
        status = STATUS_CANCELLED
    except RaisedStatus as failure:
        status = failure.status
    set_cancel_routine(irp, None)
    del extension.runs[irp]
    if loop.stopped:
        status = STATUS_CANCELLED
    if status == STATUS_SUCCESS:
        information = _store(irp, loop)
    _complete(irp, status, information)


def _perform(extension: BenchmarkExtension, run: BenchmarkRun, loop: TimedLoop) -> None:
    from kernel_proc.clients.timed_operations import batch_of, operation_of

    io = extension.driver.io
    with contextlib.ExitStack() as held:
        if run.depth > 1:
            batch = batch_of(io, run)
            held.callback(batch.close)
            loop.run_batches(batch)
        else:
            operation = operation_of(io, run)
            held.callback(operation.close)
            loop.run(operation)


def _store(irp: Irp, loop: TimedLoop) -> int:
    """Put the answer where the request wants it; return its length in bytes."""
    answer = loop.answer()
    irp.system_buffer[: len(answer)] = answer
    return len(answer)


def _cleanup(device: DeviceObject, irp: Irp) -> int:
    """End the runs of a file whose last handle is gone."""
    extension: BenchmarkExtension = device.device_extension
    file = irp.stack[irp.current_location].file_object
    for running, loop in extension.runs.items():
        if running.stack[running.current_location].file_object is file:
            loop.stopped = True
    return _complete(irp, STATUS_SUCCESS, 0)


def _succeed(device: DeviceObject, irp: Irp) -> int:
    return _complete(irp, STATUS_SUCCESS, 0)


def _complete(irp: Irp, status: int, information: int) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


def load(io: "IoManager", wire_bytes: Callable[[], int] = lambda: 0) -> DriverObject:
    """Make the driver and its device; `wire_bytes` tells what the door has moved so far."""
    driver = DriverObject(io.processor, BENCHMARK_DEVICE)
    driver.major_function[IRP_MJ_CREATE] = _succeed
    driver.major_function[IRP_MJ_CLEANUP] = _cleanup
    driver.major_function[IRP_MJ_CLOSE] = _succeed
    driver.major_function[IRP_MJ_DEVICE_CONTROL] = _device_control
    extension = BenchmarkExtension(driver, wire_bytes)
    create_device(driver, BENCHMARK_DEVICE, BENCHMARK_DEVICE_TYPE, extension=extension)
    return driver
