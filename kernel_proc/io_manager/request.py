"""What a user thread asks with NtDeviceIoControlFile, and the result block it gets back.

Rules: filled by the server, then the I/O manager's until `finished`.
Spec: WDK, NtDeviceIoControlFile; IO_STATUS_BLOCK.
"""

from collections.abc import Callable

from shared.nt_status import status_name


class DeviceControlRequest:
    """One device control request and its IoStatusBlock.

    Input and output each travel inline (`input`, `output_inline`) or stay at a user address.
    METHOD_NEITHER, and the output of the direct methods, need addresses.

    `finished` is False only while an IRP is outstanding; `on_finished` is then called at the end
    of its completion APC. Nothing is called for what was finished when the service returned.
    `on_written` is called on an overlapped file when the result is there and before others are
    told of it, by event, packet or APC: always when the service has returned, else only where
    another thread can be told.
    A request that is `given_up` before it has an IRP does not get as far as the driver.
    `iosb_written` tells whether NT would have written the block; otherwise only the value
    returned by the service tells what happened.
    """

    __slots__ = (
        "apc_context",
        "control_code",
        "copy_fault",
        "event_handle",
        "finished",
        "given_up",
        "handle",
        "information",
        "input",
        "input_address",
        "input_length",
        "iosb_status",
        "iosb_written",
        "on_finished",
        "on_written",
        "output",
        "output_address",
        "output_inline",
        "output_length",
        "returned",
        "trace_id",
        "user_apc",
    )

    def __init__(
        self,
        handle: int = 0,
        control_code: int = 0,
        input: bytes | bytearray | memoryview | None = None,  # noqa: A002 - the field's name
        input_address: int = 0,
        input_length: int = 0,
        output_address: int = 0,
        output_length: int = 0,
        output_inline: bool = False,
        event_handle: int = 0,
        apc_context: int = 0,
        on_finished: "Callable[[DeviceControlRequest], object] | None" = None,
        user_apc: bool = False,
        trace_id: int = 0,
        on_written: "Callable[[DeviceControlRequest], object] | None" = None,
    ) -> None:
        self.handle = handle
        self.control_code = control_code
        self.input = input
        self.input_address = input_address
        self.input_length = input_length
        self.output_address = output_address
        self.output_length = output_length
        self.output_inline = output_inline
        self.event_handle = event_handle
        self.apc_context = apc_context
        self.on_finished = on_finished
        self.on_written = on_written
        self.user_apc = user_apc
        self.trace_id = trace_id
        self.iosb_written = False
        self.iosb_status = 0
        self.information = 0
        self.output: bytes | None = None
        self.copy_fault = 0
        self.finished = True
        self.returned = False
        self.given_up = False

    def reset(self) -> None:
        """Forget a finished request's payload and result; the object can be filled again."""
        self.input = None
        self.iosb_written = False
        self.iosb_status = 0
        self.information = 0
        self.output = None
        self.copy_fault = 0
        self.returned = False
        self.given_up = False

    def __repr__(self) -> str:
        state = status_name(self.iosb_status) if self.iosb_written else "IOSB untouched"
        return (
            f"DeviceControlRequest(handle={self.handle:#x}, code={self.control_code:#x}, "
            f"finished={self.finished}, {state}, information={self.information})"
        )
