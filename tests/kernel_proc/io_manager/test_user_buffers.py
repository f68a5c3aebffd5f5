"""Raw buffers: a user's by address, a kernel client's by reference, each copy counted."""

from typing import Any

import pytest

from kernel_proc.io_manager.irp import Irp, allocate_irp
from kernel_proc.io_manager.user_buffers import read_user_buffer, write_user_buffer
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_ACCESS_VIOLATION, STATUS_INVALID_USER_BUFFER

ADDRESS = 0x7000_0000_0000


def irp_of(machine: Any, thread: KThread | None) -> Irp:
    """An IRP a user thread has sent, or one of a kernel client."""
    irp = allocate_irp(machine.processor, 1)
    if thread is not None:
        irp.thread = thread
        irp.requestor_mode = USER_MODE
    return irp


def counted(machine: Any) -> tuple[int, int]:
    return machine.io.copy_counters.copies, machine.io.copy_counters.bytes_copied


def test_a_users_bytes_are_reached_by_address(machine: Any):
    irp = irp_of(machine, machine.thread)
    machine.memory[:5] = b"hello"
    assert machine.in_process(read_user_buffer, irp, ADDRESS, 5) == b"hello"
    machine.in_process(write_user_buffer, irp, ADDRESS + 1, b"ALL")
    assert bytes(machine.memory[:5]) == b"hALLo"
    assert counted(machine) == (2, 8)


def test_a_kernel_clients_buffer_is_the_object(machine: Any):
    irp = irp_of(machine, None)
    buffer = bytearray(b"hello")
    assert machine.in_kernel(read_user_buffer, irp, buffer, 4) == b"hell"
    machine.in_kernel(write_user_buffer, irp, buffer, memoryview(b"AB"))
    assert buffer == b"ABllo"
    assert counted(machine) == (2, 6)


def status_of(machine: Any, routine: Any, *args: Any) -> int:
    def call() -> int:
        with pytest.raises(RaisedStatus) as caught:
            routine(*args)
        return caught.value.status

    status: int = machine.in_process(call)
    return status


def test_a_fault_is_a_status_and_counts_nothing(machine: Any):
    irp = irp_of(machine, machine.thread)
    assert status_of(machine, read_user_buffer, irp, 0x10, 5) == STATUS_ACCESS_VIOLATION
    assert status_of(machine, write_user_buffer, irp, 0x10, b"x") == STATUS_ACCESS_VIOLATION
    assert counted(machine) == (0, 0)


def test_an_irp_of_no_process_has_no_user_memory(machine: Any):
    irp = irp_of(machine, None)
    irp.requestor_mode = USER_MODE
    assert status_of(machine, read_user_buffer, irp, ADDRESS, 1) == STATUS_INVALID_USER_BUFFER
