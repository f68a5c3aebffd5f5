"""Completion ports through their services; which requests report is W8 in the status matrix."""

from typing import Any

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.completion_port import CompletionPacket
from kernel_proc.io_manager.irp import mark_irp_pending
from kernel_proc.io_manager.port_services import (
    create_io_completion,
    remove_io_completion,
    set_file_completion,
    set_io_completion,
)
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    close_handle,
    create_event,
    duplicate_handle,
)
from shared.ioctl_codes import ctl_code
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_ALERTED,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
)

CODE = ctl_code(0x8003, 0x800, 0, 0)


def make_port(machine: Any) -> int:
    status, port = machine.call(create_io_completion)
    assert status == STATUS_SUCCESS
    assert isinstance(port, int)
    return port


def test_w8_a_waiting_thread_gets_the_packet_of_a_request(machine: Any):
    kept: list[Any] = []

    def control(device: Any, irp: Any) -> int:
        mark_irp_pending(irp)
        kept.append(irp)
        return STATUS_PENDING

    machine.scripted.on_control = control
    port, handle = make_port(machine), machine.open(synchronous=False)
    assert machine.call(set_file_completion, handle, port, 42) == STATUS_SUCCESS
    machine.control(DeviceControlRequest(handle, CODE, b"x", apc_context=7))
    machine.control(DeviceControlRequest(handle, CODE, b"x"))
    waiter = machine.start(remove_io_completion, port, None, thread=machine.new_thread())
    assert not waiter.done
    for irp in kept:
        irp.status = STATUS_SUCCESS
        irp.information = 3
        complete_request(irp)
    machine.settle()
    assert waiter.value == (STATUS_SUCCESS, CompletionPacket(42, 7, STATUS_SUCCESS, 3))
    assert machine.call(remove_io_completion, port, 1000) == (STATUS_TIMEOUT, None)


def test_packets_come_in_order_one_for_each_waiter(machine: Any):
    port = make_port(machine)
    waiters = [
        machine.start(remove_io_completion, port, None, thread=machine.new_thread())
        for _ in range(2)
    ]
    packets = [CompletionPacket(0, number, STATUS_SUCCESS, 0) for number in range(3)]
    for packet in packets:
        assert machine.call(set_io_completion, port, packet) == STATUS_SUCCESS
    machine.settle()
    assert [waiter.value[1] for waiter in waiters] == packets[:2]
    assert machine.call(remove_io_completion, port, 0) == (STATUS_SUCCESS, packets[2])


def test_a_waiter_is_ended_by_an_alert_and_by_its_end(machine: Any):
    port = make_port(machine)
    waiter = machine.start(remove_io_completion, port, None)
    machine.thread.alert()
    machine.settle()
    assert waiter.value == (STATUS_ALERTED, None)
    waiter = machine.start(remove_io_completion, port, None)
    machine.thread.terminate()
    machine.settle()
    assert waiter.value == (STATUS_THREAD_IS_TERMINATING, None)
    assert machine.call(create_io_completion) == (STATUS_THREAD_IS_TERMINATING, 0)


def test_which_files_can_report(machine: Any):
    port, handle = make_port(machine), machine.open(synchronous=False)
    assert machine.call(set_file_completion, machine.open(), port, 1) == STATUS_INVALID_PARAMETER
    assert machine.call(set_file_completion, handle, port, 1) == STATUS_SUCCESS
    assert machine.call(set_file_completion, handle, port, 1) == STATUS_INVALID_PARAMETER


def test_handles_are_checked(machine: Any):
    port, handle = make_port(machine), machine.open(synchronous=False)
    _, event = machine.call(create_event, True, False)
    _, weak = machine.call(duplicate_handle, port, 0)
    packet = CompletionPacket(0, 0, 0, 0)
    assert machine.call(set_file_completion, event, port, 1) == STATUS_OBJECT_TYPE_MISMATCH
    for bad, status in (
        (0x7777, STATUS_INVALID_HANDLE),
        (event, STATUS_OBJECT_TYPE_MISMATCH),
        (weak, STATUS_ACCESS_DENIED),
    ):
        assert machine.call(set_file_completion, handle, bad, 1) == status
        assert machine.call(remove_io_completion, bad, 0) == (status, None)
        assert machine.call(set_io_completion, bad, packet) == status


def test_the_port_outlives_its_handle_for_its_files(machine: Any):
    port, handle = make_port(machine), machine.open(synchronous=False)
    machine.call(set_file_completion, handle, port, 1)
    machine.call(close_handle, port)
    machine.control(DeviceControlRequest(handle, CODE, b"x", apc_context=9))
    assert len(machine.file_of(handle).completion_port) == 1
