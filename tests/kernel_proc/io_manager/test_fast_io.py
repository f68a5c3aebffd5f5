"""K30: fast I/O is tried first, with raw addresses; declined, an IRP follows."""

from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.completion_port import CompletionPort
from kernel_proc.io_manager.irp import IoStatusBlock, get_current_irp_stack_location
from kernel_proc.io_manager.system_services import DeviceControlRequest, create_event
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    KMODE_EXCEPTION_NOT_HANDLED,
    BugCheck,
)
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_IN_DIRECT, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_BUFFER_OVERFLOW,
    STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS,
)

ARENA = 0x7000_0000_0000
HOLE = 0x6000_0000_0000


class FastDriver:
    """Takes or declines; remembers the arguments it was called with."""

    def __init__(self, machine: Any, *, takes: bool, status: int = STATUS_SUCCESS) -> None:
        self.machine = machine
        self.takes = takes
        self.status = status
        self.calls: list[tuple[Any, ...]] = []
        self.buffers: list[Any] = []
        machine.scripted.driver.fast_io_device_control = self.fast
        machine.scripted.on_control = self.control

    def fast(self, *arguments: Any) -> bool:
        self.calls.append(arguments)
        if self.takes:
            iosb: IoStatusBlock = arguments[7]
            iosb.status, iosb.information = self.status, 5
        return self.takes

    def control(self, device: Any, irp: Any) -> int:
        location = get_current_irp_stack_location(irp)
        self.buffers.append((bytes(irp.system_buffer), location.output_buffer_length))
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        return STATUS_SUCCESS


def request(handle: int, method: int = METHOD_BUFFERED, **more: Any) -> DeviceControlRequest:
    return DeviceControlRequest(
        handle, ctl_code(0x8003, 0x800, method, 0), None, ARENA, 4, ARENA + 100, 8, **more
    )


def test_k30_the_routine_gets_raw_user_addresses_and_may_wait(machine: Any):
    driver = FastDriver(machine, takes=True)
    handle = machine.open()
    status, done = machine.control(request(handle))
    file, wait, *addresses, code, iosb, device = driver.calls[0]
    assert file is machine.file_of(handle)
    assert wait is True
    assert addresses == [ARENA, 4, ARENA + 100, 8]
    assert code == ctl_code(0x8003, 0x800, METHOD_BUFFERED, 0)
    assert isinstance(iosb, IoStatusBlock)
    assert device is machine.scripted.device
    assert (status, done.iosb_written, done.information) == (STATUS_SUCCESS, True, 5)
    assert machine.scripted.calls["DEVICE_CONTROL"] == 0
    assert machine.io.irps_allocated == 1  # the create
    assert not machine.file_of(handle).busy


def test_k30b_declined_an_irp_of_the_same_request_follows(machine: Any):
    driver = FastDriver(machine, takes=False)
    machine.memory[:4] = b"data"
    status, done = machine.control(request(machine.open()))
    assert status == STATUS_SUCCESS
    assert len(driver.calls) == 1
    assert driver.buffers == [(b"data\0\0\0\0", 8)]
    assert done.iosb_written


def test_what_travels_in_the_message_has_no_address_and_makes_an_irp(machine: Any):
    driver = FastDriver(machine, takes=True)
    machine.control(
        DeviceControlRequest(machine.open(), request(0).control_code, b"data", output_inline=True)
    )
    assert not driver.calls
    assert len(driver.buffers) == 1


@pytest.mark.parametrize("status", [STATUS_SUCCESS, STATUS_BUFFER_OVERFLOW, 0xC000_0001])
def test_the_result_is_delivered_whatever_it_is(machine: Any, status: int):
    FastDriver(machine, takes=True, status=status)
    handle = machine.open(synchronous=False)
    _, event = machine.call(create_event, True, False)
    port = machine.file_of(handle).completion_port = CompletionPort(machine.processor)
    returned, done = machine.control(request(handle, event_handle=event, apc_context=7))
    assert (returned, done.iosb_status) == (status, status)
    assert machine.file_of(event).read_state() == 1
    assert len(port) == 1
    machine.control(request(handle, apc_context=0))
    assert len(port) == 1


def test_a_port_excludes_a_user_apc(machine: Any):
    handle = machine.open(synchronous=False)
    machine.file_of(handle).completion_port = CompletionPort(machine.processor)
    assert machine.control(request(handle, user_apc=True))[0] == STATUS_INVALID_PARAMETER


@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_a_direct_methods_buffer_is_probed_before(machine: Any, method: int):
    driver = FastDriver(machine, takes=True)
    wrong = request(machine.open(), method)
    wrong.output_address = 2**47 - 4 if method == METHOD_IN_DIRECT else HOLE
    status, done = machine.control(wrong)
    assert status == STATUS_ACCESS_VIOLATION
    assert done.finished
    assert not driver.calls


@pytest.mark.parametrize("verifier", [False, True])
def test_an_exception_that_leaves_the_routine(new_machine: Any, verifier: bool):
    machine = new_machine(verifier=verifier)
    machine.scripted.driver.fast_io_device_control = lambda *_: 1 // 0
    with pytest.raises(BugCheck) as caught:
        machine.control(request(machine.open()))
    assert caught.value.code == KMODE_EXCEPTION_NOT_HANDLED


def test_c4_c6_apc_disable_count_changed(verified: Any):
    def fast(*_: Any) -> bool:
        verified.processor.current_thread.enter_critical_region()
        return True

    verified.scripted.driver.fast_io_device_control = fast
    with pytest.raises(BugCheck) as caught:
        verified.control(request(verified.open()))
    assert caught.value.code == DRIVER_VERIFIER_DETECTED_VIOLATION
    assert caught.value.parameters[0] == 0xC6
