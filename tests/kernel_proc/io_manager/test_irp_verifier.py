"""Verifier mode: a small wrong driver for each code, and right ones that pass."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import cancel_irp, set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import attach_device_to_device_stack, call_driver
from kernel_proc.io_manager.driver_object import DriverObject, create_device
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import (
    IoStatusBlock,
    Irp,
    allocate_irp,
    copy_current_irp_stack_location_to_next,
    free_irp,
    get_next_irp_stack_location,
    initialize_irp,
    mark_irp_pending,
    reuse_irp,
    set_completion_routine,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_DEVICE_CONTROL
from kernel_proc.io_manager.run_down import run_down_thread
from kernel_proc.io_manager.system_services import DeviceControlRequest
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
    BugCheck,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL
from shared.ioctl_codes import ctl_code
from shared.nt_status import (
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_UNSUCCESSFUL,
)

CODE = ctl_code(0x8003, 0x800, 0, 0)
Dispatch = Callable[[Any, Irp], int]


def finish(irp: Any, status: int = STATUS_SUCCESS, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


def stop_and_keep(device: Any, irp: Irp, context: Any) -> int:
    return STATUS_MORE_PROCESSING_REQUIRED


def new_irp(machine: Any, stack_size: int = 1) -> Irp:
    irp = allocate_irp(machine.processor, stack_size)
    get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
    set_completion_routine(irp, stop_and_keep)
    return irp


def send(machine: Any, dispatch: Dispatch) -> int:
    machine.scripted.on_control = dispatch
    return call_driver(machine.scripted.device, new_irp(machine))


def expect(machine: Any, code: int, routine: Callable[..., Any], *args: Any) -> BugCheck:
    """Run in a system thread; the verifier must stop the machine with 0xC9 and `code`."""
    with pytest.raises(BugCheck) as caught:
        machine.in_kernel(routine, *args)
    stop = caught.value
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_IOMANAGER_VIOLATION, code)
    return stop


def expect_c4(machine: Any, code: int, routine: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(BugCheck) as caught:
        machine.in_kernel(routine, *args)
    stop = caught.value
    assert (stop.code, stop.parameters[0]) == (DRIVER_VERIFIER_DETECTED_VIOLATION, code)


# What is right passes


def pend_and_complete(device: Any, irp: Irp) -> int:
    mark_irp_pending(irp)
    finish(irp)
    return STATUS_PENDING


def complete_at_once(device: Any, irp: Irp) -> int:
    return finish(irp, STATUS_UNSUCCESSFUL)


@pytest.mark.parametrize("dispatch", [pend_and_complete, complete_at_once])
def test_right_drivers_pass(verified: Any, dispatch: Dispatch):
    expected = STATUS_PENDING if dispatch is pend_and_complete else STATUS_UNSUCCESSFUL
    assert verified.in_kernel(send, verified, dispatch) == expected


def test_completion_by_a_dpc_before_the_dispatch_routine_returns(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        Dpc(verified.processor, lambda *_: finish(irp, STATUS_UNSUCCESSFUL)).insert()
        assert irp.current_location == 2
        return STATUS_PENDING

    assert verified.in_kernel(send, verified, dispatch) == STATUS_PENDING


def test_an_irp_sent_again_from_its_completion_routine(verified: Any):
    left = [1, 2, 3]
    sent: list[int] = []

    def again(device: Any, irp: Irp, context: Any) -> int:
        if left:
            left.pop()
            reuse_irp(irp, STATUS_SUCCESS)
            get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
            set_completion_routine(irp, again)
            sent.append(call_driver(verified.scripted.device, irp))
        return STATUS_MORE_PROCESSING_REQUIRED

    def client() -> None:
        irp = new_irp(verified)
        set_completion_routine(irp, again)
        call_driver(verified.scripted.device, irp)

    verified.scripted.on_control = complete_at_once
    verified.in_kernel(client)
    assert sent == [STATUS_UNSUCCESSFUL] * 3


# The dispatch routine


def test_c9_05_irql_changed(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        verified.processor.raise_irql(APC_LEVEL)
        return finish(irp)

    expect(verified, 0x05, send, verified, dispatch)


def test_c4_c5_apc_disable_count_changed(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        verified.processor.current_thread.enter_critical_region()
        return finish(irp)

    expect_c4(verified, 0xC5, send, verified, dispatch)


@pytest.mark.parametrize("status", [STATUS_PENDING, 0xFFFF_FFFF])
def test_c9_06_completed_as_pending(verified: Any, status: int):
    expect(verified, 0x06, send, verified, lambda _, irp: finish(irp, status))


def test_c9_07_completed_with_a_cancel_routine(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        set_cancel_routine(irp, lambda *_: None)
        return finish(irp)

    expect(verified, 0x07, send, verified, dispatch)


def test_c9_0e_completed_too_high(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        verified.processor.raise_irql(HIGH_LEVEL)
        return finish(irp)

    expect(verified, 0x0E, send, verified, dispatch)


def test_c9_10_called_too_high(verified: Any):
    def client() -> None:
        irp = new_irp(verified)
        verified.processor.raise_irql(HIGH_LEVEL)
        call_driver(verified.scripted.device, irp)

    expect(verified, 0x10, client)


def test_c9_224_status_differs(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        finish(irp, STATUS_UNSUCCESSFUL)
        return STATUS_SUCCESS

    stop = expect(verified, 0x224, send, verified, dispatch)
    assert "STATUS_UNSUCCESSFUL" in stop.report["detail"]


def test_c9_225_returned_minus_one(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        finish(irp)
        return 0xFFFF_FFFF

    expect(verified, 0x225, send, verified, dispatch)


def test_c9_226_neither_done_nor_pending(verified: Any):
    expect(verified, 0x226, send, verified, lambda *_: STATUS_SUCCESS)


@pytest.mark.parametrize("completes", [False, True])
def test_c9_23d_pending_without_mark(verified: Any, completes: bool):
    def dispatch(device: Any, irp: Irp) -> int:
        if completes:
            finish(irp)
        return STATUS_PENDING

    expect(verified, 0x23D, send, verified, dispatch)


@pytest.mark.parametrize("completes", [False, True])
def test_c9_23e_mark_without_pending(verified: Any, completes: bool):
    def dispatch(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        if completes:
            finish(irp)
        return STATUS_SUCCESS

    expect(verified, 0x23E, send, verified, dispatch)


# Stacks


class Forwarder:
    """A driver above the scripted one."""

    def __init__(self, machine: Any, completed: Any, before: Any = None) -> None:
        self.machine = machine
        driver = DriverObject(machine.processor, "forwarder")
        self.device = create_device(driver, None, 0x8004)
        attach_device_to_device_stack(self.device, machine.scripted.device)
        driver.major_function[IRP_MJ_DEVICE_CONTROL] = self.forward
        self.completed = completed
        self.before = before

    def forward(self, device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        if self.completed is not None:
            set_completion_routine(irp, self.completed)
        if self.before is not None:
            self.before(irp)
        return call_driver(self.machine.scripted.device, irp)

    def send(self) -> int:
        return call_driver(self.device, new_irp(self.machine, 2))


def propagate(device: Any, irp: Irp, context: Any) -> int:
    if irp.pending_returned:
        mark_irp_pending(irp)
    return STATUS_SUCCESS


@pytest.mark.parametrize("routine", [propagate, None])
@pytest.mark.parametrize("dispatch", [pend_and_complete, complete_at_once])
def test_a_right_stack_passes(verified: Any, routine: Any, dispatch: Dispatch):
    verified.scripted.on_control = dispatch
    forwarder = Forwarder(verified, routine)
    expected = STATUS_PENDING if dispatch is pend_and_complete else STATUS_UNSUCCESSFUL
    assert verified.in_kernel(forwarder.send) == expected


def test_c9_228_completion_routine_did_not_mark(verified: Any):
    verified.scripted.on_control = pend_and_complete
    expect(verified, 0x228, Forwarder(verified, lambda *_: STATUS_SUCCESS).send)


def test_c9_203_forwarded_with_a_cancel_routine(verified: Any):
    forwarder = Forwarder(verified, propagate, lambda irp: set_cancel_routine(irp, lambda *_: None))
    expect(verified, 0x203, forwarder.send)


def forward_and_wait(machine: Any, returned: int | None) -> Callable[[], int]:
    """A stack whose upper driver waits for the lower one, completes, and returns `returned`."""
    event = Event(machine.processor, notification=True)

    def completed(device: Any, irp: Irp, context: Any) -> int:
        event.set()
        return STATUS_MORE_PROCESSING_REQUIRED

    def forward(device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        set_completion_routine(irp, completed)
        if call_driver(machine.scripted.device, irp) == STATUS_PENDING:
            event.wait()
        status = irp.status
        finish(irp, status)
        return status if returned is None else returned

    forwarder = Forwarder(machine, None)
    forwarder.device.major_function[IRP_MJ_DEVICE_CONTROL] = forward
    machine.scripted.on_control = pend_and_complete
    return forwarder.send


def test_a_driver_that_forwards_and_waits_passes(verified: Any):
    assert verified.in_kernel(forward_and_wait(verified, None)) == STATUS_SUCCESS


def test_c9_224_after_forwarding_and_waiting(verified: Any):
    expect(verified, 0x224, forward_and_wait(verified, STATUS_UNSUCCESSFUL))


def test_a_driver_that_skips_its_location_passes(verified: Any):
    def forward(device: Any, irp: Irp) -> int:
        skip_current_irp_stack_location(irp)
        return call_driver(verified.scripted.device, irp)

    forwarder = Forwarder(verified, None)
    forwarder.device.major_function[IRP_MJ_DEVICE_CONTROL] = forward
    for dispatch, expected in (
        (pend_and_complete, STATUS_PENDING),
        (complete_at_once, STATUS_UNSUCCESSFUL),
    ):
        verified.scripted.on_control = dispatch
        assert verified.in_kernel(forwarder.send) == expected


# Ownership


def built(machine: Any, signaled: bool = False) -> Irp:
    irp = build_device_io_control_request(
        CODE,
        machine.scripted.device,
        b"x",
        1,
        None,
        0,
        False,
        Event(machine.processor, notification=True, signaled=signaled),
        IoStatusBlock(),
    )
    assert irp is not None
    return irp


def test_c9_302_a_thread_irp_sent_at_apc_level(verified: Any):
    def client() -> None:
        irp = built(verified)
        verified.processor.raise_irql(APC_LEVEL)
        call_driver(verified.scripted.device, irp)

    stop = expect(verified, 0x302, client)
    assert "the APC that ends it cannot run" in stop.report["detail"]


def test_a_free_irp_may_be_sent_at_apc_level(verified: Any):
    def client() -> int:
        irp = new_irp(verified)
        old = verified.processor.raise_irql(DISPATCH_LEVEL)
        status = call_driver(verified.scripted.device, irp)
        verified.processor.lower_irql(old)
        return status

    assert verified.in_kernel(client) == STATUS_SUCCESS


def test_c9_307_event_already_signalled(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        return STATUS_PENDING

    verified.scripted.on_control = dispatch
    expect(
        verified,
        0x307,
        lambda: call_driver(verified.scripted.device, built(verified, signaled=True)),
    )


def test_c9_02_free_of_a_thread_irp(verified: Any):
    expect(verified, 0x02, lambda: free_irp(built(verified)))


def test_c9_01_free_twice(verified: Any):
    def client() -> None:
        irp = new_irp(verified)
        free_irp(irp)
        free_irp(irp)

    expect(verified, 0x01, client)


def test_c9_03_call_with_a_freed_irp(verified: Any):
    def client() -> None:
        irp = new_irp(verified)
        free_irp(irp)
        call_driver(verified.scripted.device, irp)

    expect(verified, 0x03, client)


def keep(verified: Any) -> Irp:
    """Send an IRP to a driver that keeps it."""
    kept: list[Irp] = []

    def dispatch(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    send(verified, dispatch)
    return kept[0]


def test_c9_20a_free_of_an_irp_in_use(verified: Any):
    expect(verified, 0x20A, lambda: free_irp(keep(verified)))


def test_c9_310_reuse_of_an_irp_in_use(verified: Any):
    expect(verified, 0x310, lambda: reuse_irp(keep(verified), STATUS_SUCCESS))


def test_c9_311_reuse_of_a_built_irp(verified: Any):
    expect(verified, 0x311, lambda: reuse_irp(built(verified), STATUS_SUCCESS))


def test_c9_20d_initialize_of_an_allocated_irp(verified: Any):
    expect(verified, 0x20D, lambda: initialize_irp(new_irp(verified), 0, 1))


# Cancelling and buffers


def test_a_cancel_routine_that_keeps_the_lock(verified: Any):
    def client() -> None:
        irp = new_irp(verified)
        set_cancel_routine(irp, lambda *_: None)
        cancel_irp(irp)

    expect_c4(verified, 0x40009, client)


def test_c4_135_cancelled_and_not_completed_in_time(verified: Any):
    def dispatch(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        return STATUS_PENDING

    verified.scripted.on_control = dispatch
    verified.control(DeviceControlRequest(verified.open(synchronous=False), CODE, b"x"))
    with pytest.raises(BugCheck) as caught:
        verified.call(run_down_thread)
    assert caught.value.code == DRIVER_VERIFIER_DETECTED_VIOLATION
    assert caught.value.parameters[0] == 0x135


@pytest.mark.parametrize("client", ["user", "kernel"])
def test_c9_312_information_larger_than_the_buffer(verified: Any, client: str):
    verified.scripted.on_control = lambda _, irp: finish(irp, STATUS_SUCCESS, 9)
    if client == "user":
        request = DeviceControlRequest(
            verified.open(), CODE, b"x" * 20, output_length=8, output_inline=True
        )
        with pytest.raises(BugCheck) as caught:
            verified.control(request)
        assert caught.value.parameters[0] == 0x312
        return

    def build_and_send() -> None:
        irp = build_device_io_control_request(
            CODE,
            verified.scripted.device,
            b"x" * 20,
            20,
            bytearray(8),
            8,
            False,
            Event(verified.processor, notification=True),
            IoStatusBlock(),
        )
        assert irp is not None
        call_driver(verified.scripted.device, irp)

    expect(verified, 0x312, build_and_send)


def test_free_mode_lets_the_same_wrong_drivers_go_on(machine: Any):
    def mark_and_return_success(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        finish(irp)
        return STATUS_SUCCESS

    def differ(device: Any, irp: Irp) -> int:
        finish(irp, STATUS_UNSUCCESSFUL)
        return STATUS_SUCCESS

    for dispatch in (mark_and_return_success, differ):
        assert machine.in_kernel(send, machine, dispatch) == STATUS_SUCCESS
