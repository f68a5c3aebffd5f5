"""What every handle can do: be waited for, and be closed.

A handle that is not closed is closed when the session ends.

Rules: any thread.
Spec: WDK: NtWaitForSingleObject, NtDuplicateObject, NtClose.
"""

from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from shared.envelope import KIND_CLOSE, KIND_DUPLICATE, KIND_WAIT
from shared.nt_status import STATUS_TIMEOUT, nt_success
from user_proc.errors import ConnectionClosed, KernelDied, NtStatusError
from user_proc.io.waiting import wait_in_kernel
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.thread_port import Answer


class KernelObject:
    """A handle of this process; a context manager that closes it."""

    __slots__ = ("_channel", "_handle")

    def __init__(self, channel: KernelChannel, handle: int) -> None:
        self._channel: Final = channel
        self._handle = handle

    @property
    def handle(self) -> int:
        """The number the kernel knows this handle by; 0 after close."""
        return self._handle

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the object is signalled; False when `timeout` seconds ran out.

        A file object is signalled when a request on it that named no event ends. After True,
        every completion the kernel sent before has been taken by this process.
        """
        status, _ = wait_in_kernel(self._channel, KIND_WAIT, self._handle, timeout)
        return status != STATUS_TIMEOUT

    def wait_alertable(self, timeout: float | None = None) -> int:
        """Wait as above, or until user APCs of this thread have come and have been run.

        Gives STATUS_SUCCESS, STATUS_TIMEOUT or STATUS_USER_APC (WaitForSingleObjectEx).
        """
        status, _ = wait_in_kernel(self._channel, KIND_WAIT, self._handle, timeout, alertable=True)
        return status

    def close(self) -> None:
        """Close the handle; a second time, or after the connection's end, nothing is left to do."""
        handle, self._handle = self._handle, 0
        if not handle:
            return
        with suppress(KernelDied, ConnectionClosed):
            checked(self._channel.port().call(KIND_CLOSE, 0, handle)[0])

    def _duplicate_handle(self, access: int) -> int:
        """Make another handle of the same object, with `access`, or the same where that is 0."""
        answer, _ = self._channel.port().call(KIND_DUPLICATE, 0, self._handle, access)
        return checked(answer)[3]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def checked(answer: Answer) -> Answer:
    """Raise NtStatusError if the status of an answer is no success."""
    if not nt_success(answer[6]):
        raise NtStatusError(answer[6], answer[8])
    return answer
