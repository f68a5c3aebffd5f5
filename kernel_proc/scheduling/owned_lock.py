"""What fast and guarded mutexes share: one owner at a time, handed over in order of arrival.

Rules: <= APC_LEVEL; not recursive; released by the thread that took it.
Spec: WDK, Fast Mutexes and Guarded Mutexes.
"""

from typing import TYPE_CHECKING, ClassVar, Final

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor
    from kernel_proc.scheduling.wait import DispatcherObject

_RELEASED_BY_ANOTHER: Final = 0x1004  # verifier 0xC4
_NEVER_ACQUIRED: Final = 0x1007


class OwnedLock:
    """`count` is 1 when free; `contention` counts acquisitions that had to wait.

    A release with threads waiting hands the lock to the first of them: `count` stays 0, and
    `owner` is None until that thread runs.
    """

    __slots__ = (
        "__weakref__",
        "_released",
        "_waiters",
        "contention",
        "count",
        "name",
        "old_irql",
        "owner",
        "processor",
    )

    kind: ClassVar[str] = "lock"

    def __init__(self, processor: "Processor", name: str = "") -> None:
        self.processor = processor
        self.name = name
        self.count = 1
        self.owner: KThread | None = None
        self.contention = 0
        self.old_irql = 0
        self._waiters = 0
        self._released = Event(processor, notification=False)
        processor.owned_locks.add(self)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else f"{self.kind} {id(self):#x}"

    def hands_over_by(self, waited: "DispatcherObject") -> bool:
        """Tell whether waiting for `waited` is waiting for this lock."""
        return waited is self._released

    # The record of who holds what: before a wait, so that it is found though it never ends

    def _note_taken(self, form: str, tried: bool = False) -> None:
        if self.processor.lock_order is not None:
            self.processor.lock_order.take(self, form, tried=tried)

    def _note_given(self, form: str) -> None:
        processor = self.processor
        if processor.lock_order is not None and self.owner is processor.current_thread:
            processor.lock_order.give(self, form)

    # Taking and giving, the IRQL left alone

    def _take(self) -> None:
        if self.count == 1:
            self.count = 0
        else:
            self._wait_for_it()
        self.owner = self.processor.current_thread

    def _wait_for_it(self) -> None:
        self.contention += 1
        self._waiters += 1
        self._released.wait()  # ownership is handed over, `count` stays 0
        self._waiters -= 1

    def _give(self) -> None:
        if self.processor.verifier and self.owner is not self.processor.current_thread:
            self._not_the_owner()
        self.owner = None
        if self._waiters:
            self._released.set()
        else:
            self.count = 1

    def _not_the_owner(self) -> None:
        code = _NEVER_ACQUIRED if self.owner is None else _RELEASED_BY_ANOTHER
        self.processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            code,
            id(self),
            detail=f"{self} released by {self.processor.current_thread}, owner {self.owner}",
        )

    # The same at APC_LEVEL

    def _raise_and_take(self) -> None:
        processor = self.processor
        old = processor.irql
        processor.irql = APC_LEVEL
        if processor.pending:
            processor.take_pending()
        if self.count == 1:
            self.count = 0
        else:
            self._wait_for_it()
        self.owner = processor.current_thread
        self.old_irql = old

    def _give_and_lower(self) -> None:
        processor = self.processor
        old = self.old_irql
        self._give()
        processor.irql = old
        if processor.pending:
            processor.take_pending()

    # The verifier

    def _verify(self, fine: bool, code: int, routine: str) -> None:
        """Stop the machine with verifier code 0xC4/`code` unless all is `fine`."""
        if not fine:
            processor = self.processor
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                code,
                processor.irql,
                id(self),
                detail=f"{routine} of {self} at {processor.level_name()}",
            )
