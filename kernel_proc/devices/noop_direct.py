"""The no-op driver's direct calls: a request queued in a list, a DPC, a callback; no IRP.

Rules: <= DISPATCH_LEVEL; callbacks come at DISPATCH_LEVEL from a DPC, or from `submit` itself
when the request asks to be completed inline.
"""

from collections import deque
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kernel_proc.channel_interface.direct_calls import DirectCalls, DirectRequest
from kernel_proc.scheduling.dpc import Dpc
from shared.ioctl_codes import COMPLETION_DEVICE, COMPLETION_DPC, COMPLETION_INLINE
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_PENDING, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.devices.noop_hardware import NoopHardware
    from kernel_proc.scheduling.processor import Processor


class NoopDirect:
    """Requests that wait for the DPC, and those that wait for the hardware by tag.

    Tags of direct calls are negative, those of IRPs positive: the hardware tells them apart by
    nothing else. The list is an interlocked one: a single append or removal needs no lock.
    """

    __slots__ = ("_commanded", "_dpc", "_hardware", "_next_tag", "_queue", "calls")

    def __init__(self, processor: "Processor", hardware: "NoopHardware") -> None:
        self._hardware = hardware
        self._queue: deque[DirectRequest] = deque()
        self._commanded: dict[int, DirectRequest] = {}
        self._next_tag = 0
        self._dpc = Dpc(processor, self._drain)
        self.calls = DirectCalls(self.submit)

    def submit(self, request: DirectRequest) -> int:
        """Take a request; its callback is called when it is done."""
        payload = request.payload
        if payload is not None:
            crc32(payload)
            length, result = len(payload), request.result
            if result is not None:
                if len(result) != length:  # else no part of either has to be cut out first
                    length = min(length, len(result))
                    payload, result = payload[:length], result[:length]
                result[:] = payload
            request.information = length
        completion = request.completion
        if completion == COMPLETION_DPC:
            self._queue.append(request)
            self._dpc.insert()
            return STATUS_PENDING
        if completion == COMPLETION_INLINE:
            request.callback(request)
            return request.status
        if completion == COMPLETION_DEVICE:
            self._next_tag = tag = self._next_tag - 1
            self._commanded[tag] = request
            self._hardware.command(tag)
            return STATUS_PENDING
        request.status = STATUS_INVALID_PARAMETER
        request.callback(request)
        return STATUS_INVALID_PARAMETER

    def _drain(self, dpc: Dpc, context: Any, argument1: Any, argument2: Any) -> None:
        queue = self._queue
        while queue:
            request = queue.popleft()
            request.status = STATUS_SUCCESS
            request.callback(request)

    def finish(self, tag: int) -> None:
        """End the request of a finished command; called by the driver's DPC."""
        request = self._commanded.pop(tag)
        request.status = STATUS_SUCCESS
        request.callback(request)
