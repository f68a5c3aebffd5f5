"""Fast mutexes: not recursive, APC_LEVEL while held.

Because all APCs are off inside, a thread that waits there for an IRP of its own waits for ever:
the completion APC that would end the wait cannot run.

Rules: <= APC_LEVEL; a free build checks nothing, the verifier does.
Spec: WDK, Fast Mutexes and Guarded Mutexes; ExAcquireFastMutex.
"""

from typing import Final

from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.lock_order import BARE, PLAIN
from kernel_proc.scheduling.owned_lock import OwnedLock

_ACQUIRED_ABOVE_APC: Final = 0x33  # verifier 0xC4
_RELEASED_NOT_AT_APC: Final = 0x34
_UNSAFE_ACQUIRE: Final = 0x39
_UNSAFE_RELEASE: Final = 0x3A


class FastMutex(OwnedLock):
    """A FAST_MUTEX."""

    __slots__ = ()

    kind = "fast mutex"

    def acquire(self) -> None:
        """Take it, waiting if need be; the IRQL becomes APC_LEVEL."""
        if self.processor.verifier:
            self._verify_acquire("ExAcquireFastMutex")
            self._note_taken(PLAIN)
        self._raise_and_take()

    def try_acquire(self) -> bool:
        """Take it if it is free; nothing changes otherwise (WDK: ExTryToAcquireFastMutex)."""
        if self.processor.verifier:
            self._verify_acquire("ExTryToAcquireFastMutex")
        if self.count != 1:
            return False
        self._raise_and_take()
        self._note_taken(PLAIN, tried=True)
        return True

    def release(self) -> None:
        """Give it back and restore the IRQL of the acquisition."""
        processor = self.processor
        if processor.verifier:
            fine = processor.irql == APC_LEVEL
            self._verify(fine, _RELEASED_NOT_AT_APC, "ExReleaseFastMutex")
            self._note_given(PLAIN)
        self._give_and_lower()

    def acquire_unsafe(self) -> None:
        """Take it without touching the IRQL: APC_LEVEL already, or in a critical region."""
        if self.processor.verifier:
            self._verify_unsafe(_UNSAFE_ACQUIRE, "ExAcquireFastMutexUnsafe")
            self._note_taken(BARE)
        self._take()

    def release_unsafe(self) -> None:
        """Give it back without touching the IRQL."""
        if self.processor.verifier:
            self._verify_unsafe(_UNSAFE_RELEASE, "ExReleaseFastMutexUnsafe")
            self._note_given(BARE)
        self._give()

    def _verify_acquire(self, routine: str) -> None:
        fine = self.processor.rules_irql() <= APC_LEVEL
        self._verify(fine, _ACQUIRED_ABOVE_APC, routine)

    def _verify_unsafe(self, code: int, routine: str) -> None:
        processor = self.processor
        thread = processor.current_thread
        in_region = thread is not None and thread.are_apcs_disabled()
        fine = processor.irql == APC_LEVEL or in_region
        self._verify(fine, code, routine)
