"""Events.

Rules: <= DISPATCH_LEVEL.
Spec: WDK, Event Objects; KeSetEvent.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.ddi_rules import IRQL_KE_DISPATCH_LTE
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.wait import DispatcherObject
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_SET_ABOVE_DISPATCH: Final = 0x80  # verifier 0xC4


class Event(DispatcherObject):
    """A notification event stays set until cleared; a synchronization event satisfies one wait."""

    __slots__ = ("is_notification",)

    def __init__(self, processor: "Processor", notification: bool, signaled: bool = False) -> None:
        super().__init__(processor, 1 if signaled else 0)
        self.is_notification = notification

    def take(self, thread: "KThread | None") -> int:
        """Satisfy one wait."""
        if not self.is_notification:
            self.signal_state = 0
        return STATUS_SUCCESS

    def set(self, increment: int = 0) -> int:
        """Signal it with a priority boost for who waits; return the previous state."""
        processor = self.processor
        if processor.irql > DISPATCH_LEVEL:
            processor.irql_violation(DISPATCH_LEVEL, "KeSetEvent", _SET_ABOVE_DISPATCH)
        previous = self.signal_state
        self.signal_state = 1
        if self.waits:
            self.wake_waiters(increment)
        return previous

    def reset(self) -> int:
        """Clear it; return the previous state (WDK: KeResetEvent)."""
        self.processor.require_irql(DISPATCH_LEVEL, "KeResetEvent", IRQL_KE_DISPATCH_LTE)
        previous = self.signal_state
        self.signal_state = 0
        return previous

    def clear(self) -> None:
        """Clear it (WDK: KeClearEvent)."""
        processor = self.processor
        if processor.irql > DISPATCH_LEVEL:
            processor.irql_violation(DISPATCH_LEVEL, "KeClearEvent", IRQL_KE_DISPATCH_LTE)
        self.signal_state = 0

    def pulse(self, increment: int = 0) -> int:
        """Satisfy who waits now, leave it cleared; return the previous state (KePulseEvent)."""
        # Raised, so that a woken thread of higher priority cannot run before the event is clear.
        old = self.processor.raise_irql(max(DISPATCH_LEVEL, self.processor.irql))
        previous = self.set(increment)
        self.signal_state = 0
        self.processor.lower_irql(old)
        return previous

    def read_state(self) -> int:
        """Return the state, zero or one (WDK: KeReadStateEvent)."""
        self.processor.require_irql(DISPATCH_LEVEL, "KeReadStateEvent", IRQL_KE_DISPATCH_LTE)
        return self.signal_state
