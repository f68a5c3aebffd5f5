"""Look-aside lists of IRPs: what comes back, as new; what does not; and whether they pay."""

import gc
import weakref
from statistics import median
from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import cancel_matching
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    free_irp,
    get_next_irp_stack_location,
    initialize_irp,
    mark_irp_pending,
    reuse_irp,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import (
    IRP_ALLOCATED_FIXED_SIZE,
    IRP_MJ_DEVICE_CONTROL,
    SIZE_OF_IRP,
)
from kernel_proc.io_manager.irp_look_aside import DEPTH, LARGEST
from kernel_proc.io_manager.stack_location import IoStackLocation, IoStatusBlock
from kernel_proc.scheduling.event import Event
from shared.clock import now_ns
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_CANCELLED, STATUS_PENDING, STATUS_SUCCESS

CODE = ctl_code(0x8003, 0x800, METHOD_BUFFERED, 0)


def held(machine: Any) -> dict[str, int]:
    found: dict[str, int] = machine.io.irp_look_aside.inspect()["free"]
    return found


def fields(irp: Irp) -> dict[str, Any]:
    """Every field that is set, the stack as the fields of its locations."""
    names = {name for kind in type(irp).__mro__ for name in getattr(kind, "__slots__", ())}
    found = {name: getattr(irp, name) for name in names if hasattr(irp, name)}
    found["stack"] = [
        [getattr(location, name) for name in IoStackLocation.__slots__]
        for location in irp.stack[1:]
    ]
    del found["own_stack"]
    return found


def spoil(irp: Irp) -> None:
    """Give every field a value no new IRP has."""
    for location in irp.stack[1:]:
        for name in IoStackLocation.__slots__:
            setattr(location, name, 0x77)
    kept = {"io", "processor", "own_stack", "stack", "stack_count", "size", "quota_charged"}
    for name in fields(irp).keys() - kept:
        setattr(irp, name, 0x77)
    irp.verifier_record = None


@pytest.mark.parametrize("stack_size", [1, 2, LARGEST])
def test_a_freed_irp_comes_back_as_a_new_one(machine: Any, stack_size: int):
    new = fields(allocate_irp(machine.processor, stack_size))
    irp = allocate_irp(machine.processor, stack_size)
    spoil(irp)
    free_irp(irp)
    assert held(machine) == {str(stack_size): 1}
    again = allocate_irp(machine.processor, stack_size)
    assert again is irp
    assert fields(again) == new
    assert again.allocation_flags == IRP_ALLOCATED_FIXED_SIZE
    assert held(machine) == {}


def test_the_latest_comes_back_first_and_each_size_has_its_list(machine: Any):
    processor = machine.processor
    one, two, other = (allocate_irp(processor, size) for size in (1, 1, 3))
    for irp in (one, two, other):
        free_irp(irp)
    assert held(machine) == {"1": 2, "3": 1}
    assert [allocate_irp(processor, 1), allocate_irp(processor, 1)] == [two, one]
    assert allocate_irp(processor, 2) is not other
    assert allocate_irp(processor, 3) is other


def test_a_full_list_and_a_large_irp_are_left_to_the_pool(machine: Any):
    processor = machine.processor
    irps = [allocate_irp(processor, 1) for _ in range(DEPTH + 3)]
    large = allocate_irp(processor, LARGEST + 1)
    for irp in (*irps, large):
        free_irp(irp)
    shown = machine.io.inspect()["irp_look_aside"]
    assert shown == {
        "depth": DEPTH,
        "free": {"1": DEPTH},
        "allocate_misses": DEPTH + 3,
        "free_misses": 3,
    }


@pytest.mark.parametrize("freed_twice", [False, True])
def test_what_lies_in_a_list_has_no_stack_and_lies_there_once(machine: Any, freed_twice: bool):
    irp = allocate_irp(machine.processor, 1)
    free_irp(irp)
    if freed_twice:
        free_irp(irp)
    assert held(machine) == {"1": 1}
    assert "freed" in str(irp)
    with pytest.raises(IndexError):
        get_next_irp_stack_location(irp)


def test_nothing_of_a_request_is_kept_alive(machine: Any):
    class Buffer:
        pass

    buffer = Buffer()
    gone = weakref.ref(buffer)
    irp = allocate_irp(machine.processor, 1)
    irp.system_buffer = irp.user_buffer = irp.driver_context = buffer
    location = get_next_irp_stack_location(irp)
    location.type3_input_buffer = location.context = buffer
    free_irp(irp)
    del buffer
    gc.collect()
    assert gone() is None


def test_an_irp_charged_to_a_quota_never_comes_back(machine: Any):
    def charged() -> Irp:
        irp = allocate_irp(machine.processor, 1, True)
        assert irp is not None
        free_irp(irp)
        return irp

    machine.in_process(charged)
    assert held(machine) == {}
    assert machine.process.pool_charged == 0


def test_memory_of_the_callers_own_never_comes_back(machine: Any):
    irp = Irp(machine.io, 1)
    initialize_irp(irp, SIZE_OF_IRP, 1)
    free_irp(irp)
    wrong = allocate_irp(machine.processor, 2)
    initialize_irp(wrong, SIZE_OF_IRP, 5)  # the verifier objects: 0xC9/0x20D
    free_irp(wrong)
    assert held(machine) == {}


@pytest.mark.parametrize("stack_size", [1, 3])
def test_an_irp_that_was_reused_is_as_new_and_comes_back(machine: Any, stack_size: int):
    new = fields(allocate_irp(machine.processor, stack_size))
    irp = allocate_irp(machine.processor, stack_size)
    spoil(irp)
    irp.allocation_flags = IRP_ALLOCATED_FIXED_SIZE
    irp.current_location = 1
    reuse_irp(irp, STATUS_CANCELLED)
    assert fields(irp) == {**new, "status": STATUS_CANCELLED}
    free_irp(irp)
    assert allocate_irp(machine.processor, stack_size) is irp


def test_verifier_mode_has_no_lists(verified: Any):
    irp = allocate_irp(verified.processor, 1)
    free_irp(irp)
    assert held(verified) == {}
    assert allocate_irp(verified.processor, 1) is not irp


def send_built(machine: Any, device: Any) -> Irp:
    event, iosb = Event(machine.processor, notification=True), IoStatusBlock()
    output = bytearray(4)
    irp = build_device_io_control_request(CODE, device, b"in", 2, output, 4, False, event, iosb)
    assert irp is not None
    assert call_driver(device, irp) == STATUS_SUCCESS
    return irp


def test_a_built_irp_comes_back_when_its_apc_has_run(machine: Any):
    def two() -> tuple[Irp, Irp]:
        device = machine.scripted.device
        return send_built(machine, device), send_built(machine, device)

    first, second = machine.in_kernel(two)
    assert first is second
    assert held(machine) == {"1": 1}


def test_cancelling_a_threads_irps_spares_one_that_became_another_threads(machine: Any):
    # Cancelling the first completes the second, and its memory goes to another thread at once.
    queue: list[Irp] = []
    device = machine.scripted.device
    other = machine.new_thread()

    def control(device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        queue.append(irp)
        return STATUS_PENDING

    def end(irp: Irp) -> None:
        irp.status = STATUS_CANCELLED
        complete_request(irp)

    def build() -> Irp:
        event, iosb = Event(machine.processor, notification=True), IoStatusBlock()
        irp = build_device_io_control_request(CODE, device, None, 0, None, 0, False, event, iosb)
        assert irp is not None
        return irp

    def steal(irp: Irp) -> bool:
        if irp is queue[0]:
            end(queue[1])
            taken.append(build())
            taken[0].thread, taken[0].on_thread_list = other, True
            del thread().irps[taken[0]]
        return True

    def thread() -> Any:
        return machine.processor.current_thread

    def run() -> None:
        for _ in range(2):
            call_driver(device, build())
        assert cancel_matching(thread(), steal) == 1
        assert taken == [queue[1]]
        assert not taken[0].cancel
        end(queue[0])

    taken: list[Irp] = []
    machine.scripted.on_control = control
    machine.in_kernel(run)


def test_many_requests_need_as_many_irps_as_are_out_at_a_time(machine: Any):
    device = machine.scripted.device

    def completed(_: Any, irp: Irp, context: Any) -> int:
        free_irp(irp)
        return 0xC0000016  # STATUS_MORE_PROCESSING_REQUIRED

    for _ in range(100):
        irp = allocate_irp(machine.processor, 1)
        get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
        set_completion_routine(irp, completed)
        assert call_driver(device, irp) == STATUS_SUCCESS
    assert machine.io.irps_allocated == 100
    assert machine.io.irp_look_aside.allocate_misses == 1


@pytest.mark.benchmark
def test_taking_one_from_a_list_costs_less_than_making_one(machine: Any):
    """`./scripts/test -m benchmark -s tests/kernel_proc/io_manager/test_irp_look_aside.py`."""
    processor = machine.processor

    def block(charge_quota: bool) -> float:
        begun = now_ns()
        for _ in range(5_000):
            irp = allocate_irp(processor, 1, charge_quota)
            assert irp is not None
            free_irp(irp)
        return (now_ns() - begun) / 5_000

    # One that asks for a quota is made each time; outside of a thread there is nobody to charge.
    gc.disable()
    try:
        blocks = [(block(False), block(True)) for _ in range(25)]
    finally:
        gc.enable()
    taken, made = median(kept for kept, _ in blocks), median(new for _, new in blocks)
    print(f"\nallocate and free: {taken:.0f} ns from a list, {made:.0f} ns made new")
    assert taken < made
