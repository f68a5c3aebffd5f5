"""S4: notification requests pended until a timer's DPC, after the public event sample.

A record holds one IRP and its timer. Who clears the cancel routine first, DPC, cleanup or
canceller, completes the IRP; the others leave it alone.
"""

from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import cancel_irp, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import IRP_MJ_CLEANUP
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    close_handle,
    create_event,
    query_event,
    set_event,
    wait_for_object,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.timer import Timer
from shared.ioctl_codes import ctl_code
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_FILE_CLOSED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

REGISTER = ctl_code(0x8003, 0x900, 0, 0)
REGISTER_EVENT = ctl_code(0x8003, 0x901, 0, 0)
DUE_NS = 1_000_000


class Record:
    """One registration."""

    def __init__(self, driver: "NotificationDriver", file: Any) -> None:
        self.file = file
        self.irp: Irp | None = None
        self.event: Any = None
        self.timer = Timer(driver.processor)
        self.dpc = Dpc(driver.processor, driver.fire, self)


class NotificationDriver:
    """The scripted device as notification driver; `queue` holds the pending records."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.processor = machine.processor
        self.lock = SpinLock(self.processor, "notification queue")
        self.queue: dict[Record, None] = {}
        self.closed: set[Any] = set()
        self.before_queueing: Any = lambda _: None
        self.before_firing: Any = lambda: None
        machine.scripted.on_control = self.control
        machine.scripted.on[IRP_MJ_CLEANUP] = self.cleanup

    def control(self, device: Any, irp: Irp) -> int:
        location = get_current_irp_stack_location(irp)
        file = location.file_object
        if file in self.closed:
            return self.complete(irp, STATUS_FILE_CLOSED)
        if location.io_control_code == REGISTER_EVENT:
            return self.register_event(irp, file)
        return self.register(irp, file)

    def register(self, irp: Irp, file: Any) -> int:
        record = Record(self, file)
        irql = self.lock.acquire()
        self.before_queueing(irp)
        set_cancel_routine(irp, self.cancel)
        if irp.cancel and set_cancel_routine(irp, None) is not None:
            self.lock.release(irql)
            return self.complete(irp, STATUS_CANCELLED)
        mark_irp_pending(irp)
        record.irp = irp
        irp.driver_context = record
        self.queue[record] = None
        record.timer.set(DUE_NS, dpc=record.dpc)
        self.lock.release(irql)
        return STATUS_PENDING

    def register_event(self, irp: Irp, file: Any) -> int:
        handle = int.from_bytes(irp.system_buffer[:4], "little")
        record = Record(self, file)
        assert irp.thread is not None
        record.event = irp.thread.process.handle_table.entries[handle][0]
        irql = self.lock.acquire()
        self.queue[record] = None
        record.timer.set(DUE_NS, dpc=record.dpc)
        self.lock.release(irql)
        return self.complete(irp, STATUS_SUCCESS)

    def fire(self, dpc: Dpc, record: Record, *_: Any) -> None:
        self.before_firing()
        self.lock.acquire_at_dpc_level()
        self.queue.pop(record, None)
        irp = record.irp
        mine = irp is not None and set_cancel_routine(irp, None) is not None
        self.lock.release_from_dpc_level()
        if mine and irp is not None:
            self.complete(irp, STATUS_SUCCESS)
        elif record.event is not None:
            record.event.set()
            record.event = None

    def cancel(self, device: Any, irp: Irp) -> None:
        record: Record = irp.driver_context
        self.machine.io.cancel_lock.release(irp.cancel_irql)
        irql = self.lock.acquire()
        record.timer.cancel()
        self.queue.pop(record, None)
        record.irp = None
        self.lock.release(irql)
        self.complete(irp, STATUS_CANCELLED)

    def cleanup(self, device: Any, irp: Irp) -> int:
        file = get_current_irp_stack_location(irp).file_object
        self.closed.add(file)
        mine: list[Irp] = []
        irql = self.lock.acquire()
        for record in [r for r in self.queue if r.file is file]:
            if not record.timer.cancel():
                continue  # its DPC is on its way and will end it
            del self.queue[record]
            if record.irp is not None and set_cancel_routine(record.irp, None) is not None:
                mine.append(record.irp)
        self.lock.release(irql)
        for pending in mine:
            self.complete(pending, STATUS_CANCELLED)
        return self.complete(irp, STATUS_SUCCESS)

    def complete(self, irp: Irp, status: int) -> int:
        assert not self.lock.held
        irp.status = status
        irp.information = 0
        complete_request(irp)
        return status


@pytest.fixture(params=[False, True])
def driver(new_machine: Any, request: Any) -> NotificationDriver:
    return NotificationDriver(new_machine(verifier=request.param))


def register(handle: int) -> DeviceControlRequest:
    return DeviceControlRequest(handle, REGISTER)


def test_s4_an_irp_cancelled_before_registration_is_never_queued(driver: NotificationDriver):
    driver.before_queueing = lambda irp: setattr(irp, "cancel", True)
    machine = driver.machine
    status, request = machine.control(register(machine.open(synchronous=False)))
    assert status == STATUS_CANCELLED
    assert request.finished
    assert not driver.queue


def test_s4_registration_pends_and_the_timer_ends_it(driver: NotificationDriver):
    machine = driver.machine
    handle = machine.open(synchronous=False)
    status, request = machine.control(register(handle))
    assert (status, request.finished, len(driver.queue)) == (STATUS_PENDING, False, 1)
    machine.processor.run_until(lambda: request.finished)
    assert machine.processor.clock.now_ns() == DUE_NS
    assert (request.iosb_status, request.information) == (STATUS_SUCCESS, 0)
    assert not driver.queue


def test_s4b_what_is_being_cancelled_is_left_to_the_cancel_routine(driver: NotificationDriver):
    machine = driver.machine
    _, request = machine.control(register(machine.open(synchronous=False)))
    (irp,) = machine.thread.irps
    routine = set_cancel_routine(irp, None)  # the canceller has taken it, and not called it yet
    record = next(iter(driver.queue))
    machine.processor.run_until(lambda: record.timer.signal_state == 1)
    machine.settle()
    assert not request.finished
    irp.cancel = True
    irp.cancel_irql = machine.io.cancel_lock.acquire()
    assert routine is not None
    routine(machine.scripted.device, irp)
    machine.settle()
    assert request.iosb_status == STATUS_CANCELLED


def test_s4b_cancel_before_the_timer(driver: NotificationDriver):
    machine = driver.machine
    handle = machine.open(synchronous=False)
    _, request = machine.control(register(handle))
    (record,) = driver.queue
    assert machine.call(cancel_io_file, handle) == STATUS_SUCCESS
    assert request.iosb_status == STATUS_CANCELLED
    assert not record.timer.is_set
    assert not driver.queue


def test_s4b_the_dpc_wins_against_a_later_cancel(driver: NotificationDriver):
    machine = driver.machine
    _, request = machine.control(register(machine.open(synchronous=False)))
    (irp,) = machine.thread.irps
    results: list[bool] = []
    complete = driver.complete

    def cancel_then_complete(irp: Irp, status: int) -> int:
        results.append(cancel_irp(irp))
        return complete(irp, status)

    driver.complete = cancel_then_complete  # type: ignore[method-assign]  # a step in between
    machine.processor.run_until(lambda: request.finished)
    assert results == [False]
    assert irp.cancel
    assert request.iosb_status == STATUS_SUCCESS


def test_s4c_a_user_event_is_set_and_the_request_ended_at_once(driver: NotificationDriver):
    machine = driver.machine
    handle = machine.open(synchronous=False)
    _, event = machine.call(create_event, True, False)
    request = DeviceControlRequest(handle, REGISTER_EVENT, event.to_bytes(4, "little"))
    assert machine.control(request)[0] == STATUS_SUCCESS
    assert request.finished
    assert machine.call(query_event, event) == (STATUS_SUCCESS, 0)
    assert machine.call(wait_for_object, event, 10 * DUE_NS) == STATUS_SUCCESS
    assert machine.processor.clock.now_ns() == DUE_NS
    assert machine.call(set_event, event) == STATUS_SUCCESS


def test_s4d_cleanup_ends_what_is_queued_for_that_file(driver: NotificationDriver):
    machine = driver.machine
    handle, other = machine.open(synchronous=False), machine.open(synchronous=False)
    file = machine.file_of(handle)
    requests = [register(handle), register(handle)]
    for request in requests:
        machine.control(request)
    _, foreign = machine.control(register(other))
    machine.call(close_handle, handle)
    machine.settle()
    assert [r.iosb_status for r in requests] == [STATUS_CANCELLED] * 2
    assert not foreign.finished
    assert machine.scripted.calls["CLOSE"] == 1
    assert file in driver.closed


def test_s4d_a_record_whose_timer_has_fired_is_left_to_its_dpc(driver: NotificationDriver):
    machine = driver.machine
    handle = machine.open(synchronous=False)
    _, request = machine.control(register(handle))
    (record,) = driver.queue
    assert record.timer.cancel()  # fired: no longer set, its DPC not run yet
    machine.call(close_handle, handle)
    machine.settle()
    assert not request.finished
    record.dpc.insert()
    machine.settle()
    assert request.iosb_status == STATUS_SUCCESS
    assert machine.scripted.calls["CLOSE"] == 1


def test_s4d_later_requests_on_the_file_are_refused(driver: NotificationDriver):
    machine = driver.machine
    handle = machine.open(synchronous=False)
    driver.closed.add(machine.file_of(handle))
    assert machine.control(register(handle))[0] == STATUS_FILE_CLOSED
