"""Fast mutexes: not recursive, APC_LEVEL while held.

Because all APCs are off inside, a thread that waits there for an IRP of its own waits for ever:
the completion APC that would end the wait cannot run.

Rules: <= APC_LEVEL; a free build checks nothing, the verifier does.
Spec: WDK, Fast Mutexes and Guarded Mutexes; ExAcquireFastMutex.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_ACQUIRED_ABOVE_APC: Final = 0x33  # verifier 0xC4
_RELEASED_NOT_AT_APC: Final = 0x34
_UNSAFE_ACQUIRE: Final = 0x39
_UNSAFE_RELEASE: Final = 0x3A


class FastMutex:
    """A FAST_MUTEX. `count` is 1 when free; `contention` counts acquisitions that had to wait."""

    __slots__ = ("_released", "_waiters", "contention", "count", "old_irql", "owner", "processor")

    def __init__(self, processor: "Processor") -> None:
        self.processor = processor
        self.count = 1
        self.owner: KThread | None = None
        self.contention = 0
        self.old_irql = 0
        self._waiters = 0
        self._released = Event(processor, notification=False)

    def acquire(self) -> None:
        """Take it, waiting if need be; the IRQL becomes APC_LEVEL."""
        processor = self.processor
        old = processor.irql
        if old > APC_LEVEL and processor.verifier:
            processor.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, _ACQUIRED_ABOVE_APC, old)
        processor.irql = APC_LEVEL
        if processor.pending:
            processor.take_pending()
        self._take()
        self.old_irql = old

    def try_acquire(self) -> bool:
        """Take it if it is free; nothing changes otherwise."""
        processor = self.processor
        if processor.irql > APC_LEVEL and processor.verifier:
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION, _ACQUIRED_ABOVE_APC, processor.irql
            )
        if self.count != 1:
            return False
        self.acquire()
        return True

    def release(self) -> None:
        """Give it back and restore the IRQL of the acquisition."""
        processor = self.processor
        if processor.irql != APC_LEVEL and processor.verifier:
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION, _RELEASED_NOT_AT_APC, processor.irql
            )
        old = self.old_irql
        self._give()
        processor.irql = old
        if processor.pending:
            processor.take_pending()

    def acquire_unsafe(self) -> None:
        """Take it without touching the IRQL: APC_LEVEL already, or in a critical region."""
        self._check_unsafe(_UNSAFE_ACQUIRE)
        self._take()

    def release_unsafe(self) -> None:
        """Give it back without touching the IRQL."""
        self._check_unsafe(_UNSAFE_RELEASE)
        self._give()

    def _take(self) -> None:
        if self.count == 1:
            self.count = 0
        else:
            self.contention += 1
            self._waiters += 1
            self._released.wait()  # ownership is handed over, `count` stays 0
            self._waiters -= 1
        self.owner = self.processor.current_thread

    def _give(self) -> None:
        self.owner = None
        if self._waiters > self._released.signal_state:
            self._released.set()
        else:
            self.count = 1

    def _check_unsafe(self, code: int) -> None:
        processor = self.processor
        thread = processor.current_thread
        if (
            processor.verifier
            and processor.irql != APC_LEVEL
            and not (thread is not None and thread.kernel_apc_disable < 0)
        ):
            processor.bug_check(DRIVER_VERIFIER_DETECTED_VIOLATION, code, processor.irql)
