"""Requests the no-op driver holds: cancelled, cleaned up and run down in every state."""

from typing import Any

import pytest

from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.driver_object import DeviceObject
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    free_irp,
    get_next_irp_stack_location,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_DEVICE_CONTROL
from kernel_proc.io_manager.system_services import cancel_io_file, run_down_process
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from shared.ioctl_codes import COMPLETION_DEVICE, COMPLETION_DPC, METHOD_BUFFERED, noop_code
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_MORE_PROCESSING_REQUIRED,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from tests.kernel_proc.devices.user_box import UserBox, buffered

DEVICE = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)


class OwnIrp:
    """A hand-built request; `ends` collects every status it was completed with."""

    def __init__(self, box: UserBox, completion: int) -> None:
        self.ends: list[int] = []
        self.irp = allocate_irp(box.processor, 1)
        self._device = box.noop
        location = get_next_irp_stack_location(self.irp)
        location.major_function = IRP_MJ_DEVICE_CONTROL
        location.io_control_code = noop_code(METHOD_BUFFERED, completion)
        set_completion_routine(self.irp, self._completed)

    def send(self) -> int:
        return call_driver(self._device, self.irp)

    def _completed(self, device: DeviceObject | None, irp: Irp, context: Any) -> int:
        self.ends.append(irp.status)
        free_irp(irp)
        return STATUS_MORE_PROCESSING_REQUIRED


@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
def test_cancelled_while_the_driver_holds_it(box: UserBox, completion: int):
    def body() -> None:
        request = OwnIrp(box, completion)
        old = box.processor.raise_irql(DISPATCH_LEVEL)  # the DPC waits: the request stays queued
        assert request.send() == STATUS_PENDING
        assert sum(box.pended.values()) == 1
        assert cancel_irp(request.irp)
        assert request.ends == [STATUS_CANCELLED]
        assert sum(box.pended.values()) == 0
        box.processor.lower_irql(old)
        assert request.ends == [STATUS_CANCELLED]

    box.processor.run_thread(body)
    # What the hardware says later about a command given up is dropped.
    done = box.noop.device_extension.inspect()["commands_done"]
    box.processor.run_thread(lambda: None)
    assert box.noop.device_extension.inspect()["commands_done"] >= done
    assert box.processor.bug_checked is None


@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
def test_cancelled_before_the_driver_had_it(box: UserBox, completion: int):
    def body() -> None:
        request = OwnIrp(box, completion)
        assert not cancel_irp(request.irp)
        assert request.send() == STATUS_PENDING
        assert request.ends == [STATUS_CANCELLED]

    box.processor.run_thread(body)


@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
def test_cancelling_one_of_three_leaves_the_others(box: UserBox, completion: int):
    def body() -> list[OwnIrp]:
        requests = [OwnIrp(box, completion) for _ in range(3)]
        old = box.processor.raise_irql(DISPATCH_LEVEL)
        for request in requests:
            request.send()
        assert cancel_irp(requests[1].irp)
        box.processor.lower_irql(old)
        return requests

    requests = box.processor.run_thread(body)
    box.processor.run_until(lambda: all(request.ends for request in requests))
    ends = [request.ends for request in requests]
    assert ends == [[STATUS_SUCCESS], [STATUS_CANCELLED], [STATUS_SUCCESS]]


def test_one_dpc_completes_all_that_were_queued(box: UserBox):
    def body() -> list[OwnIrp]:
        requests = [OwnIrp(box, COMPLETION_DPC) for _ in range(16)]
        dpcs = box.processor.dpcs
        old = box.processor.raise_irql(DISPATCH_LEVEL)
        for request in requests:
            request.send()
        assert box.pended["queued"] == 16
        box.processor.lower_irql(old)
        assert box.processor.dpcs - dpcs == 1
        return requests

    requests = box.processor.run_thread(body)
    assert [request.ends for request in requests] == [[STATUS_SUCCESS]] * 16


def test_cancel_io_cancels_what_the_device_has(box: UserBox):
    handle = box.open()
    request = buffered(handle, DEVICE, b"abc", 3)

    def control_then_cancel(io: Any, thread: Any) -> int:
        from kernel_proc.io_manager.system_services import device_io_control_file

        assert device_io_control_file(io, thread, request) == STATUS_PENDING
        return cancel_io_file(io, thread, handle)

    assert box.service(control_then_cancel) == STATUS_SUCCESS
    assert (request.iosb_status, request.information) == (STATUS_CANCELLED, 0)
    box.close(handle)


def test_closing_the_last_handle_cancels_the_requests_of_that_file_alone(box: UserBox):
    closing, staying = box.open(), box.open()
    given_up, kept = buffered(closing, DEVICE), buffered(staying, DEVICE)

    def control_both_then_close(io: Any, thread: Any) -> int:
        from kernel_proc.io_manager.system_services import close_handle, device_io_control_file

        assert device_io_control_file(io, thread, given_up) == STATUS_PENDING
        assert device_io_control_file(io, thread, kept) == STATUS_PENDING
        return close_handle(io, thread, closing)

    assert box.service(control_both_then_close) == STATUS_SUCCESS
    assert given_up.iosb_status == STATUS_CANCELLED
    box.finish(kept)
    assert kept.iosb_status == STATUS_SUCCESS
    box.close(staying)


def test_the_end_of_a_process_leaves_nothing_in_the_driver(box: UserBox):
    handle = box.open()
    request = buffered(handle, DEVICE)
    assert box.control(request) == STATUS_PENDING
    ended = create_system_thread(box.processor, run_down_process, box.io, box.process)
    box.processor.run_until(lambda: ended.ended)
    assert box.pended == {"queued": 0, "commanded": 0}
    assert box.noop.open_count == 0
