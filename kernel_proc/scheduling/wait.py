"""Dispatcher objects and waiting for them.

A blocked call is one Wait, linked to every object it waits for. It keeps its place and its
deadline while its thread runs a kernel APC: an object signalled meanwhile satisfies it.

Rules: a wait that may block needs IRQL <= APC_LEVEL; a look (timeout 0) <= DISPATCH_LEVEL.
Spec: WDK, KeWaitForSingleObject, KeWaitForMultipleObjects; Kernel Dispatcher Objects.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.timer_queue import Deadline
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
    STATUS_USER_APC,
)

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

KERNEL_MODE: Final = 0
USER_MODE: Final = 1

_WAIT_ABOVE_DISPATCH: Final = 0x120  # verifier 0xC4
_WAIT_AT_DISPATCH: Final = 0x121  # verifier 0xC4: timeout NULL
_TIMED_WAIT_AT_DISPATCH: Final = 0x122  # verifier 0xC4: timeout not zero


class Wait:
    """One blocked wait; `status` is None until it is satisfied, timed out or broken off."""

    __slots__ = ("alertable", "deadline", "irql", "mode", "objects", "status", "thread", "wait_all")

    def __init__(
        self,
        thread: "KThread",
        objects: Sequence["DispatcherObject"],
        wait_all: bool,
        irql: int,
        mode: int,
        alertable: bool,
    ) -> None:
        self.thread = thread
        self.objects = objects
        self.wait_all = wait_all
        self.irql = irql
        self.mode = mode
        self.alertable = alertable
        self.status: int | None = None
        self.deadline: Deadline | None = None

    def end(self, status: int, increment: int = 0) -> None:
        """Unlink the wait with its result and make its thread ready if it sleeps in it."""
        self.status = status
        for waited in self.objects:
            waited.waits.pop(self, None)
        thread = self.thread
        if self.deadline is not None:
            thread.processor.dispatcher.timers.cancel(self.deadline)
        if thread.wait_block is self and thread.is_waiting:
            thread.processor.dispatcher.ready(thread, increment)

    def expire(self) -> None:
        """Time out; called at DISPATCH_LEVEL by the timer queue."""
        if self.status is None:
            self.end(STATUS_TIMEOUT)

    def try_satisfy(self, index: int, increment: int) -> bool:
        """Take the signalled object `index`, or all of them, if that fulfils this wait."""
        thread = self.thread
        if self.wait_all:
            if not all(waited.is_signaled_for(thread) for waited in self.objects):
                return False
            status = max(waited.take(thread) for waited in self.objects)
        else:
            status = self.objects[index].take(thread) + index
        self.end(status, increment)
        return True


class DispatcherObject:
    """Anything that can be waited for: signalled while `signal_state` is above zero.

    Who waits for an `idle_place` has nothing to do: a worker without work.
    """

    __slots__ = ("processor", "signal_state", "waits")

    idle_place: ClassVar[bool] = False

    def __init__(self, processor: "Processor", signal_state: int = 0) -> None:
        self.processor = processor
        self.signal_state = signal_state
        self.waits: dict[Wait, int] = {}

    def is_signaled_for(self, thread: "KThread | None") -> bool:
        """Tell whether a wait by `thread` would be satisfied now."""
        return self.signal_state > 0

    def take(self, thread: "KThread | None") -> int:
        """Satisfy one wait: change the state as the kind of object demands."""
        return STATUS_SUCCESS

    def describe(self) -> str:
        """Return kind and state for reports."""
        return f"{type(self).__name__}(state {self.signal_state})"

    def wait(
        self, timeout_ns: int | None = None, *, alertable: bool = False, mode: int = KERNEL_MODE
    ) -> int:
        """Wait until signalled; return a wait status (WDK: KeWaitForSingleObject).

        `timeout_ns` is relative; None waits for ever, 0 only looks.
        """
        processor = self.processor
        if processor.irql >= processor.dispatch_rules_from:
            _check_wait_irql(processor, timeout_ns, "KeWaitForSingleObject")
        thread = processor.current_thread
        if self.is_signaled_for(thread):
            return self.take(thread)
        if timeout_ns == 0:
            return _look(thread, alertable, mode)
        return _block(processor, (self,), False, timeout_ns, alertable, mode)

    def wake_waiters(self, increment: int = 0) -> None:
        """Satisfy waits in order of arrival while the object stays signalled."""
        if not self.waits:
            return
        # At DISPATCH_LEVEL, where NT holds the dispatcher lock: a woken thread of higher priority
        # may take the processor, and clear the object, only when every waiter has had its turn.
        processor = self.processor
        irql = processor.irql
        if irql < DISPATCH_LEVEL:
            processor.irql = DISPATCH_LEVEL
        for wait, index in list(self.waits.items()):
            if self.is_signaled_for(wait.thread):
                wait.try_satisfy(index, increment)
        processor.irql = irql
        if processor.pending:
            processor.take_pending()


def wait_for_multiple(
    objects: Sequence[DispatcherObject],
    wait_all: bool,
    timeout_ns: int | None = None,
    *,
    alertable: bool = False,
    mode: int = KERNEL_MODE,
) -> int:
    """Wait for one (status is its index) or all of `objects` (WDK: KeWaitForMultipleObjects)."""
    processor = objects[0].processor
    if processor.irql >= processor.dispatch_rules_from:
        _check_wait_irql(processor, timeout_ns, "KeWaitForMultipleObjects")
    thread = processor.current_thread
    if wait_all:
        if all(waited.is_signaled_for(thread) for waited in objects):
            return max(waited.take(thread) for waited in objects)
    else:
        for index, waited in enumerate(objects):
            if waited.is_signaled_for(thread):
                return waited.take(thread) + index
    if timeout_ns == 0:
        return _look(thread, alertable, mode)
    return _block(processor, objects, wait_all, timeout_ns, alertable, mode)


def delay_execution(
    processor: "Processor", interval_ns: int, *, alertable: bool = False, mode: int = KERNEL_MODE
) -> int:
    """Wait for nothing but the time (WDK: KeDelayExecutionThread)."""
    if processor.irql >= processor.dispatch_rules_from:
        _check_wait_irql(processor, interval_ns or None, "KeDelayExecutionThread")
    status = _block(processor, (), False, interval_ns, alertable, mode)
    return STATUS_SUCCESS if status == STATUS_TIMEOUT else status


def _check_wait_irql(processor: "Processor", timeout_ns: int | None, routine: str) -> None:
    if processor.irql <= DISPATCH_LEVEL and timeout_ns == 0:
        return
    if processor.in_dpc():
        processor.switch_from_dpc(routine)
    if processor.irql < DISPATCH_LEVEL:  # an equal of the DPC thread, which is in a routine
        return
    if processor.irql > DISPATCH_LEVEL:
        processor.irql_violation(APC_LEVEL, routine, _WAIT_ABOVE_DISPATCH)
    code = _WAIT_AT_DISPATCH if timeout_ns is None else _TIMED_WAIT_AT_DISPATCH
    processor.irql_violation(APC_LEVEL, routine, code)


def _look(thread: "KThread | None", alertable: bool, mode: int) -> int:
    # The end of a wait that may not block and whose objects are not signalled.
    if thread is not None and (alertable or mode == USER_MODE):
        return _broken_off(thread, mode, alertable) or STATUS_TIMEOUT
    return STATUS_TIMEOUT


def _block(
    processor: "Processor",
    objects: Sequence[DispatcherObject],
    wait_all: bool,
    timeout_ns: int | None,
    alertable: bool,
    mode: int,
) -> int:
    thread = processor.current_thread
    if thread is None:
        processor.switch_from_dpc("wait without a thread")
    irql = processor.irql
    wait = Wait(thread, objects, wait_all, irql, mode, alertable)
    for index, waited in enumerate(objects):
        waited.waits.setdefault(wait, index)
    dispatcher = processor.dispatcher
    if timeout_ns is not None:
        wait.deadline = dispatcher.timers.add(processor.clock.now_ns() + timeout_ns, wait)
    outer = thread.wait_block
    while wait.status is None:
        if (mode or alertable) and (broken := _broken_off(thread, mode, alertable)):
            wait.end(broken)
            break
        thread.wait_block = wait
        thread.make_waiting()
        dispatcher.switch_out(thread)
    thread.wait_block = outer
    assert wait.status is not None
    return wait.status


def _broken_off(thread: "KThread", mode: int, alertable: bool) -> int:
    # What ends a wait from outside; 0 if nothing does.
    if mode == USER_MODE and thread.terminating:
        return STATUS_THREAD_IS_TERMINATING
    if alertable:
        if thread.alerted:
            thread.alerted = False
            return STATUS_ALERTED
        if mode == USER_MODE and thread.user_apcs:
            return STATUS_USER_APC
    return 0
