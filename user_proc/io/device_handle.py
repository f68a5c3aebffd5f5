"""Device handles as a Windows program has them: blocking or overlapped, raw or Pythonic.

`device_io_control` is DeviceIoControl with Python buffers; `nt_device_io_control` is the system
service with raw addresses, its returned status, and an IoStatusBlock that is written or left
alone exactly as NT does.

Rules: any thread; a file opened for synchronous I/O serves one request at a time.
Spec: WDK: NtDeviceIoControlFile, NtCancelIoFile; Win32: CreateFile, DeviceIoControl.
"""

from typing import TYPE_CHECKING, Final

from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_SYNCHRONOUS,
    KIND_CANCEL,
    KIND_CREATE,
    KIND_DEVICE_CONTROL,
    KIND_DUPLICATE,
)
from shared.nt_status import nt_error
from user_proc.errors import CallInProgress, NtStatusError, ProtocolError, SofthcaError
from user_proc.io.buffer_transfer import Pin, Transfer, plan_transfer
from user_proc.io.event_handle import EventHandle
from user_proc.io.io_status import IoStatusBlock
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.io.overlapped import Overlapped
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.listener import CompletionListener

if TYPE_CHECKING:
    from user_proc.io.buffer_transfer import Readable, Writable

_FIRST_FAILURE: Final = 0x80000000  # warnings and errors


class DeviceHandle(KernelObject):
    """An open device; a context manager that closes it."""

    __slots__ = ("_limit", "_listener", "_pin", "name")

    def __init__(
        self,
        channel: KernelChannel,
        name: str,
        handle: int,
        listener: CompletionListener | None,
        pin: Pin,
    ) -> None:
        super().__init__(channel, handle)
        self.name: Final = name
        self._limit: Final = channel.max_payload
        self._listener: Final = listener
        self._pin: Final = pin

    @property
    def overlapped(self) -> bool:
        """Tell whether it was opened for overlapped I/O."""
        return self._listener is not None

    def device_io_control(
        self,
        code: int,
        input: "Readable" = None,  # noqa: A002 - DeviceIoControl's word
        output: "Writable" = None,
    ) -> int:
        """Send a control code, wait for its end, and give Information.

        The output buffer holds what the driver returned, also when a warning is raised.
        """
        if self._listener is not None:
            return self.start(code, input, output).wait()
        flags, in_at, in_length, out_at, out_length, payload, view, keep = plan_transfer(
            code & 3, input, output, self._limit, self._pin
        )
        answer, body = self._channel.port().call(
            KIND_DEVICE_CONTROL, flags, self._handle, code, 0, in_at, out_at, in_length,
            out_length, 0, 0, payload, keep,
        )  # fmt: skip
        if body is not None:
            _store(view, body)
        if answer[6] >= _FIRST_FAILURE:
            raise NtStatusError(answer[6], answer[8])
        return answer[8]

    def start(
        self,
        code: int,
        input: "Readable" = None,  # noqa: A002 - DeviceIoControl's word
        output: "Writable" = None,
        apc_context: int = 0,
        event: EventHandle | None = None,
    ) -> Overlapped:
        """Send a control code without waiting for its end; the handle must be overlapped.

        Raises NtStatusError at once for a request that failed before anything was pended.
        """
        transfer = plan_transfer(code & 3, input, output, self._limit, self._pin)
        overlapped = Overlapped(transfer[6], transfer[7], apc_context)
        self._submit(code, transfer, overlapped, event)
        if overlapped.dropped:
            if nt_error(overlapped.returned):
                raise NtStatusError(overlapped.returned)
            overlapped.fail(
                SofthcaError(
                    "the driver completed the request with an error that it neither returned nor "
                    "announced by marking the IRP pending: nothing is delivered"
                )
            )
        return overlapped

    def nt_device_io_control(
        self,
        code: int,
        iosb: IoStatusBlock,
        *,
        input_address: int = 0,
        input_length: int = 0,
        output_address: int = 0,
        output_length: int = 0,
        event: EventHandle | None = None,
        apc_context: int = 0,
        keep: object = None,
    ) -> int:
        """Call NtDeviceIoControlFile with raw addresses and give the status it returned.

        On an overlapped handle `iosb` may be written after the return: wait for the event, or for
        the handle. The memory must stay valid until then; `keep` may hold it.
        """
        transfer = (0, input_address, input_length, output_address, output_length, None, None, keep)
        if self._listener is not None:
            overlapped = Overlapped(None, keep, apc_context, iosb)
            self._submit(code, transfer, overlapped, event)
            return overlapped.returned
        answer, _ = self._channel.port().call(
            KIND_DEVICE_CONTROL,
            file_handle=self._handle,
            control_code=code,
            event_handle=0 if event is None else event.handle,
            input_address=input_address,
            input_length=input_length,
            output_address=output_address,
            output_length=output_length,
            apc_context=apc_context,
            keep=keep,
        )
        if answer[2] & FLAG_IOSB_WRITTEN:
            iosb.information = answer[8]
            iosb.status = answer[9]
        return answer[6]

    def cancel(self) -> None:
        """Cancel the calling thread's requests on this file object (CancelIo)."""
        checked(self._channel.port().call(KIND_CANCEL, 0, self._handle)[0])

    def duplicate(self) -> "DeviceHandle":
        """Make another handle to the same file object (DuplicateHandle)."""
        answer, _ = self._channel.port().call(KIND_DUPLICATE, 0, self._handle)
        return DeviceHandle(self._channel, self.name, checked(answer)[3], self._listener, self._pin)

    def _submit(
        self, code: int, transfer: Transfer, overlapped: Overlapped, event: EventHandle | None
    ) -> None:
        """Send an overlapped request and let the answer, or later the listener, complete it."""
        listener = self._listener
        if listener is None:
            raise SofthcaError(f"{self.name!r} was not opened for overlapped I/O")
        flags, in_at, in_length, out_at, out_length, payload, _, _ = transfer
        port = self._channel.port()
        request_id = port.take_request_id()
        # Before it is sent: the completion may be here before the answer is.
        listener.expect(request_id, overlapped)
        try:
            answer, body = port.call(
                KIND_DEVICE_CONTROL, flags, self._handle, code,
                0 if event is None else event.handle, in_at, out_at, in_length, out_length,
                overlapped.apc_context, 0, payload, overlapped, request_id,
            )  # fmt: skip
        except CallInProgress:
            listener.forget(request_id)
            raise
        overlapped.returned = answer[6]
        if answer[2] & FLAG_COMPLETION_FOLLOWS:
            return
        listener.forget(request_id)
        if answer[2] & FLAG_IOSB_WRITTEN:
            overlapped.complete(answer[2], answer[9], answer[8], body)
        else:
            overlapped.dropped = True


def open_device(
    channel: KernelChannel, name: str, *, overlapped: bool, access: int, pin: Pin
) -> DeviceHandle:
    """Open a device by name (CreateFile)."""
    listener = channel.listener() if overlapped else None
    payload = name.encode()
    flags = FLAG_INPUT_INLINE | (0 if overlapped else FLAG_SYNCHRONOUS)
    answer, _ = channel.port().call(
        KIND_CREATE, flags, control_code=access, input_length=len(payload), payload=payload
    )
    return DeviceHandle(channel, name, checked(answer)[3], listener, pin)


def _store(view: memoryview | None, body: bytes) -> None:
    """Copy the output of an answer into the caller's buffer."""
    if view is None or len(body) > len(view):
        raise ProtocolError(f"the kernel returned {len(body)} bytes of output, more than asked for")
    view[: len(body)] = body
