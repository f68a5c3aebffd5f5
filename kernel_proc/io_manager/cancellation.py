"""Cancelling IRPs: the cancel spin lock, cancel routines, and all requests of a thread.

Rules: cancel_irp and set_cancel_routine at <= DISPATCH_LEVEL; a cancel routine runs at
DISPATCH_LEVEL with the cancel spin lock held and releases it with `irp.cancel_irql`.
Spec: WDK, Canceling IRPs; IoCancelIrp; IoSetCancelRoutine; docs/cancellation.md.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.completion import remove_from_thread
from kernel_proc.io_manager.registry import io_manager_of
from kernel_proc.scheduling.bugcheck import CANCEL_STATE_IN_COMPLETED_IRP
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_CANCELLED, STATUS_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_proc.io_manager.irp import CancelRoutine, Irp
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.process import KProcess
    from kernel_proc.scheduling.processor import Processor

CANCEL_DEADLINE_NS: Final = 300 * 1_000_000_000  # NT: 3000 looks, one every 100 ms


def acquire_cancel_spin_lock(processor: "Processor") -> int:
    """Take the cancel spin lock; return the old IRQL (WDK: IoAcquireCancelSpinLock)."""
    return io_manager_of(processor).cancel_lock.acquire()


def release_cancel_spin_lock(processor: "Processor", irql: int) -> None:
    """Give the cancel spin lock back (WDK: IoReleaseCancelSpinLock)."""
    io_manager_of(processor).cancel_lock.release(irql)


def set_cancel_routine(irp: "Irp", routine: "CancelRoutine | None") -> "CancelRoutine | None":
    """Exchange the cancel routine; return the old one (WDK: IoSetCancelRoutine).

    Setting None and getting None back means that the routine has been called, or soon will be.
    """
    if irp.verifier_record is not None and routine is not None:
        assert irp.io.verifier is not None
        irp.io.verifier.check_set_cancel(irp)
    old = irp.cancel_routine
    irp.cancel_routine = routine
    return old


def cancel_irp(irp: "Irp") -> bool:
    """Mark an IRP cancelled and call its cancel routine; False if it has none (IoCancelIrp)."""
    processor = irp.processor
    if processor.irql > DISPATCH_LEVEL:
        processor.irql_violation(DISPATCH_LEVEL, "IoCancelIrp")
    lock = irp.io.cancel_lock
    irql = lock.acquire()
    irp.cancel = True
    routine = irp.cancel_routine
    if routine is None:
        lock.release(irql)
        return False
    irp.cancel_routine = None
    irp.cancel_irql = irql
    current = irp.current_location
    if current > irp.stack_count + 1:
        processor.bug_check(
            CANCEL_STATE_IN_COMPLETED_IRP,
            id(irp),
            detail=f"{irp} is complete and has cancel routine {routine!r}",
        )
    device = irp.stack[current].device_object if current <= irp.stack_count else None
    try:
        routine(device, irp)
    except Exception as error:
        processor.unhandled_exception(error, f"cancel routine {routine!r}")
    if irp.io.verifier is not None:
        irp.io.verifier.check_cancel_returned(irp, routine)
    return True


def cancel_matching(thread: "KThread", wanted: "Callable[[Irp], bool]") -> int:
    """Cancel the IRPs of a thread that `wanted` picks and nobody cancelled yet; return how many."""
    cancelled = 0
    for irp in list(thread.irps):
        # In the list still: one that has ended meanwhile may be another thread's by now.
        if irp in thread.irps and not irp.cancel and wanted(irp):
            cancel_irp(irp)
            cancelled += 1
    return cancelled


def threads_of(process: "KProcess") -> "list[KThread]":
    """Return a process's threads, oldest first: always the same order."""
    return sorted(process.threads, key=lambda thread: thread.number)


def cancel_thread_io(io: "IoManager", thread: "KThread") -> None:
    """Cancel every IRP of the calling thread and wait for their end (NT: IoCancelThreadIo).

    What has not ended after five minutes is detached: it keeps its memory and its file until
    its driver completes it, but is no longer the thread's.
    """
    deadline = thread.processor.clock.now_ns() + CANCEL_DEADLINE_NS
    if not wait_for_irps(io, thread, lambda _: True, deadline):
        for irp in list(thread.irps):
            detach_irp(irp)


def wait_for_irps(
    io: "IoManager",
    thread: "KThread",
    wanted: "Callable[[Irp], bool]",
    deadline_ns: int | None = None,
) -> bool:
    """Cancel the calling thread's `wanted` IRPs and wait until none is left; False if too late."""
    cancel_matching(thread, wanted)
    if not any(wanted(irp) for irp in thread.irps):
        return True
    clock = thread.processor.clock
    event = io.irp_watches[thread] = Event(thread.processor, notification=False)
    try:
        while any(wanted(irp) for irp in thread.irps):
            left = None if deadline_ns is None else deadline_ns - clock.now_ns()
            if left is not None and (left <= 0 or event.wait(left) == STATUS_TIMEOUT):
                return not any(wanted(irp) for irp in thread.irps)
            if left is None:
                event.wait()
    finally:
        del io.irp_watches[thread]
    return True


def detach_irp(irp: "Irp") -> None:
    """Part a cancelled IRP its driver kept too long from its thread, which goes on without it.

    NT tells nobody. Here a user request ends as cancelled, so that whoever counts or awaits it
    can go on; when the driver completes the IRP at last, it is only freed.
    """
    io = irp.io
    if io.verifier is not None:
        io.verifier.not_completed_in_time(irp)
    io.note(f"{irp} was cancelled {CANCEL_DEADLINE_NS // 1_000_000_000} s ago; detached")
    io.detached_irps += 1
    remove_from_thread(irp)
    irp.thread = None
    irp.user_event = None
    irp.user_iosb = None
    irp.finish_buffers = None
    request = irp.request
    irp.request = None
    if request is not None:
        request.finished = True
        if request.returned:
            request.iosb_written = True
            request.iosb_status = STATUS_CANCELLED
            request.information = 0
            if request.on_finished is not None:
                request.on_finished(request)
