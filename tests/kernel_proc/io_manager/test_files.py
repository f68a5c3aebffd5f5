"""Opening, duplicating and closing: what a driver is told, and when."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.create_close import get_device_object_pointer
from kernel_proc.io_manager.driver_object import create_device, delete_device
from kernel_proc.io_manager.handle_table import HandleTable
from kernel_proc.io_manager.irp import get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import (
    FILE_ALL_ACCESS,
    FILE_GENERIC_READ,
    FILE_READ_DATA,
    FILE_WRITE_DATA,
    GENERIC_ALL,
    GENERIC_READ,
    GENERIC_WRITE,
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    SYNCHRONIZE,
)
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    close_handle,
    create_event,
    create_file,
    device_io_control_file,
    duplicate_handle,
    query_event,
    reset_event,
    set_event,
    wait_for_object,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.ioctl_codes import ctl_code
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_ALERTED,
    STATUS_CANCELLED,
    STATUS_DEVICE_NOT_READY,
    STATUS_INVALID_HANDLE,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
    STATUS_TOO_MANY_OPENED_FILES,
)


def finish(irp: Any, status: int = STATUS_SUCCESS) -> int:
    irp.status = status
    complete_request(irp)
    return status


def pend_into(kept: list[Any]) -> Any:
    def dispatch(device: Any, irp: Any) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    return dispatch


def control(handle: int) -> DeviceControlRequest:
    return DeviceControlRequest(handle, ctl_code(0x8003, 0x800, 0, 0))


def test_w13_handles_of_one_file_share_it_and_close_comes_last(machine: Any):
    scripted = machine.scripted

    def create(device: Any, irp: Any) -> int:
        file = get_current_irp_stack_location(irp).file_object
        file.fs_context = scripted.calls["CREATE"]
        return finish(irp)

    contexts: list[int] = []

    def read_context(device: Any, irp: Any) -> int:
        contexts.append(get_current_irp_stack_location(irp).file_object.fs_context)
        return finish(irp)

    scripted.on[IRP_MJ_CREATE] = create
    scripted.on_control = read_context
    first, second = machine.open(), machine.open()
    status, duplicate = machine.call(duplicate_handle, first)
    assert status == STATUS_SUCCESS
    assert scripted.calls["CREATE"] == 2
    for handle in (first, second, duplicate):
        machine.control(control(handle))
    assert contexts == [1, 2, 1]
    assert machine.call(close_handle, duplicate) == STATUS_SUCCESS
    assert (scripted.calls["CLEANUP"], scripted.calls["CLOSE"]) == (0, 0)
    machine.call(close_handle, first)
    assert (scripted.calls["CLEANUP"], scripted.calls["CLOSE"]) == (1, 1)
    machine.call(close_handle, second)
    assert (scripted.calls["CLEANUP"], scripted.calls["CLOSE"]) == (2, 2)
    assert scripted.device.open_count == 0


def test_close_comes_after_the_original_when_the_duplicate_lives(machine: Any):
    first = machine.open()
    _, duplicate = machine.call(duplicate_handle, first)
    machine.call(close_handle, first)
    assert machine.scripted.calls["CLEANUP"] == 0
    assert machine.control(control(duplicate))[0] == STATUS_SUCCESS
    machine.call(close_handle, duplicate)
    assert machine.scripted.log[-2:] == ["CLEANUP", "CLOSE"]


def test_cleanup_precedes_the_last_requests_end_and_close_follows_it(machine: Any):
    kept: list[Any] = []
    machine.scripted.on_control = pend_into(kept)
    handle = machine.open(synchronous=False)
    machine.control(control(handle))
    machine.call(close_handle, handle)
    machine.settle()
    assert machine.scripted.log == ["CREATE", "DEVICE_CONTROL", "CLEANUP"]
    levels: list[int] = []

    def close(device: Any, irp: Any) -> int:
        levels.append(machine.processor.irql)
        return finish(irp)

    machine.scripted.on[IRP_MJ_CLOSE] = close
    Dpc(machine.processor, lambda *_: finish(kept[0])).insert()
    machine.settle()
    assert machine.scripted.log[-1] == "CLOSE"
    assert levels == [PASSIVE_LEVEL]
    assert machine.process.handle_table.closing == 0
    assert machine.scripted.device.open_count == 0


def test_a_pended_cleanup_is_waited_for(machine: Any):
    kept: list[Any] = []
    machine.scripted.on[IRP_MJ_CLEANUP] = pend_into(kept)
    call = machine.start(close_handle, machine.open())
    assert not call.done
    assert machine.scripted.calls["CLOSE"] == 0
    finish(kept[0])
    machine.settle()
    assert call.done
    assert machine.scripted.calls["CLOSE"] == 1


def test_closing_a_synchronous_file_waits_for_its_request(machine: Any):
    kept: list[Any] = []
    machine.scripted.on_control = pend_into(kept)
    handle = machine.open()
    request = machine.start(device_io_control_file, control(handle))
    closing = machine.start(close_handle, handle, thread=machine.new_thread())
    assert not closing.done
    assert machine.scripted.calls["CLEANUP"] == 0
    finish(kept[0])
    machine.settle()
    assert request.done
    assert closing.done
    assert machine.scripted.log[-2:] == ["CLEANUP", "CLOSE"]


def test_a_refused_create_makes_no_file(machine: Any):
    machine.scripted.on[IRP_MJ_CREATE] = lambda _, irp: finish(irp, STATUS_DEVICE_NOT_READY)
    status, handle = machine.call(create_file, "scripted", 3, True)
    assert (status, handle) == (STATUS_DEVICE_NOT_READY, 0)
    machine.settle()
    assert machine.scripted.log == ["CREATE"]
    assert machine.scripted.device.open_count == 0
    assert not machine.process.handle_table.entries


@pytest.mark.parametrize("status", [STATUS_SUCCESS, STATUS_DEVICE_NOT_READY])
def test_a_pended_create_is_waited_for(machine: Any, status: int):
    kept: list[Any] = []
    machine.scripted.on[IRP_MJ_CREATE] = pend_into(kept)
    call = machine.start(create_file, "scripted", 3, True)
    assert not call.done
    finish(kept[0], status)
    machine.settle()
    assert call.value[0] == status
    assert bool(call.value[1]) == (status == STATUS_SUCCESS)
    assert not machine.thread.irps


def test_a_thread_that_ends_during_create_has_it_cancelled(machine: Any):
    kept: list[Any] = []
    machine.scripted.on[IRP_MJ_CREATE] = pend_into(kept)
    call = machine.start(create_file, "scripted", 3, True)
    kept[0].cancel_routine = lambda _, irp: (
        machine.io.cancel_lock.release(irp.cancel_irql),
        finish(irp, STATUS_CANCELLED),
    )
    machine.thread.terminate()
    machine.settle()
    assert call.value == (STATUS_CANCELLED, 0)
    assert machine.scripted.device.open_count == 0


def test_names(machine: Any):
    assert machine.call(create_file, "nothing", 3, True) == (STATUS_OBJECT_NAME_NOT_FOUND, 0)
    assert machine.call(create_file, "SCRIPTED", 3, True)[0] == STATUS_SUCCESS
    assert machine.call(create_file, "", 3, True)[0] == STATUS_OBJECT_NAME_NOT_FOUND


def test_an_exclusive_device_opens_once(machine: Any):
    device = create_device(machine.scripted.driver, "single", 1, exclusive=True)
    status, handle = machine.call(create_file, "single", 3, True)
    assert status == STATUS_SUCCESS
    assert machine.call(create_file, "single", 3, True)[0] == STATUS_ACCESS_DENIED
    machine.call(close_handle, handle)
    assert device.open_count == 0
    assert machine.call(create_file, "single", 3, True)[0] == STATUS_SUCCESS


def test_a_deleted_device_serves_its_open_files(machine: Any):
    handle = machine.open()
    delete_device(machine.scripted.device)
    assert machine.call(create_file, "scripted", 3, True)[0] == STATUS_OBJECT_NAME_NOT_FOUND
    assert machine.control(control(handle))[0] == STATUS_SUCCESS
    machine.call(close_handle, handle)
    assert machine.scripted.calls["CLOSE"] == 1


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (GENERIC_READ, FILE_GENERIC_READ),
        (GENERIC_READ | GENERIC_WRITE, FILE_READ_DATA | FILE_WRITE_DATA),
        (GENERIC_ALL, FILE_ALL_ACCESS),
        (FILE_READ_DATA, FILE_READ_DATA | SYNCHRONIZE),
    ],
)
def test_generic_rights_are_mapped(machine: Any, asked: int, granted: int):
    handle = machine.open(access=asked)
    assert machine.process.handle_table.entries[handle][1] & granted == granted


def test_a_duplicate_may_not_have_more_rights(machine: Any):
    handle = machine.open(access=FILE_READ_DATA)
    assert machine.call(duplicate_handle, handle, FILE_WRITE_DATA)[0] == STATUS_ACCESS_DENIED
    status, weaker = machine.call(duplicate_handle, handle, SYNCHRONIZE)
    assert status == STATUS_SUCCESS
    assert machine.process.handle_table.entries[weaker][1] == SYNCHRONIZE
    assert machine.call(duplicate_handle, 0x7777) == (STATUS_INVALID_HANDLE, 0)


def test_closing_twice(machine: Any):
    handle = machine.open()
    assert machine.call(close_handle, handle) == STATUS_SUCCESS
    assert machine.call(close_handle, handle) == STATUS_INVALID_HANDLE
    assert machine.scripted.calls["CLOSE"] == 1


def test_the_table_has_a_limit_and_numbers_are_not_reused_soon(machine: Any):
    machine.process.handle_table = table = HandleTable(limit=2)
    first = machine.open()
    machine.call(create_event, True, False)
    assert machine.call(create_file, "scripted", 3, True) == (STATUS_TOO_MANY_OPENED_FILES, 0)
    assert machine.call(create_event, True, False) == (STATUS_TOO_MANY_OPENED_FILES, 0)
    assert machine.call(duplicate_handle, first) == (STATUS_TOO_MANY_OPENED_FILES, 0)
    machine.call(close_handle, first)
    assert machine.open() > first
    assert all(handle % 4 == 0 for handle in table.entries)


def test_handle_numbers_wrap_past_those_in_use():
    table = HandleTable()
    table._next = 0xFFFF_FFFC
    assert [table.insert("a", 0), table.insert("b", 0)] == [0xFFFF_FFFC, 4]
    table._next = 0xFFFF_FFFC
    assert table.insert("c", 0) == 8
    assert table.remove(4) == "b"
    assert table.remove(4) is None


def test_no_handle_is_made_for_a_process_that_ends(machine: Any):
    handle = machine.open()
    machine.process.exiting = True
    assert machine.call(create_file, "scripted", 3, True) == (STATUS_THREAD_IS_TERMINATING, 0)
    assert machine.call(create_event, True, False) == (STATUS_THREAD_IS_TERMINATING, 0)
    assert machine.call(duplicate_handle, handle) == (STATUS_THREAD_IS_TERMINATING, 0)


# Events and waits


def test_events(machine: Any):
    status, handle = machine.call(create_event, True, False)
    assert status == STATUS_SUCCESS
    assert machine.call(wait_for_object, handle, 0) == STATUS_TIMEOUT
    assert machine.call(wait_for_object, handle, 1_000_000) == STATUS_TIMEOUT
    assert machine.call(set_event, handle) == STATUS_SUCCESS
    assert machine.call(query_event, handle) == (STATUS_SUCCESS, 1)
    assert machine.call(wait_for_object, handle, None) == STATUS_SUCCESS
    assert machine.call(reset_event, handle) == STATUS_SUCCESS
    assert machine.call(query_event, handle) == (STATUS_SUCCESS, 0)
    assert machine.call(set_event, 0x7777) == STATUS_INVALID_HANDLE
    assert machine.call(set_event, machine.open()) == STATUS_OBJECT_TYPE_MISMATCH
    _, weak = machine.call(duplicate_handle, handle, SYNCHRONIZE)
    assert machine.call(set_event, weak) == STATUS_ACCESS_DENIED


def test_a_wait_is_ended_by_an_alert_and_by_the_threads_end(machine: Any):
    _, handle = machine.call(create_event, False, False)
    call = machine.start(wait_for_object, handle, None)
    assert not call.done
    machine.thread.alert()
    machine.settle()
    assert call.value == STATUS_ALERTED
    call = machine.start(wait_for_object, handle, None)
    machine.thread.terminate()
    machine.settle()
    assert call.value == STATUS_THREAD_IS_TERMINATING


def test_waiting_for_a_file_waits_for_its_request(machine: Any):
    kept: list[Any] = []
    machine.scripted.on_control = pend_into(kept)
    handle = machine.open(synchronous=False)
    machine.control(control(handle))
    call = machine.start(wait_for_object, handle, None)
    assert not call.done
    finish(kept[0])
    machine.settle()
    assert call.value == STATUS_SUCCESS


def test_kernel_code_opens_a_device_by_name(machine: Any):
    def use() -> None:
        thread = machine.processor.current_thread
        status, file, device = get_device_object_pointer(machine.io, thread, "scripted", 3)
        assert status == STATUS_SUCCESS
        assert device is machine.scripted.device
        file.dereference()

    machine.in_kernel(use)
    assert machine.scripted.log == ["CREATE", "CLOSE"]
    thread = machine.thread
    result = get_device_object_pointer(machine.io, thread, "nothing", 3)
    assert result == (STATUS_OBJECT_NAME_NOT_FOUND, None, None)


def test_everything_shows_itself(machine: Any):
    handle = machine.open()
    shown = machine.io.inspect()
    assert shown["devices"]["scripted"]["open_count"] == 1
    assert shown["irps_allocated"] == 1
    assert machine.file_of(handle).inspect()["handles"] == 1
    assert f"{handle:#x}" in machine.process.handle_table.inspect()
