"""The requests whose result comes as a completion, and how much of what was sent has been taken.

Each completion ends one request and is counted: that count goes out with every request as the
credit the kernel reckons with, and a caller whose wait was answered goes on only when everything
sent before that answer has been taken here. However it ends, by close, by the kernel's death, by
bytes nobody understands, every request still outstanding ends with that error.

Rules: `expect`, `forget` and `catch_up` from any thread; `take` and `end` from one.
Spec: `shared/envelope.py`, KIND_COMPLETION.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from shared.envelope import ANSWER, HEADER, KIND_COMPLETION, MAGIC
from shared.trace_points import USER_COMPLETION, trace
from user_proc.errors import ProtocolError, SofthcaError
from user_proc.transport.one_time_flag import OneTimeFlag

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel

_COUNT: Final = 1 << 32


class PendingRequest(Protocol):
    """What an outstanding request must be able to take; neither call may raise or wait."""

    def complete(
        self, flags: int, iosb_status: int, information: int, output: bytes | None
    ) -> None:
        """Take the result."""

    def fail(self, error: SofthcaError) -> object:
        """Take the end of the connection; give what the kernel may still reach."""


class Flag(Protocol):
    """What the end of a request sets, and its owner waits for."""

    def is_set(self) -> bool:
        """Tell whether it is set."""

    def set(self) -> None:
        """Set it, for good."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False when `timeout` seconds ran out."""


class Credit:
    """How many completions have been taken, modulo 2**32; written by the listener alone."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


class CompletionTable:
    """What is outstanding in one session, and the count of what is not any more."""

    def __init__(self, channel: "KernelChannel") -> None:
        self.messages_received = 0
        self.bytes_received = 0
        self._channel: Final = channel
        self._credit: Final = channel.credit
        self._outstanding: Final = channel.outstanding
        self._waiting: deque[OneTimeFlag] = deque()
        self._ended: SofthcaError | None = None

    def expect(self, request_id: int, pending: PendingRequest) -> None:
        """Note who waits for a completion; to be called before the request is sent."""
        self._outstanding[request_id] = pending
        # Read after the store: the end drains the table after it has said why.
        if self._ended is not None:
            self._outstanding.pop(request_id, None)
            raise self._ended.with_traceback(None)

    def forget(self, request_id: int) -> None:
        """Note that no completion will come."""
        self._outstanding.pop(request_id, None)

    def new_flag(self) -> Flag:
        """Make the flag of one request."""
        return OneTimeFlag()

    def catch_up(self, sequence: int) -> None:
        """Wait until as many completions as `sequence` have been taken."""
        while self._is_behind(sequence):
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            changed = OneTimeFlag()
            self._waiting.append(changed)
            # Looked at again: it may have changed before the flag stood there.
            if self._is_behind(sequence) and self._ended is None:
                changed.wait()

    def close(self) -> None:
        """Give back what is held; the end of the channel has been told."""

    def take(self, header: bytes | memoryview, output: bytes | None) -> None:
        """Hand one completion to whoever expects it; one nobody expects any more is dropped."""
        if len(header) != HEADER.size:
            raise ProtocolError(f"a completion of {len(header)} bytes")
        magic, kind, flags, _, request_id, _, _, _, information, iosb_status = ANSWER.unpack(header)
        if magic != MAGIC or kind != KIND_COMPLETION:
            raise ProtocolError(f"the listener was sent a message of kind {kind}")
        self.messages_received += 1
        self.bytes_received += len(header) + len(output or b"")
        if trace.enabled:
            trace.record(USER_COMPLETION, request_id)
        pending = self._outstanding.pop(request_id, None)
        if pending is not None:
            pending.complete(flags, iosb_status, information, output)
        self._credit.taken = (self._credit.taken + 1) % _COUNT
        if self._waiting:
            self._wake()

    def end(self, error: SofthcaError) -> None:
        """Say why there will be no more, to everyone who waits and everyone who comes."""
        self._ended = error
        self._wake()
        while self._outstanding:
            try:
                _, pending = self._outstanding.popitem()
            except KeyError:
                break  # the last one was forgotten meanwhile
            self._channel.hold(pending.fail(error))

    def _wake(self) -> None:
        """Have every waiter look again; those of interrupted waits are still there, no harm."""
        while self._waiting:
            self._waiting.popleft().set()

    def _is_behind(self, sequence: int) -> bool:
        return 0 < (sequence - self._credit.taken) % _COUNT < _COUNT // 2
