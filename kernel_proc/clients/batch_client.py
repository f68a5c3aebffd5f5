"""Clients that give many requests before they wait: hand-built IRPs, and direct calls.

Given at DISPATCH_LEVEL, the requests of a batch are all queued when the IRQL falls, and one DPC
completes them. Given at PASSIVE_LEVEL to the hardware, they are in flight together, and one
interrupt finishes them.

Rules: called at PASSIVE_LEVEL; completions come at <= DISPATCH_LEVEL.
Spec: WDK, KeRaiseIrql; Completing IRPs from a DpcForIsr routine.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_proc.channel_interface.direct_calls import DirectRequest
from kernel_proc.clients.direct_client import query_direct_calls
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    free_irp,
    get_next_irp_stack_location,
    set_completion_routine,
)
from kernel_proc.io_manager.irp_flags import IRP_MJ_INTERNAL_DEVICE_CONTROL
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.clock import now_ns
from shared.ioctl_codes import COMPLETION_DPC, METHOD_NEITHER, noop_code
from shared.nt_status import STATUS_MORE_PROCESSING_REQUIRED, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject


class _RequestBatch(ABC):
    """What both kinds share: buffers, an event for the last one, and the times of each."""

    __slots__ = (
        "_all_done",
        "_begins",
        "_device",
        "_failure",
        "_first",
        "_left",
        "_length",
        "_payload",
        "_raised",
        "_result",
        "_samples",
        "depth",
    )

    def __init__(self, device: "DeviceObject", completion: int, payload: int, depth: int) -> None:
        self.depth = depth
        self._device = device
        self._raised = completion == COMPLETION_DPC
        self._length = payload
        self._payload = memoryview(bytes(payload)) if payload else None
        self._result = memoryview(bytearray(payload)) if payload else None
        self._all_done = Event(device.processor, notification=False)
        self._begins = [0] * depth
        self._samples: array[int] = array("Q")
        self._first = 0
        self._left = 0
        self._failure = STATUS_SUCCESS

    def __call__(self, samples: "array[int]", first: int, count: int) -> None:
        """Give `count` requests, wait for all, and store their times from `first` on."""
        self._samples, self._first, self._left = samples, first, count
        if self._raised:
            processor = self._device.processor
            old = processor.raise_irql(DISPATCH_LEVEL)
            self._give(count)
            processor.lower_irql(old)
        else:
            self._give(count)
        self._all_done.wait()
        if self._failure != STATUS_SUCCESS:
            raise RaisedStatus(self._failure, "benchmark request")

    @abstractmethod
    def _give(self, count: int) -> None:
        """Give `count` requests; each ends in `_note_end`."""

    def _note_end(self, index: int, status: int) -> None:
        self._samples[self._first + index] = now_ns() - self._begins[index]
        if status != STATUS_SUCCESS:
            self._failure = status
        self._left -= 1
        if not self._left:
            self._all_done.set()

    def close(self) -> None:
        """Let go of the buffers."""
        self._payload = self._result = None


class IrpBatch(_RequestBatch):
    """An IRP allocated for each request and freed by its completion routine."""

    __slots__ = ("_code",)

    def __init__(self, device: "DeviceObject", completion: int, payload: int, depth: int) -> None:
        super().__init__(device, completion, payload, depth)
        self._code = noop_code(METHOD_NEITHER, completion)

    def _give(self, count: int) -> None:
        device, begins, now = self._device, self._begins, now_ns
        length = self._length
        for index in range(count):
            begins[index] = now()
            irp = allocate_irp(device.processor, device.stack_size)
            location = get_next_irp_stack_location(irp)
            location.major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL
            location.io_control_code = self._code
            location.input_buffer_length = location.output_buffer_length = length
            location.type3_input_buffer = self._payload
            irp.user_buffer = self._result
            set_completion_routine(irp, self._completed, index)
            call_driver(device, irp)

    def _completed(self, device: "DeviceObject | None", irp: Irp, context: Any) -> int:
        status = irp.status
        free_irp(irp)
        self._note_end(context, status)
        return STATUS_MORE_PROCESSING_REQUIRED


class DirectBatch(_RequestBatch):
    """A request object for each direct call, ended by its callback."""

    __slots__ = ("_completion", "_submit")

    def __init__(self, device: "DeviceObject", completion: int, payload: int, depth: int) -> None:
        super().__init__(device, completion, payload, depth)
        self._submit: Callable[[DirectRequest], int] = query_direct_calls(device).submit
        self._completion = completion

    def _give(self, count: int) -> None:
        begins, now, submit, completion = self._begins, now_ns, self._submit, self._completion
        payload, result, callback = self._payload, self._result, self._completed
        for index in range(count):
            begins[index] = now()
            submit(DirectRequest(completion, payload, result, callback, index))

    def _completed(self, request: DirectRequest) -> None:
        self._note_end(request.context, request.status)
