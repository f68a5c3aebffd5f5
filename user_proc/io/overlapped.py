"""A request under way on a handle opened for overlapped I/O: its result, when it comes.

Rules: any thread may look and wait; the listener's thread completes.
Spec: Win32: OVERLAPPED, GetOverlappedResult.
"""

from typing import Final

from shared.envelope import FLAG_IOSB_WRITTEN, FLAG_USER_APC
from shared.nt_status import STATUS_PENDING, nt_success, status_name
from shared.trace_points import USER_COPIED, trace
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.io_status import IoStatusBlock
from user_proc.transport.completion_table import Flag
from user_proc.transport.user_apcs import UserApcs


class Overlapped:
    """One started request; keeps the caller's buffers until it is done.

    `returned` is what the system service returned; `dropped` says that it ended there, with
    nothing delivered to status block, event or listener. `apcs` are its thread's, if it is to
    queue one.
    """

    __slots__ = (
        "_apcs",
        "_done",
        "_error",
        "_iosb",
        "_keep",
        "_view",
        "apc_context",
        "dropped",
        "request_id",
        "returned",
    )

    def __init__(
        self,
        request_id: int,
        done: Flag,
        view: memoryview | None = None,
        keep: object = None,
        apc_context: int = 0,
        iosb: IoStatusBlock | None = None,
        apcs: UserApcs | None = None,
    ) -> None:
        self.request_id: Final = request_id
        self.returned = STATUS_PENDING
        self.dropped = False
        self.apc_context: Final = apc_context
        self._iosb: Final = IoStatusBlock() if iosb is None else iosb
        self._view = view
        self._keep = keep
        self._done: Final = done
        self._error: SofthcaError | None = None
        self._apcs: Final = apcs

    def __repr__(self) -> str:
        if not self.done:
            state = "pending"
        elif self._error is not None:
            state = f"failed: {self._error}"
        else:
            state = f"{status_name(self.status)}, information={self.information}"
        return f"<overlapped request {self.request_id:#x}, {state}>"

    @property
    def done(self) -> bool:
        """Tell whether nothing more will come."""
        return self._done.is_set()

    @property
    def queues_apc(self) -> bool:
        """Tell whether its end is to be told by a user APC."""
        return self._apcs is not None

    @property
    def status(self) -> int:
        """The IoStatusBlock's status; STATUS_PENDING until it is written."""
        return self._iosb.status

    @property
    def information(self) -> int:
        """The IoStatusBlock's information."""
        return self._iosb.information

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, at most `timeout` seconds; give Information.

        Raises NtStatusError for a status that is no success, TimeoutError when the time ran out.
        The wait is not alertable.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"the request is still pending after {timeout:g} s")
        if self._error is not None:
            raise self._error.with_traceback(None)
        if not nt_success(self._iosb.status):
            raise NtStatusError(self._iosb.status, self._iosb.information)
        return self._iosb.information

    def complete(
        self, flags: int, iosb_status: int, information: int, output: bytes | None
    ) -> None:
        """Take the result: the output first, then the status block, then the signal."""
        try:
            if output is not None and self._view is not None:
                self._view[: len(output)] = output
        except (ValueError, BufferError) as error:
            self._error = SofthcaError(f"the output could not be stored: {error}")
        if trace.enabled:
            trace.record(USER_COPIED, self.request_id)
        if flags & FLAG_IOSB_WRITTEN:
            self._iosb.information = information
            self._iosb.status = iosb_status
        if self._apcs is not None and not flags & FLAG_USER_APC:
            self._apcs.forget(self.request_id)
        self._finish()

    def fail(self, error: SofthcaError) -> object:
        """Take the end of the connection in place of a result; give the buffers it kept."""
        kept, self._error = self._keep, error
        self._finish()
        return kept

    def _finish(self) -> None:
        self._view = self._keep = None
        self._done.set()
