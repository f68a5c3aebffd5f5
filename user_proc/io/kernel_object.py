"""What every handle can do: be waited for, and be closed.

A handle that is not closed is closed when the session ends.

Rules: any thread.
Spec: WDK: NtWaitForSingleObject, NtClose.
"""

from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from shared.envelope import KIND_CLOSE, KIND_WAIT, WAIT_FOREVER
from shared.nt_status import STATUS_TIMEOUT, STATUS_WAIT_0, nt_success
from user_proc.errors import ConnectionClosed, KernelDied, NtStatusError
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
        if timeout is None:
            timeout_ns = WAIT_FOREVER
        else:
            timeout_ns = min(max(0, round(timeout * 1e9)), WAIT_FOREVER - 1)
        answer, _ = self._channel.port().call(KIND_WAIT, 0, self._handle, information=timeout_ns)
        if answer[6] == STATUS_TIMEOUT:
            return False
        if answer[6] != STATUS_WAIT_0:
            raise NtStatusError(answer[6])
        self._channel.catch_up(answer[7])
        return True

    def close(self) -> None:
        """Close the handle; a second time, or after the connection's end, nothing is left to do."""
        handle, self._handle = self._handle, 0
        if not handle:
            return
        with suppress(KernelDied, ConnectionClosed):
            checked(self._channel.port().call(KIND_CLOSE, 0, handle)[0])

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
