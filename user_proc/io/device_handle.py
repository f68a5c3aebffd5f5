"""Device handles as a Windows program has them: blocking or overlapped, raw or Pythonic.

`device_io_control` is DeviceIoControl with Python buffers; `nt_device_io_control` is the system
service with raw addresses, its returned status, and an IoStatusBlock that is written or left
alone exactly as NT does.

Rules: any thread; a file opened for synchronous I/O serves one request at a time.
Spec: WDK: NtDeviceIoControlFile, NtCancelIoFile, NtCancelIoFileEx; Win32: CreateFile,
DeviceIoControl, ReadFileEx (completion routines).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from shared.envelope import (
    FLAG_ALERTABLE,
    FLAG_ANY_THREAD,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_SYNCHRONOUS,
    FLAG_USER_APC,
    KIND_CANCEL,
    KIND_CREATE,
    KIND_DELAY,
    KIND_DEVICE_CONTROL,
)
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_CANCELLED,
    STATUS_NOT_FOUND,
    STATUS_OBJECT_NAME_INVALID,
    STATUS_USER_APC,
    nt_error,
)
from shared.trace_points import USER_CALL, USER_COPIED, trace
from user_proc.errors import CallInProgress, NtStatusError, ProtocolError, SofthcaError
from user_proc.io.buffer_transfer import Pin, plan_raw, plan_transfer
from user_proc.io.event_handle import EventHandle
from user_proc.io.io_status import IoStatusBlock
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.io.overlapped import Overlapped
from user_proc.io.overlapped_sending import send_overlapped
from user_proc.io.waiting import wait_in_kernel
from user_proc.transport.completion_table import CompletionTable
from user_proc.transport.field_limits import UnpackableField
from user_proc.transport.kernel_channel import KernelChannel

if TYPE_CHECKING:
    from user_proc.io.buffer_transfer import Readable, Writable

#: Runs in the thread that started the request, when that thread waits alertably.
OverlappedRoutine = Callable[[Overlapped], object]
#: The same for `nt_device_io_control`: ApcContext and status block.
ApcRoutine = Callable[[int, IoStatusBlock], object]

_FIRST_FAILURE: Final = 0x80000000  # warnings and errors
_BROKEN_OFF: Final = frozenset({STATUS_USER_APC, STATUS_ALERTED, STATUS_CANCELLED})


class DeviceHandle(KernelObject):
    """An open device; a context manager that closes it."""

    __slots__ = ("_alertable", "_limit", "_listener", "_pin", "name")

    def __init__(
        self,
        channel: KernelChannel,
        name: str,
        handle: int,
        listener: CompletionTable | None,
        pin: Pin,
        alertable: bool = False,
    ) -> None:
        super().__init__(channel, handle)
        self.name: Final = name
        self._limit: Final = channel.max_payload
        self._listener: Final = listener
        self._pin: Final = pin
        self._alertable: Final = alertable

    @property
    def overlapped(self) -> bool:
        """Tell whether it was opened for overlapped I/O."""
        return self._listener is not None

    def device_io_control(
        self,
        code: int,
        input: "Readable" = None,  # noqa: A002 - DeviceIoControl's word
        output: "Writable" = None,
        *,
        raw: bool = False,
    ) -> int:
        """Send a control code, wait for its end, and give Information.

        The output buffer holds what the driver returned, also when a warning is raised. With
        `raw` both buffers go by address whatever the method, as a driver's fast I/O needs them.
        """
        if self._listener is not None:
            return self.start(code, input, output, raw=raw).wait()
        port = self._channel.port()
        request_id = 0
        if trace.enabled:
            request_id = port.take_request_id()
            trace.record(USER_CALL, request_id)
        flags, in_at, in_length, out_at, out_length, payload, view, keep = (
            plan_raw(code & 3, input, output, self._pin)
            if raw
            else plan_transfer(code & 3, input, output, self._limit, self._pin)
        )
        answer, body = port.call(
            KIND_DEVICE_CONTROL, flags, self._handle, code, 0, in_at, out_at, in_length,
            out_length, 0, 0, payload, keep, request_id,
        )  # fmt: skip
        if body is not None:
            _store(view, body)
        if request_id:
            trace.record(USER_COPIED, request_id)
        if answer[6] >= _FIRST_FAILURE or self._alertable:
            self._judge(answer[6], answer[8])
        return answer[8]

    def start(
        self,
        code: int,
        input: "Readable" = None,  # noqa: A002 - DeviceIoControl's word
        output: "Writable" = None,
        apc_context: int = 0,
        event: EventHandle | None = None,
        apc: OverlappedRoutine | None = None,
        *,
        raw: bool = False,
    ) -> Overlapped:
        """Send a control code without waiting for its end; the handle must be overlapped.

        At the end `event` is set; `apc` is run with the Overlapped in this thread's next
        alertable wait, or a packet with `apc_context`, if that is not 0, goes to the file's port.
        Raises NtStatusError at once for a request that failed before anything was pended.
        """
        port = self._channel.port()
        request_id = port.take_request_id()
        if trace.enabled:
            trace.record(USER_CALL, request_id)
        transfer = (
            plan_raw(code & 3, input, output, self._pin)
            if raw
            else plan_transfer(code & 3, input, output, self._limit, self._pin)
        )
        listener = self._overlapped_listener()
        overlapped = Overlapped(
            request_id,
            listener.new_flag(),
            transfer[6],
            transfer[7],
            apc_context,
            None,
            None if apc is None else port.apcs,
        )
        if apc is not None:
            port.apcs.expect(request_id, partial(apc, overlapped))
        send_overlapped(
            self._channel, listener, port, self._handle, code, transfer, overlapped, event
        )
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
        apc: ApcRoutine | None = None,
        keep: object = None,
    ) -> int:
        """Call NtDeviceIoControlFile with raw addresses and give the status it returned.

        On an overlapped handle `iosb` may be written after a return of STATUS_PENDING: wait for
        the event, or for the handle. The memory must stay valid until then; `keep` may hold it.
        """
        transfer = (0, input_address, input_length, output_address, output_length, None, None, keep)
        port = self._channel.port()
        request_id = port.take_request_id()
        if apc is not None:
            port.apcs.expect(request_id, partial(apc, apc_context, iosb))
        if self._listener is not None:
            overlapped = Overlapped(
                request_id, self._listener.new_flag(), None, keep, apc_context, iosb,
                None if apc is None else port.apcs,
            )  # fmt: skip
            send_overlapped(
                self._channel, self._listener, port, self._handle, code, transfer, overlapped, event
            )
            return overlapped.returned
        try:
            answer, _ = port.call(
                KIND_DEVICE_CONTROL, 0 if apc is None else FLAG_USER_APC, self._handle, code,
                0 if event is None else event.handle, input_address, output_address, input_length,
                output_length, apc_context, 0, None, keep, request_id,
            )  # fmt: skip
        except (CallInProgress, UnpackableField):  # nothing was sent
            port.apcs.forget(request_id)
            raise
        if answer[2] & FLAG_IOSB_WRITTEN:
            iosb.information = answer[8]
            iosb.status = answer[9]
        if apc is not None and not answer[2] & FLAG_USER_APC:
            port.apcs.forget(request_id)
        if self._alertable:
            self._run_apcs_after(answer[6])
        return answer[6]

    def cancel(self) -> None:
        """Cancel this thread's requests on the file object and wait for their end (CancelIo)."""
        checked(self._channel.port().call(KIND_CANCEL, 0, self._handle)[0])

    def cancel_ex(self, request: Overlapped | None = None) -> bool:
        """Cancel one request on this file object, or every thread's, and do not wait.

        False if there is nothing that could still be cancelled (CancelIoEx).
        """
        request_id = 0 if request is None else request.request_id
        answer, _ = self._channel.port().call(
            KIND_CANCEL, FLAG_ANY_THREAD, self._handle, information=request_id
        )
        if answer[6] == STATUS_NOT_FOUND:
            return False
        checked(answer)
        return True

    def duplicate(self, access: int = 0) -> "DeviceHandle":
        """Make another handle to the same file object; `access` 0 is the same access."""
        handle = self._duplicate_handle(access)
        return DeviceHandle(
            self._channel, self.name, handle, self._listener, self._pin, self._alertable
        )

    def _judge(self, status: int, information: int) -> None:
        """Raise what a returned status calls for."""
        if self._alertable and status in _BROKEN_OFF:
            self._run_apcs_after(status)
            raise NtStatusError(status, information)
        if status >= _FIRST_FAILURE:
            raise NtStatusError(status, information)

    def _run_apcs_after(self, status: int) -> None:
        """Run the APCs that broke a call on an alertable file off (NT delivers them on return)."""
        if status in _BROKEN_OFF:
            wait_in_kernel(self._channel, KIND_DELAY, timeout=0, alertable=True)

    def _overlapped_listener(self) -> CompletionTable:
        if self._listener is None:
            raise SofthcaError(f"{self.name!r} was not opened for overlapped I/O")
        return self._listener


def open_device(
    channel: KernelChannel,
    name: str,
    *,
    overlapped: bool,
    access: int,
    pin: Pin,
    alertable: bool = False,
) -> DeviceHandle:
    """Open a device by name (CreateFile)."""
    if overlapped and alertable:
        raise ValueError("only the requests of a file opened for synchronous I/O wait alertably")
    listener = channel.listener() if overlapped else None
    payload = name.encode()
    if len(payload) > channel.max_payload:
        raise NtStatusError(STATUS_OBJECT_NAME_INVALID)
    flags = FLAG_INPUT_INLINE | (0 if overlapped else FLAG_SYNCHRONOUS)
    if alertable:
        flags |= FLAG_ALERTABLE
    answer, _ = channel.port().call(
        KIND_CREATE, flags, control_code=access, input_length=len(payload), payload=payload
    )
    return DeviceHandle(channel, name, checked(answer)[3], listener, pin, alertable)


def _store(view: memoryview | None, body: bytes) -> None:
    """Copy the output of an answer into the caller's buffer."""
    if view is None or len(body) > len(view):
        raise ProtocolError(f"the kernel returned {len(body)} bytes of output, more than asked for")
    view[: len(body)] = body
