"""Spin locks on one processor: DISPATCH_LEVEL, and a check that the lock is free.

On one processor nobody can be running who would release a held lock, so spinning would never
end: a held lock is a bug check in both modes.

Rules: acquire at <= DISPATCH_LEVEL, release at DISPATCH_LEVEL.
Spec: WDK, Introduction to Spin Locks; KeAcquireSpinLock.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    SPIN_LOCK_ALREADY_OWNED,
    SPIN_LOCK_NOT_OWNED,
)
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.lock_order import BARE, PLAIN

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

_ACQUIRE_ABOVE_DISPATCH: Final = 0x42  # verifier 0xC4
_RELEASE_NOT_AT_DISPATCH: Final = 0x32
_ACQUIRE_BELOW_DISPATCH: Final = 0x40
_RELEASE_BELOW_DISPATCH: Final = 0x41


class SpinLock:
    """A KSPIN_LOCK that knows whether it is held."""

    __slots__ = ("__weakref__", "held", "name", "processor")

    def __init__(self, processor: "Processor", name: str = "") -> None:
        self.processor = processor
        self.name = name
        self.held = False

    def __str__(self) -> str:
        return f"spin lock {self.name!r}" if self.name else f"spin lock {id(self):#x}"

    def acquire(self) -> int:
        """Raise to DISPATCH_LEVEL and take the lock; return the old IRQL."""
        processor = self.processor
        old = processor.irql
        if old > DISPATCH_LEVEL:
            processor.irql_violation(DISPATCH_LEVEL, "KeAcquireSpinLock", _ACQUIRE_ABOVE_DISPATCH)
        if self.held:
            self._already_owned()
        processor.irql = DISPATCH_LEVEL
        self.held = True
        if processor.lock_order is not None:
            processor.lock_order.take(self, PLAIN, old)
        return old

    def release(self, old_irql: int) -> None:
        """Give the lock back and lower to `old_irql`."""
        processor = self.processor
        if not self.held:
            processor.bug_check(SPIN_LOCK_NOT_OWNED, detail=f"release of {self}")
        self.held = False
        if processor.lock_order is not None:
            if processor.irql != DISPATCH_LEVEL:
                processor.bug_check(
                    DRIVER_VERIFIER_DETECTED_VIOLATION, _RELEASE_NOT_AT_DISPATCH, processor.irql
                )
            processor.lock_order.give(self, PLAIN, old_irql)
            processor.lower_irql(old_irql)
            return
        processor.irql = old_irql
        if processor.pending:
            processor.take_pending()

    def acquire_at_dpc_level(self) -> None:
        """Take the lock; the IRQL is DISPATCH_LEVEL already and stays."""
        if self.processor.verifier and self.processor.irql < DISPATCH_LEVEL:
            self.processor.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, _ACQUIRE_BELOW_DISPATCH)
        if self.held:
            self._already_owned()
        self.held = True
        if self.processor.lock_order is not None:
            self.processor.lock_order.take(self, BARE)

    def release_from_dpc_level(self) -> None:
        """Give the lock back; the IRQL stays."""
        if self.processor.verifier and self.processor.irql < DISPATCH_LEVEL:
            self.processor.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, _RELEASE_BELOW_DISPATCH)
        if not self.held:
            self.processor.bug_check(SPIN_LOCK_NOT_OWNED, detail=f"release of {self}")
        self.held = False
        if self.processor.lock_order is not None:
            self.processor.lock_order.give(self, BARE)

    def _already_owned(self) -> None:
        self.processor.bug_check(
            SPIN_LOCK_ALREADY_OWNED,
            detail=f"{self} is held and its owner is not running",
        )
