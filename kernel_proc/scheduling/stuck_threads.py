"""Threads that can never wake: each waits for what only an APC of its own would signal.

At APC_LEVEL and in a guarded region special kernel APCs are off, and a request a thread issued
ends by one. Who waits there for such a request waits for ever. NT says nothing; this says who,
which lock and which request.

Rules: read-only, so any OS thread may look; what one that is not the dispatcher's sees may be a
moment old, and a table that changes under it is a RuntimeError.
Spec: WDK, Disabling APCs; docs/dpcs-and-work-items.md.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.wait import USER_MODE

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.wait import DispatcherObject, Wait


def describe_stuck(thread: "KThread") -> str | None:
    """Return one sentence about a thread that waits for an APC it cannot run; None for others."""
    reason = _why_stuck(thread)
    return f"{thread} {reason}" if reason is not None else None


def describe_waiting(threads: Iterable["KThread"]) -> list[str]:
    """Return a line for each waiting thread, with the reason if it can never wake.

    Threads that wait for work are left out: they are idle.
    """
    lines = []
    for thread in threads:
        wait = thread.wait_block
        if wait is None or any(waited.idle_place for waited in wait.objects):
            continue
        reason = _why_stuck(thread)
        lines.append(
            thread.describe() + _locks_waited_for(wait) + (f"; it {reason}" if reason else "")
        )
    return lines


class StuckWatch:
    """Finds waits that two looks in a row saw stuck, and tells of each once."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[Wait, bool] = {}

    def look(self, threads: Iterable["KThread"]) -> list[str]:
        """Return a sentence for each thread whose wait was stuck at the last look already."""
        seen: dict[Wait, bool] = {}
        texts = []
        for thread in threads:
            wait = thread.wait_block
            text = describe_stuck(thread)
            if wait is None or text is None:
                continue
            told = self._seen.get(wait)
            if told is False:
                texts.append(text)
            seen[wait] = told is not None
        self._seen = seen
        return texts


def _why_stuck(thread: "KThread") -> str | None:
    wait = thread.wait_block
    if wait is None or not thread.is_waiting or wait.status is not None:
        return None
    place = _where_apcs_are_off(thread, wait)
    if wait.deadline is not None or place is None:
        return None
    irps = _irps_waited_for(thread, wait)
    if irps:
        # An alert, a user APC or the thread's end could break off a wait that allows it.
        word = "may" if wait.alertable or wait.mode == USER_MODE else "can"
        ends = "; ".join(f"{irp}{' (completed)' if irp.inserted else ''}" for irp in irps)
        return f"{word} never wake: {place}, its completion APC cannot run, and it waits for {ends}"
    queued = list(thread.special_apcs)
    if queued:
        routines = ", ".join(getattr(apc.kernel_routine, "__qualname__", "?") for apc in queued)
        return f"may never wake: {place}, queued special kernel APCs cannot run: {routines}"
    return None


def _where_apcs_are_off(thread: "KThread", wait: "Wait") -> str | None:
    if wait.irql >= APC_LEVEL:
        place = "at APC_LEVEL"
    elif thread.special_apc_disable < 0:
        place = "in a guarded region"
    else:
        return None
    locks = sorted(str(lock) for lock in thread.processor.owned_locks if lock.owner is thread)
    return f"{place}, holding {', '.join(locks)}" if locks else place


def _irps_waited_for(thread: "KThread", wait: "Wait") -> list[Any]:
    """Return the requests whose completion APCs would end the wait, if nothing else can."""
    irps = list(thread.irps)
    enders = [[irp for irp in irps if _signals(irp, waited)] for waited in wait.objects]
    enough = any(enders) if wait.wait_all else all(enders)
    return list(dict.fromkeys(irp for ender in enders for irp in ender)) if enough else []


def _signals(irp: Any, waited: "DispatcherObject") -> bool:
    # The I/O manager lies above: its objects are known here by what they carry.
    file = irp.file_object
    return waited is irp.user_event or (file is not None and waited is file.event)


def _locks_waited_for(wait: "Wait") -> str:
    locks = [
        f" of {lock}, held by {lock.owner or 'the one it was handed to'}"
        for waited in wait.objects
        for lock in wait.thread.processor.owned_locks
        if lock.hands_over_by(waited)
    ]
    return "".join(locks)
