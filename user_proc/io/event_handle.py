"""Events: what a request can set when it ends, and a thread can wait for.

Spec: WDK: NtCreateEvent; Win32: CreateEvent.
"""

from shared.envelope import FLAG_NOTIFICATION, FLAG_SIGNALED, KIND_CREATE_EVENT
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.transport.kernel_channel import KernelChannel


class EventHandle(KernelObject):
    """An event of this session; pass it to a request, then wait for it."""

    __slots__ = ()


def create_event(channel: KernelChannel, manual_reset: bool, signaled: bool) -> EventHandle:
    """Make an event: a notification event if reset by hand, else a synchronisation event."""
    flags = (FLAG_NOTIFICATION if manual_reset else 0) | (FLAG_SIGNALED if signaled else 0)
    answer, _ = channel.port().call(KIND_CREATE_EVENT, flags)
    return EventHandle(channel, checked(answer)[3])
