"""The walk of IoCompleteRequest, and the bug checks of both modes."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import (
    attach_device_to_device_stack,
    attached_device,
    call_driver,
    detach_device,
)
from kernel_proc.io_manager.driver_object import DriverObject, create_device, delete_device
from kernel_proc.io_manager.io_build import make_associated_irp
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    copy_current_irp_stack_location_to_next,
    free_irp,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    mark_irp_pending,
    set_completion_routine,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_DEVICE_CONTROL, SL_PENDING_RETURNED
from kernel_proc.scheduling.bugcheck import (
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    MULTIPLE_IRP_COMPLETE_REQUESTS,
    NO_MORE_IRP_STACK_LOCATIONS,
    BugCheck,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import HIGH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_OBJECT_NAME_COLLISION,
    STATUS_OBJECT_NAME_INVALID,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_UNSUCCESSFUL,
)


class Filter:
    """A driver above another: forwards everything with a completion routine."""

    def __init__(self, machine: Any, name: str, below: Any) -> None:
        self.driver = DriverObject(machine.processor, name)
        self.device = create_device(self.driver, None, 0x8004)
        self.below = attach_device_to_device_stack(self.device, below)
        self.driver.major_function = [self.forward] * len(self.driver.major_function)
        self.device.major_function = self.driver.major_function
        self.seen: list[tuple[Any, int, int, Any]] = []
        self.answer = STATUS_SUCCESS
        self.propagate = True
        self.hook: Any = None

    def forward(self, device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        set_completion_routine(irp, self.completed, self, True, True, True)
        return call_driver(self.below, irp)

    def completed(self, device: Any, irp: Irp, context: Any) -> int:
        lower = irp.stack[irp.current_location - 1]
        self.seen.append((device, irp.status, irp.pending_returned, lower.io_control_code))
        if irp.pending_returned and self.propagate:
            mark_irp_pending(irp)
        if self.hook is not None:
            self.hook(irp)
        return self.answer


def send(machine: Any, device: Any, stack_size: int | None = None) -> tuple[int, list[Any], Irp]:
    """Send a free IRP and return the dispatch status and what the creator's routine saw."""
    seen: list[Any] = []

    def routine(device: Any, irp: Irp, context: Any) -> int:
        seen.append((device, irp.status, irp.pending_returned))
        return STATUS_MORE_PROCESSING_REQUIRED

    irp = allocate_irp(machine.processor, stack_size or device.stack_size)
    location = get_next_irp_stack_location(irp)
    location.major_function = IRP_MJ_DEVICE_CONTROL
    location.io_control_code = 0x1234
    set_completion_routine(irp, routine, None, True, True, True)
    return call_driver(device, irp), seen, irp


def pend(machine: Any) -> list[Irp]:
    """Make the lowest driver keep what it gets."""
    kept: list[Irp] = []

    def control(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.on_control = control
    return kept


def finish(irp: Irp, status: int = STATUS_SUCCESS) -> None:
    irp.status = status
    complete_request(irp)


def test_routines_run_from_the_lowest_up_and_learn_status_and_pending_alone(machine: Any):
    low = Filter(machine, "low", machine.scripted.device)
    high = Filter(machine, "high", machine.scripted.device)
    assert attached_device(machine.scripted.device) is high.device
    assert high.device.stack_size == 3
    kept = pend(machine)
    status, seen, _ = send(machine, high.device)
    assert status == STATUS_PENDING
    assert not low.seen
    finish(kept[0])
    assert low.seen == [(low.device, STATUS_SUCCESS, SL_PENDING_RETURNED, 0)]
    assert high.seen == [(high.device, STATUS_SUCCESS, SL_PENDING_RETURNED, 0)]
    assert seen == [(None, STATUS_SUCCESS, SL_PENDING_RETURNED)]


def test_without_a_routine_the_io_manager_propagates_pending(machine: Any):
    middle = Filter(machine, "middle", machine.scripted.device)
    top = Filter(machine, "top", machine.scripted.device)

    def forward_without_routine(device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        return call_driver(middle.below, irp)

    middle.driver.major_function[IRP_MJ_DEVICE_CONTROL] = forward_without_routine
    kept = pend(machine)
    _, seen, _ = send(machine, top.device)
    finish(kept[0])
    assert top.seen[0][2] == SL_PENDING_RETURNED
    assert seen[0][2] == SL_PENDING_RETURNED


def test_pending_not_marked_by_a_routine_is_lost_above(machine: Any):
    lazy = Filter(machine, "lazy", machine.scripted.device)
    lazy.propagate = False
    kept = pend(machine)
    _, seen, _ = send(machine, lazy.device)
    finish(kept[0])
    assert seen == [(None, STATUS_SUCCESS, 0)]


def test_more_processing_stops_the_walk_and_a_second_completion_resumes_above(machine: Any):
    middle = Filter(machine, "middle", machine.scripted.device)
    middle.answer = STATUS_MORE_PROCESSING_REQUIRED
    top = Filter(machine, "top", machine.scripted.device)
    kept = pend(machine)
    _, seen, irp = send(machine, top.device)
    finish(kept[0])
    assert len(middle.seen) == 1
    assert not top.seen
    assert irp.current_location == 2
    finish(irp, STATUS_UNSUCCESSFUL)
    assert top.seen[0][1] == STATUS_UNSUCCESSFUL
    assert seen[0][1] == STATUS_UNSUCCESSFUL


def test_no_other_value_of_a_routine_matters(machine: Any):
    middle = Filter(machine, "middle", machine.scripted.device)
    middle.answer = STATUS_UNSUCCESSFUL
    _, seen, _ = send(machine, middle.device)
    assert seen == [(None, STATUS_SUCCESS, 0)]


@pytest.mark.parametrize(
    ("flags", "status", "cancelled", "runs"),
    [
        ((True, False, False), STATUS_SUCCESS, False, True),
        ((True, False, False), STATUS_UNSUCCESSFUL, False, False),
        ((True, False, False), 0x4000_0000, False, True),
        ((True, False, False), 0x8000_0005, False, False),
        ((False, True, False), 0x8000_0005, False, True),
        ((False, True, False), STATUS_UNSUCCESSFUL, False, True),
        ((False, True, False), STATUS_SUCCESS, False, False),
        ((False, False, True), STATUS_SUCCESS, True, True),
        ((False, False, True), STATUS_SUCCESS, False, False),
        ((True, True, True), STATUS_UNSUCCESSFUL, True, True),
        ((False, False, False), STATUS_SUCCESS, True, False),
    ],
)
def test_when_a_routine_is_invoked(
    machine: Any, flags: tuple[bool, bool, bool], status: int, cancelled: bool, runs: bool
):
    below: list[int] = []

    def forward(device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        set_completion_routine(irp, lambda *_: below.append(1) or STATUS_SUCCESS, None, *flags)
        return call_driver(machine.scripted.device, irp)

    def control(device: Any, irp: Irp) -> int:
        irp.cancel = cancelled
        irp.status = status
        complete_request(irp)
        return status

    middle = Filter(machine, "middle", machine.scripted.device)
    middle.driver.major_function[IRP_MJ_DEVICE_CONTROL] = forward
    machine.scripted.on_control = control
    send(machine, middle.device)
    assert bool(below) == runs


def test_skipping_lends_the_own_location(machine: Any):
    def forward(device: Any, irp: Irp) -> int:
        skip_current_irp_stack_location(irp)
        return call_driver(machine.scripted.device, irp)

    codes: list[int] = []

    def control(device: Any, irp: Irp) -> int:
        location = get_current_irp_stack_location(irp)
        codes.append(location.io_control_code)
        assert location.device_object is machine.scripted.device
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        return STATUS_SUCCESS

    skipping = Filter(machine, "skipping", machine.scripted.device)
    skipping.driver.major_function[IRP_MJ_DEVICE_CONTROL] = forward
    machine.scripted.on_control = control
    status, seen, _ = send(machine, skipping.device)
    assert status == STATUS_SUCCESS
    assert codes == [0x1234]
    assert len(seen) == 1


def test_a_driver_that_forwards_and_waits(machine: Any):
    kept = pend(machine)
    waiting = Filter(machine, "waiting", machine.scripted.device)
    event = Event(machine.processor, notification=True)

    def forward(device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)

        def routine(device: Any, irp: Irp, context: Any) -> int:
            event.set()
            return STATUS_MORE_PROCESSING_REQUIRED

        set_completion_routine(irp, routine, None, True, True, True)
        if call_driver(machine.scripted.device, irp) == STATUS_PENDING:
            machine.processor.schedule_hardware(dpc.insert)
            event.wait()
        status = irp.status
        complete_request(irp)
        return status

    waiting.driver.major_function[IRP_MJ_DEVICE_CONTROL] = forward
    dpc = Dpc(machine.processor, lambda *_: finish(kept[0]))
    status, seen, _ = machine.in_kernel(send, machine, waiting.device)
    assert status == STATUS_SUCCESS
    assert seen == [(None, STATUS_SUCCESS, 0)]


def test_a_major_function_without_routine_is_an_invalid_device_request(machine: Any):
    driver = DriverObject(machine.processor, "bare")
    status, seen, _ = send(machine, create_device(driver, "bare", 1))
    assert status == STATUS_INVALID_DEVICE_REQUEST
    assert seen == [(None, STATUS_INVALID_DEVICE_REQUEST, 0)]


def test_associated_irps_complete_their_master_with_the_last_one(machine: Any):
    kept = pend(machine)
    _, seen, master = send(machine, machine.scripted.device)
    assert kept == [master]
    master.irp_count = 2
    for _ in range(2):
        irp = make_associated_irp(master, 1)
        get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
        call_driver(machine.scripted.device, irp)
    finish(kept[1])
    assert not seen
    finish(kept[2])
    assert len(seen) == 1


# Bug checks of both modes


@pytest.mark.parametrize("verifier", [False, True])
def test_0x35_no_stack_location_left(new_machine: Any, verifier: bool):
    machine = new_machine(verifier=verifier)
    low = Filter(machine, "low", machine.scripted.device)
    low.device.stack_size = 1  # as of a driver that forwards though it is not attached
    with pytest.raises(BugCheck) as caught:
        send(machine, low.device, stack_size=1)
    assert caught.value.code == NO_MORE_IRP_STACK_LOCATIONS


@pytest.mark.parametrize("verifier", [False, True])
@pytest.mark.parametrize("freed", [False, True])
def test_0x44_completed_twice(new_machine: Any, verifier: bool, freed: bool):
    machine = new_machine(verifier=verifier)
    irp = allocate_irp(machine.processor, 1)
    irp.current_location = 3
    if freed:
        free_irp(irp)
    with pytest.raises(BugCheck) as caught:
        complete_request(irp)
    assert caught.value.code == MULTIPLE_IRP_COMPLETE_REQUESTS
    assert caught.value.parameters[0] == id(irp)


@pytest.mark.parametrize("verifier", [False, True])
@pytest.mark.parametrize("where", ["dispatch", "completion"])
def test_0x1e_exception_leaves_a_driver(new_machine: Any, verifier: bool, where: str):
    machine = new_machine(verifier=verifier)
    above = Filter(machine, "above", machine.scripted.device)

    def fail(*_: Any) -> int:
        raise ValueError("from the driver")

    if where == "dispatch":
        machine.scripted.on_control = fail
    else:
        above.hook = fail
    with pytest.raises(BugCheck) as caught:
        send(machine, above.device)
    assert caught.value.code == KMODE_EXCEPTION_NOT_HANDLED
    assert "from the driver" in caught.value.report["detail"]


def test_an_irp_without_thread_may_not_reach_the_top(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
    with pytest.raises(BugCheck) as caught:
        call_driver(machine.scripted.device, irp)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL
    assert "STATUS_MORE_PROCESSING_REQUIRED" in caught.value.report["detail"]


@pytest.mark.parametrize("routine", [call_driver, complete_request])
def test_calling_and_completing_need_dispatch_level_or_below(machine: Any, routine: Any):
    machine.processor.irql = HIGH_LEVEL
    irp = Irp(machine.io, 1)
    arguments = (machine.scripted.device, irp) if routine is call_driver else (irp,)
    with pytest.raises(BugCheck) as caught:
        routine(*arguments)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL


# Devices and stacks


def test_device_names_are_unique_without_regard_to_case(machine: Any):
    driver = DriverObject(machine.processor, "other")
    for name, status in (
        ("SCRIPTED", STATUS_OBJECT_NAME_COLLISION),
        ("", STATUS_OBJECT_NAME_INVALID),
        ("a\0b", STATUS_OBJECT_NAME_INVALID),
    ):
        with pytest.raises(RaisedStatus) as caught:
            create_device(driver, name, 1)
        assert caught.value.status == status
    assert list(machine.io.devices) == ["scripted"]
    delete_device(machine.scripted.device)
    assert create_device(driver, "SCRIPTED", 1).name == "SCRIPTED"


def test_detaching_takes_the_upper_device_off(machine: Any):
    above = Filter(machine, "above", machine.scripted.device)
    assert attached_device(machine.scripted.device) is above.device
    detach_device(machine.scripted.device)
    assert attached_device(machine.scripted.device) is machine.scripted.device
    assert above.device.attached_to is None


def test_nothing_is_attached_to_a_device_being_deleted(machine: Any):
    delete_device(machine.scripted.device)
    driver = DriverObject(machine.processor, "late")
    device = create_device(driver, None, 1)
    assert attach_device_to_device_stack(device, machine.scripted.device) is None
