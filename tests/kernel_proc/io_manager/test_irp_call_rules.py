"""Verifier mode: how an IRP may be handed on, completed and cancelled in a stack of drivers."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import set_cancel_routine
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import attach_device_to_device_stack, call_driver
from kernel_proc.io_manager.driver_object import DriverObject, create_device, delete_device
from kernel_proc.io_manager.handle_table import reference_object
from kernel_proc.io_manager.io_build import (
    build_asynchronous_fsd_request,
    build_device_io_control_request,
)
from kernel_proc.io_manager.irp import (
    IoStatusBlock,
    Irp,
    allocate_irp,
    copy_current_irp_stack_location_to_next,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    mark_irp_pending,
    set_completion_routine,
    set_next_irp_stack_location,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.irp_flags import (
    DO_BUFFERED_IO,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_READ,
)
from kernel_proc.scheduling.apc import NormalKernelApc, SpecialKernelApc
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
    BugCheck,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.spinlock import SpinLock
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_NEITHER, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_DEVICE_BUSY,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)

Forward = Callable[[Any, Irp], int]


def finish(irp: Any, status: int = STATUS_SUCCESS) -> int:
    irp.status = status
    irp.information = 0
    complete_request(irp)
    return status


def keep_it(device: Any, irp: Irp, context: Any) -> int:
    return STATUS_MORE_PROCESSING_REQUIRED


def stops(machine: Any, check: int, code: int, routine: Callable[..., Any], *args: Any) -> BugCheck:
    with pytest.raises(BugCheck) as caught:
        machine.in_kernel(routine, *args)
    stop = caught.value
    assert (stop.code, stop.parameters[0]) == (check, code), stop.text()
    return stop


def c9(machine: Any, code: int, routine: Callable[..., Any], *args: Any) -> BugCheck:
    return stops(machine, DRIVER_VERIFIER_IOMANAGER_VIOLATION, code, routine, *args)


def c4(machine: Any, code: int, routine: Callable[..., Any], *args: Any) -> BugCheck:
    return stops(machine, DRIVER_VERIFIER_DETECTED_VIOLATION, code, routine, *args)


def new_irp(machine: Any, stack_size: int = 2, major: int = IRP_MJ_DEVICE_CONTROL) -> Irp:
    irp = allocate_irp(machine.processor, stack_size)
    get_next_irp_stack_location(irp).major_function = major
    set_completion_routine(irp, keep_it)
    return irp


class Stack:
    """A driver above the scripted one, which keeps every IRP."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.below = machine.scripted.device
        self.kept: list[Irp] = []
        self.forward: Forward = lambda device, irp: self.pass_on(irp)
        driver = DriverObject(machine.processor, "upper")
        driver.major_function[IRP_MJ_DEVICE_CONTROL] = self._dispatch
        self.device = create_device(driver, None, 0x8004)
        attach_device_to_device_stack(self.device, self.below)
        machine.scripted.on_control = self.keep

    def _dispatch(self, device: Any, irp: Irp) -> int:
        return self.forward(device, irp)

    def keep(self, device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        self.kept.append(irp)
        return STATUS_PENDING

    def pass_on(self, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        return call_driver(self.below, irp)

    def send(self) -> int:
        return call_driver(self.device, new_irp(self.machine))


@pytest.fixture
def stack(verified: Any) -> Stack:
    return Stack(verified)


# Who has an IRP


def test_c9_205_forwarding_again_what_the_driver_below_has(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        stack.pass_on(irp)
        return stack.pass_on(irp)

    stack.forward = forward
    stop = c9(verified, 0x205, stack.send)
    assert "device 'scripted' has it already" in stop.headline()


def test_c9_209_completing_what_the_driver_below_has(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        stack.pass_on(irp)
        return finish(irp)

    stack.forward = forward
    c9(verified, 0x209, stack.send)


def test_c9_229_a_cancel_routine_on_what_the_driver_below_has(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        status = stack.pass_on(irp)
        set_cancel_routine(irp, lambda *_: None)
        return status

    stack.forward = forward
    c9(verified, 0x229, stack.send)


def complete_by_dpc(machine: Any, act: Callable[[], object]) -> None:
    Dpc(machine.processor, lambda *_: act()).insert()


def complete_by_special_apc(machine: Any, act: Callable[[], object]) -> None:
    SpecialKernelApc(machine.processor.current_thread, lambda _: act()).insert()


def complete_by_normal_apc(machine: Any, act: Callable[[], object]) -> None:
    NormalKernelApc(machine.processor.current_thread, normal_routine=lambda _: act()).insert()


@pytest.mark.parametrize(
    "how", [complete_by_dpc, complete_by_special_apc, complete_by_normal_apc, None]
)
def test_the_driver_below_may_complete_while_the_one_above_still_runs(
    verified: Any, stack: Stack, how: Any
):
    def forward(device: Any, irp: Irp) -> int:
        status = stack.pass_on(irp)
        if how is not None:
            how(verified, lambda: finish(stack.kept.pop()))
        else:  # another thread, while this one waits
            woken = Event(verified.processor, notification=True)

            def worker() -> None:
                finish(stack.kept.pop())
                woken.set()

            create_system_thread(verified.processor, worker)
            woken.wait()
        return status

    stack.forward = forward
    assert verified.in_kernel(stack.send) == STATUS_PENDING
    assert not stack.kept


def test_c9_04_a_deleted_device(verified: Any):
    def client() -> None:
        device = verified.scripted.device
        delete_device(device)
        call_driver(device, new_irp(verified))

    assert "device 'scripted', which is deleted" in c9(verified, 0x04, client).headline()


def test_c9_239_completing_what_was_never_sent_is_noted(verified: Any):
    def client() -> None:
        irp = new_irp(verified, 1)
        set_next_irp_stack_location(irp)
        finish(irp)

    verified.in_kernel(client)
    (note,) = verified.io.notes
    assert "never sent by IoCallDriver (0xC9/0x239" in note


# Stack locations


def test_c9_206_a_location_that_is_marked_pending_and_skipped(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        skip_current_irp_stack_location(irp)
        call_driver(stack.below, irp)
        return STATUS_PENDING

    stack.forward = forward
    c9(verified, 0x206, stack.send)


def test_c9_207_a_location_copied_with_its_completion_routine(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        mine, below = get_current_irp_stack_location(irp), get_next_irp_stack_location(irp)
        for name in ("major_function", "control", "completion_routine", "context"):
            setattr(below, name, getattr(mine, name))
        return call_driver(stack.below, irp)

    stack.forward = forward
    c9(verified, 0x207, stack.send)


def test_the_same_routine_with_another_context_passes(verified: Any, stack: Stack):
    def forward(device: Any, irp: Irp) -> int:
        copy_current_irp_stack_location_to_next(irp)
        set_completion_routine(irp, keep_it, "mine")
        return call_driver(stack.below, irp)

    stack.forward = forward
    assert verified.in_kernel(stack.send) == STATUS_PENDING


def test_c9_208_too_few_stack_locations(verified: Any, stack: Stack):
    stop = c9(verified, 0x208, lambda: call_driver(stack.device, new_irp(verified, 1)))
    assert "needs 2 stack locations, 1 are left" in stop.headline()


# What the upper driver returns


def test_c9_224_returning_something_else_than_the_driver_below(verified: Any, stack: Stack):
    verified.scripted.on_control = lambda _, irp: finish(irp, STATUS_DEVICE_BUSY)

    def forward(device: Any, irp: Irp) -> int:
        stack.pass_on(irp)
        return STATUS_SUCCESS

    stack.forward = forward
    stop = c9(verified, 0x224, stack.send)
    assert "the driver below returned STATUS_DEVICE_BUSY" in stop.headline()
    assert "Stack._dispatch (test_irp_call_rules.py:" in stop.headline()


def test_c9_23d_pending_though_the_driver_below_was_done(verified: Any, stack: Stack):
    verified.scripted.on_control = lambda _, irp: finish(irp)

    def forward(device: Any, irp: Irp) -> int:
        stack.pass_on(irp)
        return STATUS_PENDING

    stack.forward = forward
    c9(verified, 0x23D, stack.send)


# IRQL, APCs, locks


def test_c9_23a_a_create_at_dispatch_level(verified: Any):
    def client() -> None:
        verified.processor.raise_irql(DISPATCH_LEVEL)
        call_driver(verified.scripted.device, new_irp(verified, 1, IRP_MJ_CREATE))

    assert "CREATE sent at DISPATCH_LEVEL" in c9(verified, 0x23A, client).headline()


def completed_by(machine: Any, act: Callable[[], object]) -> Callable[[], int]:
    """Send an IRP whose completion routine does `act`."""

    def completed(device: Any, irp: Irp, context: Any) -> int:
        act()
        return STATUS_MORE_PROCESSING_REQUIRED

    def client() -> int:
        irp = new_irp(machine, 1)
        set_completion_routine(irp, completed)
        return call_driver(machine.scripted.device, irp)

    return client


def test_c4_fa_completion_routine_changes_the_irql(verified: Any):
    def act() -> None:
        verified.processor.raise_irql(APC_LEVEL)

    stop = c4(verified, 0xFA, completed_by(verified, act))
    assert stop.parameters[2:] == (PASSIVE_LEVEL, APC_LEVEL)


def test_c4_fb_completion_routine_changes_the_apc_disable_count(verified: Any):
    def act() -> None:
        verified.processor.current_thread.enter_critical_region()

    stop = c4(verified, 0xFB, completed_by(verified, act))
    assert stop.parameters[2:] == (0, 1)
    assert "completed (test_irp_call_rules.py:" in stop.headline()


def test_free_mode_lets_a_completion_routine_do_so(machine: Any):
    def act() -> None:
        machine.processor.raise_irql(APC_LEVEL)

    def client() -> int:
        completed_by(machine, act)()
        level: int = machine.processor.irql
        machine.processor.lower_irql(PASSIVE_LEVEL)
        return level

    assert machine.in_kernel(client) == APC_LEVEL


def test_c4_40009_a_spin_lock_held_at_return(verified: Any):
    lock = SpinLock(verified.processor, "kept")

    def dispatch(device: Any, irp: Irp) -> int:
        lock.acquire_at_dpc_level()
        return finish(irp)

    def client() -> None:
        verified.processor.raise_irql(DISPATCH_LEVEL)
        call_driver(verified.scripted.device, new_irp(verified, 1))

    verified.scripted.on_control = dispatch
    c4(verified, 0x40009, client)


# Buffers


@pytest.mark.parametrize("place", ["user_buffer", "type3_input_buffer"])
def test_c4_e2_a_users_address_in_a_kernels_irp(verified: Any, place: str):
    def client() -> None:
        irp = new_irp(verified, 1)
        holder: Any = irp if place == "user_buffer" else get_next_irp_stack_location(irp)
        setattr(holder, place, 0x7000_0000_0000)
        call_driver(verified.scripted.device, irp)

    assert c4(verified, 0xE2, client).parameters[2] == 0x7000_0000_0000


def build_control(machine: Any, method: int, data: Any, output: Any) -> Irp | None:
    return build_device_io_control_request(
        ctl_code(0x8003, 0x800, method, 0),
        machine.scripted.device,
        data,
        8,
        output,
        8,
        False,
        Event(machine.processor, notification=True),
        IoStatusBlock(),
    )


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_OUT_DIRECT])
@pytest.mark.parametrize(
    ("data", "output"), [(b"short", bytearray(8)), (bytes(8), bytearray(7)), (0x1000, bytearray(8))]
)
def test_c9_09_a_control_request_built_with_a_bad_buffer(
    verified: Any, method: int, data: Any, output: Any
):
    c9(verified, 0x09, build_control, verified, method, data, output)


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER])
def test_a_control_request_built_with_good_buffers_passes(verified: Any, method: int):
    assert verified.in_kernel(build_control, verified, method, bytes(8), bytearray(8)) is not None


@pytest.mark.parametrize("buffer", [bytearray(7), None, 0x1000])
def test_c9_08_a_read_built_with_a_bad_buffer(verified: Any, buffer: Any):
    verified.scripted.device.flags |= DO_BUFFERED_IO
    c9(
        verified,
        0x08,
        build_asynchronous_fsd_request,
        IRP_MJ_READ,
        verified.scripted.device,
        buffer,
        8,
        0,
        None,
    )


def test_c4_2001b_a_handle_looked_up_at_dispatch_level(verified: Any):
    handle = verified.open()

    def client() -> None:
        verified.processor.raise_irql(DISPATCH_LEVEL)
        reference_object(verified.thread, handle, object, 0)

    c4(verified, 0x2001B, client)
