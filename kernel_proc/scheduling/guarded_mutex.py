"""Guarded mutexes: not recursive, all APCs off while held, in one of two ways.

As Server 2003 has them, the holder is in a guarded region and the IRQL stays. Since Windows 8
they are fast mutexes under another name: APC_LEVEL while held. `guarded_mutexes_at_apc_level` of
the processor says which. In both a thread that waits inside for an IRP of its own waits for ever.

Rules: <= APC_LEVEL; 0x0A otherwise, under the verifier 0xC4/0x2000F.
Spec: WDK, Fast Mutexes and Guarded Mutexes; KeAcquireGuardedMutex.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.lock_order import BARE, PLAIN
from kernel_proc.scheduling.owned_lock import OwnedLock

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread

_ABOVE_APC: Final = 0x2000F  # verifier 0xC4, rule IrqlKeApcLte1
_RELEASED_NOT_AT_APC: Final = 0x34  # as for fast mutexes, where they are such
_UNSAFE_ACQUIRE: Final = 0x39
_UNSAFE_RELEASE: Final = 0x3A


class GuardedMutex(OwnedLock):
    """A KGUARDED_MUTEX."""

    __slots__ = ()

    kind = "guarded mutex"

    def acquire(self) -> None:
        """Take it, waiting if need be; no APC of any kind comes until it is released."""
        processor = self.processor
        processor.require_irql(APC_LEVEL, "KeAcquireGuardedMutex", _ABOVE_APC)
        self._note_taken(PLAIN)
        self._enter()

    def _enter(self) -> None:
        processor = self.processor
        if processor.guarded_mutexes_at_apc_level:
            self._raise_and_take()
        else:
            self._thread().enter_guarded_region()
            self._take()

    def try_acquire(self) -> bool:
        """Take it if it is free; nothing changes otherwise (WDK: KeTryToAcquireGuardedMutex)."""
        self.processor.require_irql(APC_LEVEL, "KeTryToAcquireGuardedMutex", _ABOVE_APC)
        if self.count != 1:
            return False
        self._enter()
        self._note_taken(PLAIN, tried=True)
        return True

    def release(self) -> None:
        """Give it back; APCs held back by it come before this returns."""
        processor = self.processor
        processor.require_irql(APC_LEVEL, "KeReleaseGuardedMutex", _ABOVE_APC)
        if processor.verifier:
            fine = processor.irql == APC_LEVEL or not processor.guarded_mutexes_at_apc_level
            self._verify(fine, _RELEASED_NOT_AT_APC, "KeReleaseGuardedMutex")
            self._note_given(PLAIN)
        if processor.guarded_mutexes_at_apc_level:
            self._give_and_lower()
        else:
            thread = self._thread()
            self._give()
            thread.leave_guarded_region()

    def acquire_unsafe(self) -> None:
        """Take it; all APCs are off already (WDK: KeAcquireGuardedMutexUnsafe)."""
        self._require_apcs_off(_UNSAFE_ACQUIRE, "KeAcquireGuardedMutexUnsafe")
        self._note_taken(BARE)
        self._take()

    def release_unsafe(self) -> None:
        """Give it back; APCs stay off (WDK: KeReleaseGuardedMutexUnsafe)."""
        self._require_apcs_off(_UNSAFE_RELEASE, "KeReleaseGuardedMutexUnsafe")
        self._note_given(BARE)
        self._give()

    def _thread(self) -> "KThread":
        thread = self.processor.current_thread
        if thread is None:
            self.processor.switch_from_dpc("guarded mutex without a thread")
        return thread

    def _require_apcs_off(self, code: int, routine: str) -> None:
        processor = self.processor
        processor.require_irql(APC_LEVEL, routine, _ABOVE_APC)
        if processor.verifier:
            fine = self._thread().are_all_apcs_disabled()
            self._verify(fine, code, routine)
