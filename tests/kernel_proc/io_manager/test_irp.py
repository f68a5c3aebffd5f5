"""The IRP itself: making, navigating, reusing and freeing it."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    copy_current_irp_stack_location_to_next,
    free_irp,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    initialize_irp,
    mark_irp_pending,
    reuse_irp,
    set_completion_routine,
    set_next_irp_stack_location,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.irp_flags import (
    IRP_ALLOCATED_FIXED_SIZE,
    IRP_LOOKASIDE_ALLOCATION,
    IRP_QUOTA_CHARGED,
    SL_INVOKE_ON_CANCEL,
    SL_INVOKE_ON_ERROR,
    SL_INVOKE_ON_SUCCESS,
    SL_PENDING_RETURNED,
    io_size_of_irp,
)
from kernel_proc.io_manager.registry import io_manager_of
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, BugCheck
from kernel_proc.scheduling.irql import HIGH_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_SUCCESS,
    STATUS_UNSUCCESSFUL,
)


def test_k1_initialize_irp_with_five_locations(machine: Any):
    irp = Irp(machine.io, 1)
    initialize_irp(irp, 1234, 5)
    assert irp.type == 6
    assert irp.size == 1234
    assert irp.stack_count == 5
    assert irp.current_location == 6
    assert not irp.on_thread_list
    assert irp.current_stack_location_index == 5
    assert irp.allocation_flags == 0


def test_k2_allocate_irp(machine: Any):
    irp = allocate_irp(machine.processor, 2, False)
    assert (irp.type, irp.stack_count, irp.current_location) == (6, 2, 3)
    assert irp.size == io_size_of_irp(2)
    assert not irp.on_thread_list
    assert irp.allocation_flags & IRP_ALLOCATED_FIXED_SIZE
    assert not irp.allocation_flags & IRP_LOOKASIDE_ALLOCATION


def test_k2b_allocate_irp_with_quota(machine: Any):
    def allocate() -> None:
        irp = allocate_irp(machine.processor, 2, True)
        assert irp is not None
        assert (irp.type, irp.stack_count, irp.current_location) == (6, 2, 3)
        assert not irp.on_thread_list
        assert irp.allocation_flags == IRP_ALLOCATED_FIXED_SIZE | IRP_QUOTA_CHARGED
        assert machine.process.pool_charged == io_size_of_irp(2)
        reuse_irp(irp, STATUS_SUCCESS)
        assert machine.process.pool_charged == io_size_of_irp(2)
        free_irp(irp)

    machine.in_process(allocate)
    assert machine.process.pool_charged == 0


def test_an_irp_over_the_quota_is_not_made(machine: Any):
    machine.process.pool_quota = io_size_of_irp(1) - 1
    assert machine.in_process(allocate_irp, machine.processor, 1, True) is None
    assert machine.process.pool_charged == 0


def test_w14_allocation_flags_are_exactly_fixed_size(machine: Any):
    irp = allocate_irp(machine.processor, 1, False)
    assert irp.allocation_flags == IRP_ALLOCATED_FIXED_SIZE
    assert irp.current_location == 2


def test_w14b_completion_routine_on_a_hand_moved_irp(machine: Any):
    seen: list[Any] = []

    def routine(device: Any, irp: Irp, context: Any) -> int:
        seen.append((device, irp, context))
        return STATUS_MORE_PROCESSING_REQUIRED

    irp = allocate_irp(machine.processor, 1, False)
    set_completion_routine(irp, routine, "context", True, True, True)
    set_next_irp_stack_location(irp)
    assert irp.current_location == 1
    complete_request(irp)
    assert seen == [(None, irp, "context")]
    assert irp.current_location == 2


def test_w14c_reuse_moves_back_and_keeps_the_allocation_flags(machine: Any):
    irp = allocate_irp(machine.processor, 1, False)
    set_next_irp_stack_location(irp)
    irp.cancel = True
    irp.information = 5
    reuse_irp(irp, STATUS_UNSUCCESSFUL)
    assert irp.current_location == 2
    assert irp.allocation_flags == IRP_ALLOCATED_FIXED_SIZE
    assert (irp.status, irp.information, irp.cancel) == (STATUS_UNSUCCESSFUL, 0, False)


def test_navigation_follows_the_location(machine: Any):
    irp = allocate_irp(machine.processor, 3)
    first = get_next_irp_stack_location(irp)
    set_next_irp_stack_location(irp)
    assert get_current_irp_stack_location(irp) is first
    second = get_next_irp_stack_location(irp)
    assert second is not first
    skip_current_irp_stack_location(irp)
    assert get_next_irp_stack_location(irp) is first


def test_copying_down_leaves_completion_routine_and_control_behind(machine: Any):
    irp = allocate_irp(machine.processor, 2)
    location = get_next_irp_stack_location(irp)
    location.major_function = 14
    location.io_control_code = 0x22_2000
    location.length = 7
    set_completion_routine(irp, lambda *_: STATUS_SUCCESS, None)
    set_next_irp_stack_location(irp)
    mark_irp_pending(irp)
    copy_current_irp_stack_location_to_next(irp)
    lower = get_next_irp_stack_location(irp)
    assert (lower.major_function, lower.io_control_code, lower.length) == (14, 0x22_2000, 7)
    assert lower.control == 0
    assert lower.completion_routine is None
    assert location.control & SL_PENDING_RETURNED


@pytest.mark.parametrize(
    ("flags", "control"),
    [
        ((True, False, False), SL_INVOKE_ON_SUCCESS),
        ((False, True, False), SL_INVOKE_ON_ERROR),
        ((False, False, True), SL_INVOKE_ON_CANCEL),
    ],
)
def test_set_completion_routine_sets_control(
    machine: Any, flags: tuple[bool, bool, bool], control: int
):
    irp = allocate_irp(machine.processor, 1)
    set_completion_routine(irp, lambda *_: STATUS_SUCCESS, None, *flags)
    assert get_next_irp_stack_location(irp).control == control


def test_parameters_of_read_and_create_share_their_places(machine: Any):
    location = get_next_irp_stack_location(allocate_irp(machine.processor, 1))
    location.length, location.key, location.byte_offset = 1, 2, 3
    assert (location.output_buffer_length, location.input_buffer_length) == (1, 2)
    assert location.io_control_code == 3
    assert (location.length, location.key, location.byte_offset) == (1, 2, 3)
    location.desired_access, location.options = 4, 5
    assert (location.desired_access, location.options) == (4, 5)
    assert (location.length, location.key) == (4, 5)


def test_the_creators_position_has_no_location_to_mark(machine: Any):
    with pytest.raises(IndexError):
        mark_irp_pending(allocate_irp(machine.processor, 1))


def test_below_the_lowest_driver_there_is_no_location(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    set_next_irp_stack_location(irp)
    nothing = get_next_irp_stack_location(irp)
    nothing.major_function = 1
    with pytest.raises(AttributeError):
        _ = nothing.major_function


def test_a_freed_irp_has_no_locations(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    free_irp(irp)
    with pytest.raises(IndexError):
        get_next_irp_stack_location(irp)


@pytest.mark.parametrize("routine", [allocate_irp, free_irp])
def test_allocate_and_free_need_dispatch_level_or_below(machine: Any, routine: Any):
    irp = allocate_irp(machine.processor, 1)
    machine.processor.irql = HIGH_LEVEL
    arguments = (irp,) if routine is free_irp else (machine.processor, 1)
    with pytest.raises(BugCheck) as caught:
        routine(*arguments)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL


def test_irps_are_counted(machine: Any):
    before = machine.io.irps_allocated
    allocate_irp(machine.processor, 1)
    assert machine.io.irps_allocated == before + 1


def test_an_irp_tells_its_state(machine: Any):
    irp = allocate_irp(machine.processor, 1)
    get_next_irp_stack_location(irp).major_function = 14
    set_next_irp_stack_location(irp)
    get_current_irp_stack_location(irp).device_object = machine.scripted.device
    irp.cancel = True
    irp.status = STATUS_CANCELLED
    text = str(irp)
    for word in ("DEVICE_CONTROL", "location 1 of 1", "'scripted'", "STATUS_CANCELLED"):
        assert word in text
    free_irp(irp)
    assert "freed" in str(irp)


def test_a_processor_has_one_io_manager(machine: Any):
    assert io_manager_of(machine.processor) is machine.io
    with pytest.raises(RuntimeError, match="already"):
        type(machine.io)(machine.processor)
    with pytest.raises(RuntimeError, match="no I/O manager"):
        io_manager_of(Processor(VirtualClock()))
