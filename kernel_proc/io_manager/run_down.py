"""The end of threads and processes: no IRP is lost, no file stays open.

Rules: PASSIVE_LEVEL; run_down_thread in the thread itself, run_down_process in a system thread.
Spec: WDK, Handling IRP_MJ_CLEANUP; Canceling IRPs; docs/cancellation.md.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.io_manager.cancellation import cancel_matching, cancel_thread_io, threads_of
from kernel_proc.io_manager.create_close import close_last_handle
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import PASSIVE_LEVEL

_CLOSED_AT_ONCE: Final = 64  # handles, before others get the processor

if TYPE_CHECKING:
    from kernel_proc.io_manager.handle_table import HandleTable
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.process import KProcess


def close_file_handle(
    io: "IoManager", thread: "KThread", file: FileObject, lock: bool = True
) -> None:
    """Count one handle of a file out; the last one has the driver clean up."""
    file.handle_count -= 1
    if not file.handle_count:
        close_last_handle(io, thread, file, lock)


def run_down_thread(io: "IoManager", thread: "KThread") -> None:
    """Cancel the calling thread's requests and wait for them; the thread is about to end."""
    thread.terminate()
    cancel_thread_io(io, thread)


def run_down_process(io: "IoManager", process: "KProcess") -> None:
    """End a process's threads and files; on return no request of it is left.

    First every request is cancelled; then the handles are closed, so that a driver can also end
    at cleanup what it did not end at cancel; last, each thread waits for its own requests and
    ends. Requests a driver keeps for five minutes after their cancelling are detached. Memory and
    the process object itself are the caller's to end.
    """
    processor = process.processor
    processor.require_irql(PASSIVE_LEVEL, "run_down_process")
    current = processor.current_thread
    assert current is not None
    process.exiting = True
    threads = [thread for thread in threads_of(process) if not thread.is_system_thread]
    for thread in threads:
        thread.terminate()
        cancel_matching(thread, lambda _: True)
    for thread in threads:
        # Behind whatever the thread still does in the kernel; it is refused new requests.
        thread.enter_kernel(_exit_thread, io, thread)
    table: HandleTable | None = process.handle_table
    if table is not None:
        _close_handles(io, current, table)
    for thread in threads:
        thread.wait()
    if table is not None:
        _wait_for_closes(io, table)


def _exit_thread(io: "IoManager", thread: "KThread") -> None:
    cancel_thread_io(io, thread)
    thread.end()


def _close_handles(io: "IoManager", current: "KThread", table: "HandleTable") -> None:
    for number, handle in enumerate(list(table.entries), 1):
        target = table.remove(handle)
        if isinstance(target, FileObject):
            close_file_handle(io, current, target, lock=False)
        if not number % _CLOSED_AT_ONCE:
            io.processor.dispatcher.pause()


def _wait_for_closes(io: "IoManager", table: "HandleTable") -> None:
    if not table.closing:
        return
    event = io.close_watches[table] = Event(io.processor, notification=True)
    while table.closing:
        event.clear()
        event.wait()
    del io.close_watches[table]
