"""Raw buffers of METHOD_NEITHER and fast I/O: guarded copies from and to where they lie.

A user's buffer is an address in the memory of its process; a kernel client's is the object itself.
Every copy is counted. A fault raises RaisedStatus, whose status the driver completes with.

Rules: <= APC_LEVEL, in the requesting thread, which may wait.
Spec: WDK, Using Neither Buffered Nor Direct I/O; ProbeForRead; ProbeForWrite.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.nt_status import STATUS_INVALID_USER_BUFFER

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.memory.address_space import AddressSpace, Bytes


def read_user_buffer(irp: "Irp", buffer: Any, length: int) -> bytes:
    """Return a copy of `length` bytes of a raw buffer of this request."""
    if irp.requestor_mode == KERNEL_MODE:
        with memoryview(buffer) as view:
            data = bytes(view[:length])
    else:
        data = _address_space(irp).read(buffer, length)
    irp.io.copy_counters.count(length)
    return data


def write_user_buffer(irp: "Irp", buffer: Any, data: "Bytes") -> None:
    """Store `data` in a raw buffer of this request."""
    length = memoryview(data).nbytes
    if irp.requestor_mode == KERNEL_MODE:
        buffer[:length] = data
    else:
        _address_space(irp).write(buffer, data)
    irp.io.copy_counters.count(length)


def _address_space(irp: "Irp") -> "AddressSpace":
    # That of the process that asked: which thread runs now is checked by the access itself.
    thread = irp.thread
    if thread is None or thread.process is None:
        raise RaisedStatus(STATUS_INVALID_USER_BUFFER, f"{irp} belongs to no user")
    space: AddressSpace = thread.process.address_space
    return space
