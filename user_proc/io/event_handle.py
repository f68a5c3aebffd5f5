"""Events: what a request can set when it ends, and a thread can wait for.

Spec: WDK: NtCreateEvent, NtSetEvent, NtPulseEvent; Win32: CreateEvent.
"""

from shared.envelope import (
    EVENT_PULSE,
    EVENT_QUERY,
    EVENT_RESET,
    EVENT_SET,
    FLAG_NOTIFICATION,
    FLAG_SIGNALED,
    KIND_CREATE_EVENT,
    KIND_EVENT,
)
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.transport.kernel_channel import KernelChannel


class EventHandle(KernelObject):
    """An event of this session; pass it to a request, then wait for it."""

    __slots__ = ()

    def set(self) -> None:
        """Signal it."""
        self._change(EVENT_SET)

    def reset(self) -> None:
        """Clear it."""
        self._change(EVENT_RESET)

    def pulse(self) -> None:
        """Let go on who waits now (one of them, for a synchronisation event), and clear it."""
        self._change(EVENT_PULSE)

    @property
    def is_set(self) -> bool:
        """Tell whether it is signalled; looking does not take the signal (NtQueryEvent)."""
        return self._change(EVENT_QUERY) != 0

    def duplicate(self, access: int = 0) -> "EventHandle":
        """Make another handle to the same event; `access` 0 is the same access."""
        return EventHandle(self._channel, self._duplicate_handle(access))

    def _change(self, operation: int) -> int:
        answer, _ = self._channel.port().call(KIND_EVENT, 0, self._handle, operation)
        return checked(answer)[8]


def create_event(channel: KernelChannel, manual_reset: bool, signaled: bool) -> EventHandle:
    """Make an event: a notification event if reset by hand, else a synchronisation event."""
    flags = (FLAG_NOTIFICATION if manual_reset else 0) | (FLAG_SIGNALED if signaled else 0)
    answer, _ = channel.port().call(KIND_CREATE_EVENT, flags)
    return EventHandle(channel, checked(answer)[3])
