"""S1 to S3 in process: what the public sioctl sample answers, by each transfer method."""

from typing import Any

import pytest

from kernel_proc.io_manager.system_services import DeviceControlRequest
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_IN_DIRECT, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS,
)
from tests.drivers.sioctl import CODES, DEVICE_TYPE, MESSAGE, METHODS, control

ARENA = 0x7000_0000_0000
OUTPUT = ARENA + 0x100
OLD, PRESENT = False, True


def ask(machine: Any, form: bool, code: int, input_length: int, room: int) -> tuple[int, Any]:
    machine.scripted.on_control = lambda _, irp: control(form, irp)
    machine.memory[:8] = b"question"
    machine.memory[0x100:0x140] = b"#" * 64
    request = DeviceControlRequest(machine.open(), code, None, ARENA, input_length, OUTPUT, room)
    status, request = machine.control(request)
    return status, request


def output(machine: Any) -> bytes:
    return bytes(machine.memory[0x100:0x140]).rstrip(b"#")


@pytest.mark.parametrize("form", [OLD, PRESENT])
@pytest.mark.parametrize("method", METHODS)
def test_s1_a_length_of_zero_is_an_invalid_parameter(machine: Any, form: bool, method: int):
    for lengths in ((0, 64), (8, 0), (0, 0)):
        assert ask(machine, form, CODES[method], *lengths)[0] == STATUS_INVALID_PARAMETER
    assert output(machine) == b""


@pytest.mark.parametrize("method", METHODS)
def test_s1_the_present_form_refuses_an_output_not_above_37(machine: Any, method: int):
    assert ask(machine, PRESENT, CODES[method], 8, 37)[0] == STATUS_INVALID_PARAMETER
    assert output(machine) == b""
    assert ask(machine, PRESENT, CODES[method], 8, 38)[0] == STATUS_SUCCESS


def test_s1_an_unknown_code_is_an_invalid_device_request(machine: Any):
    unknown = ctl_code(DEVICE_TYPE, 0xA00, METHOD_BUFFERED, 0)
    assert ask(machine, OLD, unknown, 8, 64)[0] == STATUS_INVALID_DEVICE_REQUEST


@pytest.mark.parametrize("room", [1, 10, 37, 38, 39, 64])
def test_s2_buffered_as_much_of_the_message_as_fits(machine: Any, room: int):
    status, request = ask(machine, OLD, CODES[METHOD_BUFFERED], 8, room)
    assert (status, request.information) == (STATUS_SUCCESS, min(room, 38))
    assert output(machine) == MESSAGE[:room]


@pytest.mark.parametrize("room", [38, 64])
def test_s2_buffered_the_present_form_always_has_38(machine: Any, room: int):
    status, request = ask(machine, PRESENT, CODES[METHOD_BUFFERED], 8, room)
    assert (status, request.information) == (STATUS_SUCCESS, 38)
    assert output(machine) == MESSAGE


@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_s3_a_change_of_the_system_buffer_never_reaches_the_caller(machine: Any, method: int):
    status, request = ask(machine, OLD, CODES[method], 8, 64)
    assert (status, request.information) == (STATUS_SUCCESS, 64)  # bytes of the MDL
    assert bytes(machine.memory[:8]) == b"question"
    assert output(machine) == (MESSAGE if method == METHOD_OUT_DIRECT else b"")
