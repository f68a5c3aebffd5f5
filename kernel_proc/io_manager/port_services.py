"""The system services around completion ports.

Rules: PASSIVE_LEVEL, in the calling thread, which may wait.
Spec: WDK, NtCreateIoCompletion, NtSetInformationFile (FileCompletionInformation),
NtRemoveIoCompletion, NtSetIoCompletion.
"""

from typing import TYPE_CHECKING

from kernel_proc.io_manager.completion_port import (
    SIZE_OF_PACKET,
    CompletionPacket,
    CompletionPort,
    PoolCharge,
)
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.handle_table import reference_object
from kernel_proc.io_manager.irp_flags import IO_COMPLETION_ALL_ACCESS, IO_COMPLETION_MODIFY_STATE
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TOO_MANY_OPENED_FILES,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.scheduling.kthread import KThread


def create_io_completion(io: "IoManager", thread: "KThread") -> tuple[int, int]:
    """Make a completion port."""
    process = thread.process
    if process is None or process.exiting or thread.terminating:
        return STATUS_THREAD_IS_TERMINATING, 0
    port = CompletionPort(io.processor)
    handle = process.handle_table.insert(port, IO_COMPLETION_ALL_ACCESS)
    return (STATUS_SUCCESS, handle) if handle else (STATUS_TOO_MANY_OPENED_FILES, 0)


def set_file_completion(
    io: "IoManager", thread: "KThread", file_handle: int, port_handle: int, key: int
) -> int:
    """Have an overlapped file report to a port; once for the file's life."""
    status, file = reference_object(thread, file_handle, FileObject, 0)
    if file is None:
        return status
    status, port = reference_object(thread, port_handle, CompletionPort, IO_COMPLETION_MODIFY_STATE)
    if port is None:
        return status
    if file.synchronous or file.completion_port is not None:
        return STATUS_INVALID_PARAMETER
    file.completion_port = port
    file.completion_key = key
    return STATUS_SUCCESS


def set_io_completion(
    io: "IoManager", thread: "KThread", port_handle: int, packet: CompletionPacket
) -> int:
    """Queue a packet of the caller's own, charged to its quota until it is taken."""
    status, port = reference_object(thread, port_handle, CompletionPort, IO_COMPLETION_MODIFY_STATE)
    process = thread.process
    if port is None or process is None:
        return status
    if not process.charge_pool(SIZE_OF_PACKET):
        return STATUS_INSUFFICIENT_RESOURCES
    port.post(*packet, PoolCharge(process, SIZE_OF_PACKET))
    return STATUS_SUCCESS


def remove_io_completion(
    io: "IoManager",
    thread: "KThread",
    port_handle: int,
    timeout_ns: int | None,
    alertable: bool = True,
) -> tuple[int, CompletionPacket | None]:
    """Wait for a packet; return the status of the wait and the packet, if there is one."""
    status, port = reference_object(thread, port_handle, CompletionPort, IO_COMPLETION_MODIFY_STATE)
    if port is None:
        return status, None
    result: tuple[int, CompletionPacket | None] = port.remove(timeout_ns, alertable=alertable)
    return result
