"""The end of a process: every request, handle and file of it goes, and nobody else's."""

from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import (
    CANCEL_DEADLINE_NS,
    release_cancel_spin_lock,
    set_cancel_routine,
)
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import IRP_MJ_CLEANUP, IRP_MJ_CLOSE, IRP_MJ_CREATE
from kernel_proc.io_manager.run_down import run_down_process
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    create_event,
    create_file,
    device_io_control_file,
    duplicate_handle,
    wait_for_object,
)
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, BugCheck
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from shared.ioctl_codes import METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
)

ARENA = 0x7000_0000_0000


class Keeper:
    """Pends every request; ends it at cancel, at cleanup, or never."""

    def __init__(self, machine: Any, ends_at: str) -> None:
        self.machine = machine
        self.kept: dict[Irp, Any] = {}
        self.ends_at = ends_at
        machine.scripted.on_control = self.control
        machine.scripted.on[IRP_MJ_CLEANUP] = self.cleanup

    def control(self, device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        self.kept[irp] = get_current_irp_stack_location(irp).file_object
        if self.ends_at == "cancel":
            set_cancel_routine(irp, self.cancel)
        return STATUS_PENDING

    def cancel(self, device: Any, irp: Irp) -> None:
        release_cancel_spin_lock(irp.processor, irp.cancel_irql)
        self.end(irp)

    def cleanup(self, device: Any, irp: Irp) -> int:
        if self.ends_at == "cleanup":
            file = get_current_irp_stack_location(irp).file_object
            for pending in [i for i, owner in self.kept.items() if owner is file]:
                self.end(pending)
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        return STATUS_SUCCESS

    def end(self, irp: Irp) -> None:
        del self.kept[irp]
        irp.status = STATUS_CANCELLED
        complete_request(irp)


def control(handle: int, method: int = 0) -> DeviceControlRequest:
    return DeviceControlRequest(
        handle,
        ctl_code(0x8003, 0x800, method, 0),
        b"x" * 100,
        output_address=ARENA if method else 0,
        output_length=100,
        output_inline=not method,
    )


def die(machine: Any, process: Any = None) -> Any:
    """Start the rundown of a process; return its thread."""
    return create_system_thread(
        machine.processor, run_down_process, machine.io, process or machine.process
    )


def assert_gone(machine: Any, process: Any) -> None:
    assert not process.threads
    assert not process.handle_table.entries
    assert process.handle_table.closing == 0
    assert process.pool_charged == 0
    assert process.locked_pages == 0
    assert not machine.io.irp_watches
    assert not machine.io.close_watches


@pytest.mark.parametrize("ends_at", ["cancel", "cleanup"])
def test_all_requests_end_and_all_files_close(machine: Any, ends_at: str):
    keeper = Keeper(machine, ends_at)
    thread, other = machine.thread, machine.new_thread()
    overlapped = machine.open(synchronous=False)
    machine.call(duplicate_handle, overlapped)
    synchronous = machine.open()
    machine.call(create_event, True, False)
    machine.control(control(overlapped))
    machine.control(control(overlapped, METHOD_OUT_DIRECT))
    machine.start(device_io_control_file, control(synchronous), thread=other)
    assert len(keeper.kept) == 3
    process = machine.process
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert_gone(machine, process)
    assert not keeper.kept
    assert thread.ended
    assert other.ended
    assert machine.scripted.calls["CREATE"] == 2
    assert machine.scripted.calls["CLEANUP"] == 2
    assert machine.scripted.calls["CLOSE"] == 2
    assert machine.processor.clock.now_ns() == 0


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_driver_that_never_ends_is_waited_for_five_minutes(machine: Any, synchronous: bool):
    keeper = Keeper(machine, "never")
    handle = machine.open(synchronous=synchronous)
    machine.start(device_io_control_file, control(handle))
    process = machine.process
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert machine.processor.clock.now_ns() == CANCEL_DEADLINE_NS
    assert machine.io.detached_irps == 1
    assert not process.threads
    assert machine.scripted.calls["CLEANUP"] == 1
    assert machine.scripted.calls["CLOSE"] == 0
    (irp,) = keeper.kept
    keeper.end(irp)
    machine.settle()
    assert_gone(machine, process)
    assert machine.scripted.calls["CLOSE"] == 1


def test_requests_are_waited_for_after_their_handles_are_closed(machine: Any):
    keeper = Keeper(machine, "never")
    handle = machine.open(synchronous=False)
    machine.control(control(handle))
    death = die(machine)
    machine.settle()
    assert not death.ended
    assert machine.scripted.log == ["CREATE", "DEVICE_CONTROL", "CLEANUP"]
    keeper.end(next(iter(keeper.kept)))
    machine.processor.run_until(lambda: death.ended)
    assert machine.scripted.log[-1] == "CLOSE"
    assert machine.io.detached_irps == 0


def test_requests_are_cancelled_before_their_handles_are_closed(machine: Any):
    keeper = Keeper(machine, "cancel")
    end = keeper.end
    keeper.end = lambda irp: (machine.scripted.log.append("CANCEL"), end(irp))  # type: ignore[method-assign]  # a note of the order
    machine.control(control(machine.open(synchronous=False)))
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert machine.scripted.log == ["CREATE", "DEVICE_CONTROL", "CANCEL", "CLEANUP", "CLOSE"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_file_opened_while_its_process_dies_is_closed(machine: Any, cancelled: bool):
    kept: list[Irp] = []

    def create(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.on[IRP_MJ_CREATE] = create
    machine.start(create_file, "scripted", 3, True)
    death = die(machine)
    machine.settle()
    assert not death.ended
    kept[0].status = STATUS_CANCELLED if cancelled else STATUS_SUCCESS
    complete_request(kept[0])
    machine.processor.run_until(lambda: death.ended)
    assert machine.scripted.log == (["CREATE"] if cancelled else ["CREATE", "CLEANUP", "CLOSE"])
    assert machine.scripted.device.open_count == 0
    assert_gone(machine, machine.process)


def test_a_request_whose_thread_ends_while_its_buffers_are_prepared_is_not_sent(machine: Any):
    gate = Event(machine.processor, notification=True)
    space = machine.process.address_space
    read = space.read

    def slow_read(address: int, length: int) -> bytes:
        gate.wait()
        return read(address, length)

    space.read = slow_read
    space.arena_view = lambda *_: None
    handle = machine.open(synchronous=False)
    request = DeviceControlRequest(handle, ctl_code(0x8003, 0x800, 0, 0), None, ARENA, 4)
    call = machine.start(device_io_control_file, request)
    death = die(machine)
    machine.settle()
    assert not death.ended
    gate.set()
    machine.processor.run_until(lambda: death.ended)
    assert call.value == STATUS_THREAD_IS_TERMINATING
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0
    assert_gone(machine, machine.process)


def test_a_completion_whose_thread_has_ended_frees_the_irp(machine: Any):
    keeper = Keeper(machine, "never")
    handle = machine.open(synchronous=False)
    machine.control(control(handle))
    (irp,) = keeper.kept
    machine.thread.end()
    keeper.end(irp)
    assert machine.process.pool_charged == 0
    assert machine.file_of(handle).references == 1


def test_a_completion_queued_to_a_thread_that_ends_frees_the_irp(machine: Any):
    keeper = Keeper(machine, "never")
    handle = machine.open(synchronous=False)
    request = control(handle)
    machine.control(request)
    (irp,) = keeper.kept
    keeper.end(irp)  # its APC is queued; the thread does not come to it
    machine.thread.end()
    assert not request.finished
    assert machine.process.pool_charged == 0
    assert machine.file_of(handle).references == 1


def test_another_process_is_not_touched(machine: Any):
    keeper = Keeper(machine, "cancel")
    neighbour, _ = machine.new_process("neighbour")
    thread = machine.new_thread(neighbour)
    theirs = machine.open(thread=thread, synchronous=False)
    request = control(theirs)
    machine.control(request, thread=thread)
    machine.control(control(machine.open(synchronous=False)))
    charged = neighbour.pool_charged
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert not request.finished
    assert len(keeper.kept) == 1
    assert neighbour.pool_charged == charged
    assert list(neighbour.threads) == [thread]
    assert machine.control(control(theirs), thread=thread)[0] == STATUS_PENDING


def test_threads_waiting_in_the_kernel_are_freed(machine: Any):
    _, event = machine.call(create_event, True, False)
    call = machine.start(wait_for_object, event, None)
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert call.done
    assert machine.thread.ended


def test_a_thread_in_a_driver_is_waited_for(machine: Any):
    gate = Event(machine.processor, notification=True)

    def control_that_waits(device: Any, irp: Irp) -> int:
        gate.wait()
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        return STATUS_SUCCESS

    machine.scripted.on_control = control_that_waits
    handle = machine.open()
    machine.start(device_io_control_file, control(handle))
    death = die(machine)
    machine.settle()
    assert not death.ended
    gate.set()
    machine.processor.run_until(lambda: death.ended)
    assert_gone(machine, machine.process)


def test_services_queued_behind_the_end_start_nothing(machine: Any):
    Keeper(machine, "cancel")
    handle = machine.open(synchronous=False)
    thread = machine.thread
    results: list[Any] = []
    _, event = machine.call(create_event, True, False)
    machine.start(wait_for_object, event, None)
    for service, arguments in (
        (device_io_control_file, (control(handle),)),
        (create_file, ("scripted", 3, True)),
    ):
        thread.enter_kernel(
            lambda service=service, arguments=arguments: results.append(
                service(machine.io, thread, *arguments)
            )
        )
    death = die(machine)
    machine.processor.run_until(lambda: death.ended)
    assert len(results) == 2
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0
    assert machine.scripted.calls["CREATE"] == 1
    assert_gone(machine, machine.process)


def test_close_that_takes_its_time_is_waited_for(machine: Any):
    kept: list[Irp] = []

    def close(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.on[IRP_MJ_CLOSE] = close
    keeper = Keeper(machine, "never")
    machine.control(control(machine.open(synchronous=False)))
    death = die(machine)
    machine.settle()
    keeper.end(next(iter(keeper.kept)))  # its APC drops the last reference
    machine.settle()
    assert len(kept) == 1
    assert not death.ended
    kept[0].status = STATUS_SUCCESS
    complete_request(kept[0])
    machine.processor.run_until(lambda: death.ended)


def test_a_process_without_threads_or_handles(machine: Any):
    process, _ = machine.new_process("empty")
    process.handle_table = None
    death = die(machine, process)
    machine.processor.run_until(lambda: death.ended)
    assert process.exiting


def test_rundown_needs_passive_level(machine: Any):
    def at_apc_level() -> None:
        machine.processor.raise_irql(APC_LEVEL)
        run_down_process(machine.io, machine.process)

    with pytest.raises(BugCheck) as caught:
        machine.in_kernel(at_apc_level)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL
