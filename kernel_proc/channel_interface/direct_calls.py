"""The no-op driver's direct-call interface: a request without an IRP, a callback at its end.

Rules: `submit` at <= DISPATCH_LEVEL; the callback runs at <= DISPATCH_LEVEL in any thread, from a
DPC unless the request was completed inline, and never waits.
Spec: WDK, Creating Device Interfaces That Export Functions (IRP_MN_QUERY_INTERFACE).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_NEITHER, NOOP_DEVICE_TYPE, ctl_code

# Sent as IRP_MJ_INTERNAL_DEVICE_CONTROL, so no user program can ask: the driver appends its
# table to the list it finds as UserBuffer.
IOCTL_INTERNAL_QUERY_DIRECT_CALLS: Final = ctl_code(
    NOOP_DEVICE_TYPE, 0xF00, METHOD_NEITHER, FILE_ANY_ACCESS
)


class DirectRequest:
    """One request of a kernel client, its buffers by reference; the client owns it.

    `completion` is one of COMPLETION_*; `status` and `information` are valid in the callback.
    """

    __slots__ = ("callback", "completion", "context", "information", "payload", "result", "status")

    def __init__(
        self,
        completion: int,
        payload: memoryview | None,
        result: memoryview | None,
        callback: Callable[["DirectRequest"], object],
        context: Any = None,
    ) -> None:
        self.completion = completion
        self.payload = payload
        self.result = result
        self.callback = callback
        self.context = context
        self.status = 0
        self.information = 0


class DirectCalls(NamedTuple):
    """The routines the driver exports; `submit` returns STATUS_PENDING or the final status.

    The callback is called in both cases.
    """

    submit: Callable[[DirectRequest], int]
