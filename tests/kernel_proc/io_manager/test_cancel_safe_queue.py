"""The cancel-safe queue: order, the race with cancelling, and what a driver may override."""

from typing import Any

from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue, CsqContext
from kernel_proc.io_manager.cancellation import cancel_irp, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    get_next_irp_stack_location,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_DEVICE_CONTROL, SL_PENDING_RETURNED
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)


class Queueing:
    """The scripted device puts all it gets into one queue."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.queue = CancelSafeQueue(machine.processor)
        self.contexts: dict[Irp, CsqContext] = {}
        self.with_context = False
        self.cancel_first = False
        self.ended: list[tuple[Irp, int]] = []
        machine.scripted.on_control = self.control

    def control(self, device: Any, irp: Irp) -> int:
        context = None
        if self.with_context:
            context = self.contexts[irp] = CsqContext()
        if self.cancel_first:
            cancel_irp(irp)
        self.queue.insert(irp, context)
        return STATUS_PENDING

    def send(self) -> Irp:
        irp = allocate_irp(self.machine.processor, 1)
        get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
        set_completion_routine(irp, self.completed)
        assert call_driver(self.machine.scripted.device, irp) == STATUS_PENDING
        return irp

    def completed(self, device: Any, irp: Irp, context: Any) -> int:
        self.ended.append((irp, irp.status))
        assert not self.queue.lock.held
        return STATUS_MORE_PROCESSING_REQUIRED


def test_first_in_first_out_and_marked_pending(verified: Any):
    driver = Queueing(verified)
    first, second = driver.send(), driver.send()
    assert first.stack[1].control & SL_PENDING_RETURNED
    assert driver.queue.remove_next() is first
    assert first.cancel_routine is None
    assert driver.queue.remove_next() is second
    assert driver.queue.remove_next() is None
    assert verified.processor.irql == PASSIVE_LEVEL


def test_a_cancelled_irp_leaves_the_queue_at_once(verified: Any):
    driver = Queueing(verified)
    first, second = driver.send(), driver.send()
    assert cancel_irp(first)
    assert driver.ended == [(first, STATUS_CANCELLED)]
    assert driver.queue.remove_next() is second


def test_an_irp_cancelled_before_it_is_inserted_is_never_left_queued(verified: Any):
    driver = Queueing(verified)
    driver.cancel_first = True
    irp = driver.send()
    assert driver.ended == [(irp, STATUS_CANCELLED)]
    assert driver.queue.remove_next() is None


def test_removal_skips_what_is_being_cancelled(machine: Any):
    driver = Queueing(machine)
    first, second = driver.send(), driver.send()
    taken = set_cancel_routine(first, None)  # as the canceller does before it calls it
    assert taken is not None
    assert driver.queue.remove_next() is second
    assert driver.queue.remove_next() is None
    first.cancel = True
    first.cancel_irql = machine.io.cancel_lock.acquire()
    taken(machine.scripted.device, first)
    assert driver.ended == [(first, STATUS_CANCELLED)]


def test_one_irp_by_its_context(machine: Any):
    driver = Queueing(machine)
    driver.with_context = True
    first, second = driver.send(), driver.send()
    contexts = driver.contexts
    assert driver.queue.remove(contexts[second]) is second
    assert driver.queue.remove(contexts[second]) is None
    cancel_irp(first)
    assert contexts[first].irp is None
    assert driver.queue.remove(contexts[first]) is None


def test_no_context_of_an_irp_under_cancellation(machine: Any):
    driver = Queueing(machine)
    driver.with_context = True
    irp = driver.send()
    set_cancel_routine(irp, None)
    assert driver.queue.remove(driver.contexts[irp]) is None


def test_a_peek_context_picks_by_file(machine: Any):
    driver = Queueing(machine)
    first, second = driver.send(), driver.send()
    second.file_object = object()
    assert driver.queue.remove_next(object()) is None
    assert driver.queue.remove_next(second.file_object) is second
    assert driver.queue.remove_next() is first


def test_a_driver_may_order_its_queue(machine: Any):
    class LastFirst(CancelSafeQueue):
        def peek_next_irp(self, irp: Irp | None, peek_context: Any) -> Irp | None:
            order = list(reversed(self.irps))
            return next(iter(order if irp is None else order[order.index(irp) + 1 :]), None)

        def complete_canceled_irp(self, irp: Irp) -> None:
            irp.status = STATUS_SUCCESS
            complete_request(irp)

    driver = Queueing(machine)
    driver.queue = LastFirst(machine.processor)
    first, second, third = driver.send(), driver.send(), driver.send()
    assert driver.queue.remove_next() is third
    set_cancel_routine(second, None)
    assert driver.queue.remove_next() is first
    fourth = driver.send()
    cancel_irp(fourth)
    assert driver.ended == [(fourth, STATUS_SUCCESS)]
