"""The table of IRPs: who holds each, and its state from the first dispatch routine to its APC."""

from typing import Any

from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DeviceObject
from kernel_proc.io_manager.irp import Irp
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.system_services import device_io_control_file
from shared.ioctl_codes import ctl_code
from shared.nt_status import STATUS_PENDING, STATUS_SUCCESS

CODE = ctl_code(0x8003, 0x800, 0, 0)


def test_an_irp_is_shown_wherever_it_is(machine: Any):
    queue = CancelSafeQueue(machine.processor)
    seen: list[dict[str, Any]] = []

    def look() -> None:
        (row,) = machine.io.inspect()["irps"]
        seen.append(row)

    def keep(device: DeviceObject, irp: Irp) -> int:
        look()
        queue.insert(irp)
        return STATUS_PENDING

    def finish() -> None:
        irp = queue.remove_next()
        assert irp is not None
        irp.status = STATUS_SUCCESS
        irp.information = 0
        complete_request(irp)
        look()

    handle = machine.open()
    machine.scripted.on_control = keep
    call = machine.start(device_io_control_file, DeviceControlRequest(handle, CODE, b"x"))
    look()
    machine.in_kernel(finish)
    machine.settle()
    assert call.value == STATUS_SUCCESS
    assert machine.io.inspect()["irps"] == []
    in_driver, pending, completed = seen
    assert [row["state"] for row in seen] == ["in a driver", "pending", "completed"]
    assert [row["cancellable"] for row in seen] == [False, True, False]
    assert in_driver["held_by"] == pending["held_by"] == "device 'scripted'"
    assert completed["held_by"] == "its creator"
    for row in seen:
        assert row["function"] == "DEVICE_CONTROL"
        assert row["thread"] == machine.thread.number
        assert (row["process_number"], row["pid"]) == (machine.process.number, 1)
    assert in_driver["code"] == pending["code"] == CODE


def test_the_waiting_thread_says_for_what(machine: Any):
    queue = CancelSafeQueue(machine.processor)
    handle = machine.open()

    def keep(device: DeviceObject, irp: Irp) -> int:
        queue.insert(irp)
        return STATUS_PENDING

    machine.scripted.on_control = keep
    machine.start(device_io_control_file, DeviceControlRequest(handle, CODE, b"x"))
    rows = {row["thread"]: row for row in machine.processor.dispatcher.inspect()["thread_table"]}
    row = rows[machine.thread.number]
    assert (row["state"], row["irps"], row["system"]) == ("waiting", 1, False)
    assert row["waits_for"] == machine.thread.describe().partition(" waiting for ")[2]
    assert row["waits_for"] != ""
    irp = queue.remove_next()
    assert irp is not None

    def finish() -> None:
        irp.status = STATUS_SUCCESS
        complete_request(irp)

    machine.in_kernel(finish)
    machine.settle()
    assert machine.thread.inspect()["waits_for"] == ""
