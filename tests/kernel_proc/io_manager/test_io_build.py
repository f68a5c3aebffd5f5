"""IRPs made by the IoBuild routines: who owns them, how they end, and where that hangs."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.io_build import (
    build_asynchronous_fsd_request,
    build_device_io_control_request,
    build_synchronous_fsd_request,
)
from kernel_proc.io_manager.irp import (
    IoStatusBlock,
    allocate_irp,
    free_irp,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    mark_irp_pending,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import (
    DO_BUFFERED_IO,
    DO_DIRECT_IO,
    IRP_MJ_DEVICE_CONTROL,
    IRP_MJ_FLUSH_BUFFERS,
    IRP_MJ_INTERNAL_DEVICE_CONTROL,
    IRP_MJ_READ,
    IRP_MJ_WRITE,
)
from kernel_proc.memory.mdl import LARGEST_MDL, map_locked_pages
from kernel_proc.memory.pool import PoolAllocator
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, BugCheck
from kernel_proc.scheduling.dispatcher import Deadlock
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.ioctl_codes import (
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    ctl_code,
)
from shared.nt_status import (
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_UNSUCCESSFUL,
)


def code(method: int) -> int:
    return ctl_code(0x8003, 0x800, method, 0)


def finish(irp: Any, status: int = STATUS_SUCCESS, information: int = 0) -> int:
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


def pend(machine: Any, major: int = IRP_MJ_DEVICE_CONTROL) -> list[Any]:
    kept: list[Any] = []

    def dispatch(device: Any, irp: Any) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.driver.major_function[major] = dispatch
    return kept


class Caller:
    """Event and status block of a kernel client."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.event = Event(machine.processor, notification=True)
        self.iosb = IoStatusBlock(0x7777_7777, 0)

    def build(self, method: int, data: Any, output: Any, **more: Any) -> Any:
        return build_device_io_control_request(
            code(method),
            self.machine.scripted.device,
            data,
            len(data) if data is not None else 0,
            output,
            len(output) if output is not None else 0,
            more.get("internal", False),
            self.event,
            self.iosb,
        )

    def send(self, irp: Any) -> int:
        status = call_driver(self.machine.scripted.device, irp)
        if status == STATUS_PENDING:
            self.event.wait()
            status = self.iosb.status
        return status


def test_w16_synchronous_fsd_request_with_an_event(machine: Any):
    kept = pend(machine, IRP_MJ_FLUSH_BUFFERS)

    def client() -> None:
        caller = Caller(machine)
        irp = build_synchronous_fsd_request(
            IRP_MJ_FLUSH_BUFFERS, machine.scripted.device, None, 0, 0, caller.event, caller.iosb
        )
        assert irp is not None
        assert irp.user_event is caller.event
        assert irp.current_location == 2
        assert irp in machine.processor.current_thread.irps
        assert caller.event.read_state() == 0
        assert call_driver(machine.scripted.device, irp) == STATUS_PENDING
        assert caller.event.read_state() == 0
        finish(kept[0])
        assert caller.event.read_state() == 1
        assert caller.iosb.status == STATUS_SUCCESS
        assert not machine.processor.current_thread.irps

    machine.in_kernel(client)


def test_buffered_still_allocates_and_copies(machine: Any):
    data, output = b"question", bytearray(b"........")
    seen: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        assert irp.system_buffer is not data
        assert irp.requestor_mode == KERNEL_MODE
        seen.append(bytes(irp.system_buffer))
        irp.system_buffer[:6] = b"answer"
        return finish(irp, STATUS_SUCCESS, 6)

    machine.scripted.on_control = control

    def client() -> None:
        caller = Caller(machine)
        assert caller.send(caller.build(METHOD_BUFFERED, data, output)) == STATUS_SUCCESS
        assert caller.iosb.information == 6

    machine.in_kernel(client)
    assert seen == [b"question"]
    assert output == b"answer.."
    counters = machine.io.copy_counters
    assert (counters.copies, counters.bytes_copied) == (2, 14)


def test_neither_refers_to_the_callers_objects(machine: Any):
    data, output = b"question", bytearray(8)

    def control(device: Any, irp: Any) -> int:
        assert get_current_irp_stack_location(irp).type3_input_buffer is data
        assert irp.user_buffer is output
        output[:] = b"answered"
        return finish(irp, STATUS_SUCCESS, 8)

    machine.scripted.on_control = control

    def client() -> None:
        caller = Caller(machine)
        caller.send(caller.build(METHOD_NEITHER, data, output))

    machine.in_kernel(client)
    assert machine.io.copy_counters.copies == 0


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_direct_methods_map_the_callers_buffer(machine: Any, method: int, pool: bool):
    output = PoolAllocator(machine.processor).allocate(16, "test") if pool else bytearray(16)
    assert output is not None

    def control(device: Any, irp: Any) -> int:
        map_locked_pages(irp.mdl_address).write(2, bytes(irp.system_buffer))
        return finish(irp)

    machine.scripted.on_control = control

    def client() -> None:
        caller = Caller(machine)
        caller.send(caller.build(method, b"abc", output))

    machine.in_kernel(client)
    assert bytes(output) == b"\0\0abc" + bytes(11)
    output += b"grows again"  # no mapping of it is left


def test_what_no_mdl_can_describe_is_not_built(machine: Any):
    caller = Caller(machine)
    arguments = (machine.scripted.device, b"", 0, b"", LARGEST_MDL + 1)
    assert (
        build_device_io_control_request(
            code(METHOD_OUT_DIRECT), *arguments, False, caller.event, caller.iosb
        )
        is None
    )
    for build in (build_synchronous_fsd_request, build_asynchronous_fsd_request):
        more = (caller.event,) if build is build_synchronous_fsd_request else ()
        size = LARGEST_MDL + 1
        device = machine.scripted.device
        assert build(IRP_MJ_READ, device, b"", size, 0, *more, caller.iosb) is None


def test_an_internal_request_has_its_own_major_function(machine: Any):
    kept = pend(machine, IRP_MJ_INTERNAL_DEVICE_CONTROL)

    def client() -> None:
        caller = Caller(machine)
        irp = caller.build(METHOD_BUFFERED, b"x", None, internal=True)
        machine.processor.schedule_hardware(lambda: finish(kept[0]))
        assert caller.send(irp) == STATUS_SUCCESS

    machine.in_kernel(client)


def test_an_error_not_pended_is_told_by_the_return_value_alone(machine: Any):
    machine.scripted.on_control = lambda _, irp: finish(irp, STATUS_UNSUCCESSFUL)

    def client() -> None:
        caller = Caller(machine)
        assert caller.send(caller.build(METHOD_BUFFERED, b"x", None)) == STATUS_UNSUCCESSFUL
        assert caller.iosb.status == 0x7777_7777
        assert caller.event.read_state() == 0
        assert not machine.processor.current_thread.irps

    machine.in_kernel(client)


def test_an_error_after_pending_is_delivered(machine: Any):
    kept = pend(machine)

    def client() -> None:
        caller = Caller(machine)
        irp = caller.build(METHOD_BUFFERED, b"x", None)
        machine.processor.schedule_hardware(lambda: finish(kept[0], STATUS_UNSUCCESSFUL))
        assert caller.send(irp) == STATUS_UNSUCCESSFUL
        assert caller.event.read_state() == 1

    machine.in_kernel(client)


@pytest.mark.parametrize("flags", [0, DO_BUFFERED_IO, DO_DIRECT_IO])
@pytest.mark.parametrize("major", [IRP_MJ_READ, IRP_MJ_WRITE])
def test_read_and_write_follow_the_devices_flags(machine: Any, flags: int, major: int):
    machine.scripted.device.flags |= flags
    buffer = bytearray(b"12345678")

    def transfer(device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        assert (location.length, location.byte_offset) == (8, 4096)
        if irp.mdl_address is not None:
            place: Any = map_locked_pages(irp.mdl_address).view
        else:
            place = irp.system_buffer if flags else irp.user_buffer
        if major == IRP_MJ_WRITE:
            assert bytes(place) == b"12345678"
        else:
            place[:] = b"abcdefgh"
        return finish(irp, STATUS_SUCCESS, 8)

    machine.scripted.driver.major_function[major] = transfer

    def client() -> None:
        caller = Caller(machine)
        irp = build_synchronous_fsd_request(
            major, machine.scripted.device, buffer, 8, 4096, caller.event, caller.iosb
        )
        assert caller.send(irp) == STATUS_SUCCESS
        assert caller.iosb.information == 8

    machine.in_kernel(client)
    assert buffer == (b"12345678" if major == IRP_MJ_WRITE else b"abcdefgh")
    assert machine.io.copy_counters.copies == (1 if flags == DO_BUFFERED_IO else 0)


def test_an_asynchronous_request_is_its_creators(machine: Any):
    kept = pend(machine, IRP_MJ_WRITE)
    iosb = IoStatusBlock()

    def client() -> None:
        event = Event(machine.processor, notification=True)

        def routine(device: Any, irp: Any, context: Any) -> int:
            event.set()
            return STATUS_MORE_PROCESSING_REQUIRED

        irp = build_asynchronous_fsd_request(
            IRP_MJ_WRITE, machine.scripted.device, b"x", 1, 0, iosb
        )
        assert irp is not None
        assert not machine.processor.current_thread.irps
        set_completion_routine(irp, routine)
        call_driver(machine.scripted.device, irp)
        finish(kept[0], STATUS_SUCCESS, 1)
        assert event.read_state() == 1
        assert irp.information == 1
        free_irp(irp)

    machine.in_kernel(client)
    assert iosb.information == 0  # the walk never reached the I/O manager


def test_an_asynchronous_request_that_reaches_the_top_ends_in_its_thread(machine: Any):
    kept = pend(machine, IRP_MJ_WRITE)
    iosb = IoStatusBlock()

    def client() -> None:
        irp = build_asynchronous_fsd_request(
            IRP_MJ_WRITE, machine.scripted.device, b"x", 1, 0, iosb
        )
        assert irp is not None
        call_driver(machine.scripted.device, irp)
        finish(kept[0], STATUS_SUCCESS, 1)
        assert iosb.information == 1

    machine.in_kernel(client)


@pytest.mark.parametrize("event_given", [False, True])
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("status", [STATUS_SUCCESS, STATUS_UNSUCCESSFUL])
def test_a_request_with_a_file_object(
    machine: Any, status: int, synchronous: bool, event_given: bool
):
    """The table of results for a driver that sets the file object itself."""
    kept = pend(machine, IRP_MJ_WRITE)
    file = FileObject(machine.scripted.device, None, synchronous)
    file.final_status = 0x7777_7777
    caller = Caller(machine)

    def client() -> None:
        irp = build_synchronous_fsd_request(
            IRP_MJ_WRITE, machine.scripted.device, b"x", 1, 0, caller.event, caller.iosb
        )
        assert irp is not None
        if not event_given:
            irp.user_event = None
        irp.file_object = file
        file.reference()
        call_driver(machine.scripted.device, irp)
        finish(kept[0], status, 1)

    machine.in_kernel(client)
    delivered = status == STATUS_SUCCESS or not synchronous
    assert caller.iosb.status == (status if delivered else 0x7777_7777)
    assert caller.event.read_state() == int(delivered and event_given)
    own = not (delivered and event_given)
    assert file.event.read_state() == int(own)
    assert file.final_status == (status if own else 0x7777_7777)
    assert file.references == 1


def test_building_needs_a_thread_at_apc_level_or_below(machine: Any):
    caller = Caller(machine)
    with pytest.raises(RuntimeError, match="outside of a thread"):
        caller.build(METHOD_BUFFERED, b"x", None)

    def at_dispatch_level() -> None:
        machine.processor.raise_irql(DISPATCH_LEVEL)
        caller.build(METHOD_BUFFERED, b"x", None)

    with pytest.raises(BugCheck) as caught:
        machine.in_kernel(at_dispatch_level)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL


# Fast mutex, APC_LEVEL and IRPs: what the mails of 2005 ran into


def issue_and_wait(machine: Any, kept: list[Any]) -> int:
    caller = Caller(machine)
    irp = caller.build(METHOD_BUFFERED, b"x", None)
    dpc = Dpc(machine.processor, lambda *_: finish(kept.pop()))
    machine.processor.schedule_hardware(dpc.insert)
    return caller.send(irp)


def test_a_thread_irp_under_a_kmutex_works(machine: Any):
    kept = pend(machine)
    mutex = Mutex(machine.processor)

    def client() -> int:
        mutex.wait()
        status = issue_and_wait(machine, kept)
        mutex.release()
        return status

    assert machine.in_kernel(client) == STATUS_SUCCESS


@pytest.mark.parametrize("how", ["fast mutex", "raised", "guarded region"])
def test_a_thread_irp_under_a_fast_mutex_hangs_for_ever(machine: Any, how: str):
    kept = pend(machine)
    mutex = FastMutex(machine.processor)

    def client() -> None:
        if how == "fast mutex":
            mutex.acquire()
        elif how == "raised":
            machine.processor.raise_irql(APC_LEVEL)
        else:
            machine.processor.current_thread.enter_guarded_region()
        issue_and_wait(machine, kept)

    with pytest.raises(Deadlock) as caught:
        machine.in_kernel(client)
    assert "holds back 1 kernel APC" in str(caught.value)


def test_a_free_irp_with_a_completion_routine_works_under_a_fast_mutex(machine: Any):
    kept = pend(machine)
    mutex = FastMutex(machine.processor)
    event = Event(machine.processor, notification=True)

    def routine(device: Any, irp: Any, context: Any) -> int:
        event.set()
        return STATUS_MORE_PROCESSING_REQUIRED

    def client() -> int:
        mutex.acquire()
        irp = allocate_irp(machine.processor, 1)
        get_next_irp_stack_location(irp).major_function = IRP_MJ_DEVICE_CONTROL
        set_completion_routine(irp, routine)
        dpc = Dpc(machine.processor, lambda *_: finish(kept.pop(), STATUS_SUCCESS, 9))
        machine.processor.schedule_hardware(dpc.insert)
        assert call_driver(machine.scripted.device, irp) == STATUS_PENDING
        event.wait()
        information = irp.information
        free_irp(irp)
        mutex.release()
        return information

    assert machine.in_kernel(client) == 9
