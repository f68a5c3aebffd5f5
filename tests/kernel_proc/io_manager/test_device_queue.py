"""Requests in a device queue: cancelled ones, and a driver that serves one at a time."""

from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import (
    acquire_cancel_spin_lock,
    cancel_irp,
    release_cancel_spin_lock,
    set_cancel_routine,
)
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, allocate_irp, mark_irp_pending
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    device_io_control_file,
)
from kernel_proc.scheduling.device_queue import DeviceQueue, DeviceQueueEntry
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_CANCELLED, STATUS_PENDING, STATUS_SUCCESS


@pytest.fixture(params=[False, True], ids=["free", "verifier"])
def machine(request: pytest.FixtureRequest, new_machine: Any) -> Any:
    return new_machine(verifier=request.param)


def test_w21e_the_queue_takes_no_account_of_cancelling(machine: Any):
    processor = machine.processor
    queue = DeviceQueue(processor)
    cancelled = allocate_irp(processor, 1)
    cancel_irp(cancelled)
    later = allocate_irp(processor, 1)
    ran: list[Irp] = []

    def routine(device: Any, irp: Irp) -> None:
        ran.append(irp)
        release_cancel_spin_lock(processor, irp.cancel_irql)

    set_cancel_routine(later, routine)
    processor.raise_irql(DISPATCH_LEVEL)
    entries = [DeviceQueueEntry(irp) for irp in (None, cancelled, later)]
    assert [queue.insert(entry) for entry in entries] == [False, True, True]
    assert cancel_irp(later) is True
    assert ran == [later]
    assert [entry.inserted for entry in entries] == [False, True, True]
    assert (queue.remove(), queue.remove()) == (entries[1], entries[2])
    assert queue.remove() is None
    assert (cancelled.cancel, later.cancel) == (True, True)


class OneAtATime:
    """A driver with a start routine: the device serves a request, the others wait by priority."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.processor = machine.processor
        self.queue = DeviceQueue(self.processor)
        self.serving: Irp | None = None
        self.started: list[int] = []
        self.done = Dpc(self.processor, self._served)
        machine.scripted.on_control = self.control

    def control(self, device: Any, irp: Irp) -> int:
        """Queue it under the priority in its first byte, or start it (WDK: IoStartPacket)."""
        mark_irp_pending(irp)
        entry = irp.driver_context = DeviceQueueEntry(irp)
        priority = irp.system_buffer[0]
        irql = acquire_cancel_spin_lock(self.processor)
        set_cancel_routine(irp, self.cancel)
        if self.queue.insert_by_key(entry, priority):
            release_cancel_spin_lock(self.processor, irql)
        else:
            set_cancel_routine(irp, None)
            release_cancel_spin_lock(self.processor, irql)
            old = self.processor.raise_irql(DISPATCH_LEVEL)
            self.start(irp)
            self.processor.lower_irql(old)
        return STATUS_PENDING

    def start(self, irp: Irp) -> None:
        assert self.serving is None
        assert self.processor.irql == DISPATCH_LEVEL
        self.serving = irp
        self.started.append(irp.system_buffer[0])

    def finish_one(self) -> None:
        """The device has finished."""
        self.processor.run_thread(self.done.insert)
        self.machine.settle()

    def _served(self, *_: Any) -> None:
        # WDK: IoStartNextPacket; the cancel lock decides between starting and cancelling.
        irp, self.serving = self.serving, None
        assert irp is not None
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        irql = acquire_cancel_spin_lock(self.processor)
        entry = self.queue.remove()
        if entry is not None:
            set_cancel_routine(entry.owner, None)
        release_cancel_spin_lock(self.processor, irql)
        if entry is not None:
            self.start(entry.owner)

    def cancel(self, device: Any, irp: Irp) -> None:
        was_queued = self.queue.remove_entry(irp.driver_context)
        release_cancel_spin_lock(self.processor, irp.cancel_irql)
        assert was_queued
        irp.status = STATUS_CANCELLED
        complete_request(irp)


def issue(machine: Any, handle: int, priority: int, thread: Any = None) -> DeviceControlRequest:
    code = ctl_code(0x8003, 0x800, METHOD_BUFFERED, 0)
    request = DeviceControlRequest(handle, code, bytes([priority]))
    call = machine.start(device_io_control_file, request, thread=thread)
    assert (call.done, call.value) == (True, STATUS_PENDING)
    return request


def test_requests_are_served_one_at_a_time_by_priority(machine: Any):
    driver = OneAtATime(machine)
    handle = machine.open(synchronous=False)
    requests = [issue(machine, handle, priority) for priority in (5, 9, 1, 5, 1)]
    assert driver.started == [5]
    for number in range(len(requests)):
        assert [request.finished for request in requests].count(True) == number
        driver.finish_one()
    assert driver.started == [5, 1, 1, 5, 9]
    assert {request.iosb_status for request in requests} == {STATUS_SUCCESS}
    assert (driver.queue.busy, driver.serving) == (False, None)
    late = issue(machine, handle, 3)
    driver.finish_one()
    assert late.finished


def test_a_cancelled_request_leaves_the_queue_and_the_others_keep_their_order(machine: Any):
    driver = OneAtATime(machine)
    handle = machine.open(synchronous=False)
    other = machine.new_thread()
    served = issue(machine, handle, 0, other)
    kept = [issue(machine, handle, 2, other), issue(machine, handle, 8, other)]
    given_up = [issue(machine, handle, 1), issue(machine, handle, 5), issue(machine, handle, 9)]
    machine.call(cancel_io_file, handle)
    machine.settle()
    assert [request.iosb_status for request in given_up] == [STATUS_CANCELLED] * 3
    assert not any(request.finished for request in (served, *kept))
    for _ in range(3):
        driver.finish_one()
    assert driver.started == [0, 2, 8]
    assert [request.iosb_status for request in (served, *kept)] == [STATUS_SUCCESS] * 3
    assert not driver.queue.busy


def test_a_served_request_is_past_cancelling(machine: Any):
    driver = OneAtATime(machine)
    handle = machine.open(synchronous=False)
    request = issue(machine, handle, 1)
    call = machine.start(cancel_io_file, handle)
    assert not request.finished
    driver.finish_one()
    assert call.done
    assert request.iosb_status == STATUS_SUCCESS
