"""Driver Verifier's deadlock detection: who holds which locks, and in which orders they were taken.

Each lock remembers the locks that were taken while it was held. Taking A under B is refused once
a way leads from A to B, though nobody waits yet: two threads that meet would wait for ever. A lock
taken by trying cannot make its taker wait, so its place in the order is not held against it.

Exists only in verifier mode. Spin locks, fast mutexes and guarded mutexes report to it.

Rules: called by the locks themselves, at their IRQL.
Spec: WDK, Deadlock Detection; Bug Check 0xC4 (0x1000 to 0x100B); rule IrqlKeReleaseSpinLock.
"""

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.call_stack import calling_driver

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_SELF_DEADLOCK: Final = 0x1000  # verifier 0xC4
_HIERARCHY: Final = 0x1001
_WRONG_RELEASE_ORDER: Final = 0x1003
_RELEASED_BY_ANOTHER: Final = 0x1004
_WRONG_RELEASE_ROUTINE: Final = 0x1009
_THREAD_ENDED: Final = 0x100A
_WRONG_IRQL_HANDED_BACK: Final = 0x20015

# How a lock was taken, and by which routine it must be given back.
PLAIN: Final = ""
BARE: Final = "bare"  # the IRQL left alone: AtDpcLevel, Unsafe


class Lock(Protocol):
    """What reports here; hashable and weakly referable."""

    def __hash__(self) -> int:
        """By identity."""


class Held:
    """One lock that is held: by whom, taken how and where."""

    __slots__ = ("form", "in_dpc", "lock", "old_irql", "place", "thread")

    def __init__(
        self,
        lock: Lock,
        thread: "KThread | None",
        in_dpc: bool,
        form: str,
        old_irql: int,
        place: str,
    ) -> None:
        self.lock = lock
        self.thread = thread
        self.in_dpc = in_dpc
        self.form = form
        self.old_irql = old_irql
        self.place = place


class LockOrder:
    """The record of one processor: `held` in order of taking, all threads together."""

    __slots__ = ("_after", "_processor", "held")

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor
        self.held: list[Held] = []
        # By lock: those taken while it was held, and where.
        self._after: WeakKeyDictionary[Lock, WeakKeyDictionary[Lock, str]] = WeakKeyDictionary()

    def take(self, lock: Lock, form: str, old_irql: int = -1, tried: bool = False) -> None:
        """Note that the running code takes `lock`, or waits for it from here on."""
        processor = self._processor
        thread, in_dpc = processor.current_thread, processor.dpc_routine_active
        place = calling_driver() or "kernel code"
        if self.held:
            self._check_taken(lock, place, tried)
        self.held.append(Held(lock, thread, in_dpc, form, old_irql, place))

    def _check_taken(self, lock: Lock, place: str, tried: bool) -> None:
        mine = self._mine()
        for earlier in mine:
            if earlier.lock is lock:
                self._stop(_SELF_DEADLOCK, lock, 0, f"{lock}, taken at {earlier.place}, once more")
        if not tried:
            for earlier in mine:
                self._enter(earlier, lock, place)

    def give(self, lock: Lock, form: str, old_irql: int = -1) -> None:
        """Note that the running code gives `lock` back."""
        held = self._find(lock)
        if held is None:
            return  # never taken: the lock itself objects
        if held.thread is not self._processor.current_thread:
            detail = f"{lock}, taken by {held.thread} at {held.place}, is released by another"
            self._stop(_RELEASED_BY_ANOTHER, lock, 0, detail)
        if held.form != form:
            what = "AtDpcLevel or Unsafe" if held.form else "the routine that sets the IRQL"
            detail = f"{lock}, taken by {what} at {held.place}, is released by the other routine"
            self._stop(_WRONG_RELEASE_ROUTINE, lock, 0, detail)
        if held.old_irql != old_irql:
            detail = f"{lock}: IRQL {held.old_irql} was saved at {held.place}, {old_irql} came back"
            self._stop(_WRONG_IRQL_HANDED_BACK, lock, old_irql, detail)
        last = self.held[-1]
        if last is not held and (last := self._mine()[-1]) is not held:
            detail = f"{lock} is released before {last.lock}, taken later at {last.place}"
            self._stop(_WRONG_RELEASE_ORDER, lock, id(last.lock), detail)
        self.held.remove(held)

    def thread_ended(self, thread: "KThread") -> None:
        """Look for locks that a thread takes with it."""
        for held in self.held:
            if held.thread is thread and not held.in_dpc:
                detail = f"{thread} ended with {held.lock}, taken at {held.place}"
                self._stop(_THREAD_ENDED, held.lock, thread.number, detail)

    def mine(self) -> int:
        """Return how many locks the running code holds."""
        return len(self._mine())

    def _mine(self) -> list[Held]:
        return [held for held in self.held if self._is_mine(held)]

    def _is_mine(self, held: Held) -> bool:
        # A DPC routine holds none of the locks of the thread it interrupted.
        processor = self._processor
        return (
            held.thread is processor.current_thread and held.in_dpc == processor.dpc_routine_active
        )

    def _find(self, lock: Lock) -> Held | None:
        # One's own first: others may stand in line for it.
        last = self.held[-1] if self.held else None
        if last is not None and last.lock is lock and self._is_mine(last):
            return last
        for held in [*reversed(self._mine()), *self.held]:
            if held.lock is lock:
                return held
        return None

    def _enter(self, earlier: Held, lock: Lock, place: str) -> None:
        after = self._after.setdefault(earlier.lock, WeakKeyDictionary())
        if lock in after:
            return
        way = self._way(lock, earlier.lock)
        if way:
            self._stop(
                _HIERARCHY,
                lock,
                id(earlier.lock),
                f"{lock} taken at {place} under {earlier.lock}, but " + ", ".join(way),
            )
        after[lock] = place

    def _way(self, start: Lock, end: Lock) -> list[str]:
        """Return how `end` was taken, directly or not, while `start` was held; [] if never."""
        reached: dict[Lock, list[str]] = {start: []}
        waiting = [start]
        while waiting:
            lock = waiting.pop()
            for later, place in self._after.get(lock, {}).items():
                if later in reached:
                    continue
                reached[later] = [*reached[lock], f"{later} was taken at {place} under {lock}"]
                if later is end:
                    return reached[later]
                waiting.append(later)
        return []

    def _stop(self, code: int, lock: Lock, third: int, detail: str) -> None:
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION, code, id(lock), third, detail=detail
        )
