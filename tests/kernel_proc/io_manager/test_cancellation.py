"""Cancelling: one IRP, a thread's IRPs, and drivers that do not answer."""

from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import (
    CANCEL_DEADLINE_NS,
    acquire_cancel_spin_lock,
    cancel_irp,
    release_cancel_spin_lock,
    set_cancel_routine,
)
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, allocate_irp, mark_irp_pending
from kernel_proc.io_manager.run_down import run_down_thread
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    cancel_io_file_ex,
    close_handle,
    create_event,
    device_io_control_file,
)
from kernel_proc.scheduling.bugcheck import (
    CANCEL_STATE_IN_COMPLETED_IRP,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    BugCheck,
)
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from shared.ioctl_codes import METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_INVALID_HANDLE,
    STATUS_NOT_FOUND,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

ARENA = 0x7000_0000_0000


def finish(irp: Any, status: int = STATUS_SUCCESS) -> None:
    irp.status = status
    complete_request(irp)


class Keeper:
    """A driver that pends every request and, unless stubborn, ends it when it is cancelled."""

    def __init__(self, machine: Any, *, stubborn: bool = False) -> None:
        self.machine = machine
        self.kept: dict[Irp, None] = {}
        self.cancelled: list[Irp] = []
        self.stubborn = stubborn
        machine.scripted.on_control = self.control

    def control(self, device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        self.kept[irp] = None
        if not self.stubborn:
            set_cancel_routine(irp, self.cancel)
        return STATUS_PENDING

    def cancel(self, device: Any, irp: Irp) -> None:
        processor = self.machine.processor
        assert processor.irql == DISPATCH_LEVEL
        assert irp.cancel
        assert irp.cancel_routine is None
        assert device is self.machine.scripted.device
        release_cancel_spin_lock(processor, irp.cancel_irql)
        self.cancelled.append(irp)
        del self.kept[irp]
        irp.information = 0
        finish(irp, STATUS_CANCELLED)


def control(handle: int, **more: Any) -> DeviceControlRequest:
    return DeviceControlRequest(handle, ctl_code(0x8003, 0x800, 0, 0), b"x", **more)


def test_w17_cancel_without_a_routine(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    assert cancel_irp(irp) is False
    assert cancel_irp(irp) is False
    assert irp.cancel is True
    assert machine.processor.irql == PASSIVE_LEVEL


def test_w18_cancel_with_a_routine(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    calls: list[Any] = []

    def routine(device: Any, cancelled: Irp) -> None:
        calls.append((cancelled, cancelled.cancel, cancelled.cancel_routine))
        assert machine.processor.irql == DISPATCH_LEVEL
        assert machine.io.cancel_lock.held
        release_cancel_spin_lock(machine.processor, cancelled.cancel_irql)

    assert set_cancel_routine(irp, routine) is None
    assert cancel_irp(irp) is True
    assert calls == [(irp, True, None)]
    assert cancel_irp(irp) is False
    assert len(calls) == 1
    assert machine.processor.irql == PASSIVE_LEVEL


def test_clearing_the_routine_first_takes_the_irp_from_the_canceller(machine: Any):
    irp = allocate_irp(machine.processor, 1)

    def routine(device: Any, irp: Irp) -> None:
        raise AssertionError("called though it was cleared")

    set_cancel_routine(irp, routine)
    assert set_cancel_routine(irp, None) is routine
    assert cancel_irp(irp) is False
    assert set_cancel_routine(irp, None) is None


def test_the_cancel_spin_lock_can_be_taken_by_drivers(machine: Any):
    irql = acquire_cancel_spin_lock(machine.processor)
    assert (irql, machine.processor.irql) == (PASSIVE_LEVEL, DISPATCH_LEVEL)
    release_cancel_spin_lock(machine.processor, irql)
    assert machine.processor.irql == PASSIVE_LEVEL


def test_0x48_a_routine_on_a_completed_irp(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    irp.current_location = 3
    set_cancel_routine(irp, lambda *_: None)
    with pytest.raises(BugCheck) as caught:
        cancel_irp(irp)
    assert caught.value.code == CANCEL_STATE_IN_COMPLETED_IRP
    assert caught.value.parameters[0] == id(irp)


def test_0x1e_an_exception_leaves_a_cancel_routine(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    set_cancel_routine(irp, lambda *_: 1 // 0)
    with pytest.raises(BugCheck) as caught:
        cancel_irp(irp)
    assert caught.value.code == KMODE_EXCEPTION_NOT_HANDLED


def test_cancel_needs_dispatch_level_or_below(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    machine.processor.irql = HIGH_LEVEL
    with pytest.raises(BugCheck) as caught:
        cancel_irp(irp)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL


# CancelIo and CancelIoEx


def test_cancel_io_takes_the_threads_requests_on_that_file_alone(machine: Any):
    keeper = Keeper(machine)
    mine, other_file = machine.open(synchronous=False), machine.open(synchronous=False)
    other = machine.new_thread()
    requests = [control(mine), control(mine), control(other_file)]
    for request in requests:
        assert machine.control(request)[0] == STATUS_PENDING
    foreign = control(mine)
    machine.control(foreign, thread=other)
    assert machine.call(cancel_io_file, mine) == STATUS_SUCCESS
    assert [r.finished for r in (*requests, foreign)] == [True, True, False, False]
    assert [r.iosb_status for r in requests[:2]] == [STATUS_CANCELLED] * 2
    assert len(keeper.kept) == 2
    assert len(machine.thread.irps) == 1


def test_cancel_io_waits_until_the_driver_has_ended_them(machine: Any):
    keeper = Keeper(machine, stubborn=True)
    handle = machine.open(synchronous=False)
    machine.control(control(handle))
    machine.control(control(handle))
    call = machine.start(cancel_io_file, handle)
    assert not call.done
    for irp in list(keeper.kept):
        assert irp.cancel
        finish(irp, STATUS_CANCELLED)
        machine.settle()
    assert call.value == STATUS_SUCCESS
    assert not machine.thread.irps


def test_cancel_io_with_nothing_to_cancel_and_bad_handles(machine: Any):
    _, event = machine.call(create_event, True, False)
    assert machine.call(cancel_io_file, machine.open()) == STATUS_SUCCESS
    assert machine.call(cancel_io_file, 0x7777) == STATUS_INVALID_HANDLE
    assert machine.call(cancel_io_file, event) == STATUS_OBJECT_TYPE_MISMATCH
    assert machine.call(cancel_io_file_ex, 0x7777) == STATUS_INVALID_HANDLE


def test_cancel_io_ex_takes_other_threads_requests_and_does_not_wait(machine: Any):
    keeper = Keeper(machine)
    handle = machine.open(synchronous=False)
    other = machine.new_thread()
    first, second = control(handle), control(handle)
    machine.control(first, thread=other)
    machine.control(second)
    assert machine.call(cancel_io_file_ex, handle, first) == STATUS_SUCCESS
    machine.settle()
    assert (first.finished, second.finished) == (True, False)
    assert machine.call(cancel_io_file_ex, handle) == STATUS_SUCCESS
    machine.settle()
    assert second.finished
    assert machine.call(cancel_io_file_ex, handle) == STATUS_NOT_FOUND
    assert not keeper.kept


def test_a_synchronous_request_is_cancelled_from_another_thread(machine: Any):
    Keeper(machine)
    handle = machine.open()
    request = control(handle)
    call = machine.start(device_io_control_file, request)
    assert not call.done
    other = machine.new_thread()
    assert machine.call(cancel_io_file_ex, handle, thread=other) == STATUS_SUCCESS
    machine.settle()
    assert call.value == STATUS_CANCELLED
    assert not request.iosb_written


def test_an_alert_cancels_the_request_of_an_alertable_file(machine: Any):
    Keeper(machine)
    handle = machine.open()
    machine.file_of(handle).alertable = True
    call = machine.start(device_io_control_file, control(handle))
    machine.thread.alert()
    machine.settle()
    assert call.value == STATUS_CANCELLED


def test_an_alert_leaves_other_files_alone(machine: Any):
    keeper = Keeper(machine)
    call = machine.start(device_io_control_file, control(machine.open()))
    machine.thread.alert()
    machine.settle()
    assert not call.done
    finish(next(iter(keeper.kept)))
    machine.settle()
    assert call.value == STATUS_SUCCESS


# The end of a thread


def test_thread_exit_cancels_all_of_the_threads_requests(machine: Any):
    keeper = Keeper(machine)
    handle = machine.open(synchronous=False)
    other = machine.new_thread()
    requests = [control(handle) for _ in range(3)]
    for request in requests:
        machine.control(request)
    machine.control(control(handle), thread=other)
    machine.call(run_down_thread)
    assert all(request.finished for request in requests)
    assert len(keeper.cancelled) == 3
    assert not machine.thread.irps
    assert len(other.irps) == 1
    assert machine.control(control(handle), thread=other)[0] == STATUS_PENDING


def test_thread_exit_waits_for_a_driver_without_cancel_routine(machine: Any):
    keeper = Keeper(machine, stubborn=True)
    handle = machine.open(synchronous=False)
    request = control(handle)
    machine.control(request)
    call = machine.start(run_down_thread)
    assert not call.done
    finish(next(iter(keeper.kept)))
    machine.settle()
    assert call.done
    assert request.iosb_status == STATUS_SUCCESS
    assert machine.io.detached_irps == 0


def test_after_five_minutes_a_kept_request_is_detached_and_later_freed(machine: Any):
    keeper = Keeper(machine, stubborn=True)
    handle = machine.open(synchronous=False)
    done: list[Any] = []
    request = DeviceControlRequest(
        handle,
        ctl_code(0x8003, 0x800, METHOD_OUT_DIRECT, 0),
        b"x" * 1000,
        output_address=ARENA,
        output_length=100,
        on_finished=done.append,
    )
    machine.control(request)
    clock = machine.processor.clock
    before = clock.now_ns()
    machine.call(run_down_thread)
    assert clock.now_ns() - before == CANCEL_DEADLINE_NS
    assert machine.io.detached_irps == 1
    assert "detached" in machine.io.notes[0]
    assert done == [request]
    assert (request.finished, request.iosb_status) == (True, STATUS_CANCELLED)
    assert not machine.thread.irps
    machine.call(close_handle, handle, thread=machine.new_thread())
    assert machine.scripted.calls["CLOSE"] == 0
    assert machine.process.locked_pages == 1
    (irp,) = keeper.kept
    finish(irp)
    machine.settle()
    assert machine.process.locked_pages == 0
    assert machine.process.pool_charged == 0
    assert machine.scripted.calls["CLOSE"] == 1
    assert done == [request]


def test_a_synchronous_request_kept_for_five_minutes_lets_its_thread_go(machine: Any):
    keeper = Keeper(machine, stubborn=True)
    handle = machine.open()
    done: list[Any] = []
    request = control(handle, on_finished=done.append)
    call = machine.start(device_io_control_file, request)
    machine.thread.terminate()
    machine.processor.run_until(lambda: call.done)
    assert call.value == STATUS_CANCELLED
    assert (request.finished, request.iosb_written, done) == (True, False, [])
    assert machine.io.detached_irps == 1
    finish(next(iter(keeper.kept)))
    machine.settle()
    assert machine.process.pool_charged == 0
    assert machine.file_of(handle).references == 1
