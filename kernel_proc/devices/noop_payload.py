"""How the no-op device touches a payload: every byte read, every byte of the result written.

Each routine returns `Information`, or raises RaisedStatus when the caller's memory faults. The
payload is touched in the dispatch routine whoever completes the request: METHOD_NEITHER leaves
no other place, and so rows of a benchmark differ in the method alone.

Rules: <= APC_LEVEL, in the caller's thread, which may wait for its private memory.
Spec: WDK, Buffer Descriptions for I/O Control Codes; Using Neither Buffered Nor Direct I/O.
"""

from typing import Any, Final
from zlib import crc32

from kernel_proc.io_manager.irp import IoStackLocation, Irp
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.mdl import map_locked_pages
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.nt_status import STATUS_INVALID_PARAMETER

_PIECE: Final = 1 << 20


def information_of(location: IoStackLocation) -> int:
    """Return the bytes of result: as many as both sides hold, or the input when none is asked."""
    length = location.input_buffer_length
    result_length = location.output_buffer_length
    return length if not result_length or length < result_length else result_length


def touch_buffered(irp: Irp, location: IoStackLocation) -> int:
    """Read and rewrite the system buffer; the I/O manager moves it to and from the caller."""
    length = location.input_buffer_length
    result_length = location.output_buffer_length
    if not length:
        return 0
    with memoryview(irp.system_buffer) as view:
        crc32(view[:length])
        if not result_length:
            return length
        information = min(length, result_length)
        view[:information] = view[:information]
    return information


def touch_neither(irp: Irp, location: IoStackLocation) -> int:
    """Read and write the raw addresses of a user, or the buffers a kernel client refers to."""
    length = location.input_buffer_length
    if not length:
        return 0
    information = information_of(location)
    result_length = location.output_buffer_length
    source: Any = location.type3_input_buffer
    if irp.requestor_mode == KERNEL_MODE:
        crc32(source)
        if result_length:
            irp.user_buffer[:information] = source[:information]
        return information
    thread = irp.thread
    assert thread is not None
    assert thread.process is not None
    space: AddressSpace = thread.process.address_space
    view = space.arena_view(source, length)
    target = space.arena_view(irp.user_buffer, information) if result_length else None
    if view is not None and (target is not None or not result_length):
        crc32(view)
        if target is not None:
            target[:] = view[:information]
    else:
        target_address = irp.user_buffer if result_length else None
        _touch_pieces(irp, space, source, length, target_address, information)
    return information


def _touch_pieces(
    irp: Irp, space: AddressSpace, source: int, length: int, target: int | None, information: int
) -> None:
    """Do the same by copies, in pieces: a user's private memory may be larger than the kernel's."""
    count = irp.io.copy_counters.count
    checksum = 0
    for offset in range(0, length, _PIECE):
        data = space.read(source + offset, min(_PIECE, length - offset))
        count(len(data))
        checksum = crc32(data, checksum)
        if target is not None and offset < information:
            result = memoryview(data)[: information - offset]
            space.write(target + offset, result)
            count(len(result))


def touch_in_direct(irp: Irp, location: IoStackLocation) -> int:
    """Read both inputs: the small one in the system buffer, the large one in its locked pages."""
    length = location.input_buffer_length
    if length:
        with memoryview(irp.system_buffer) as view:
            crc32(view[:length])
    if location.output_buffer_length:
        mapping = map_locked_pages(irp.mdl_address)
        pages = mapping.view
        crc32(mapping.read(0, location.output_buffer_length) if pages is None else pages)
    return information_of(location)


def touch_out_direct(irp: Irp, location: IoStackLocation) -> int:
    """Read the input in the system buffer and write it into the caller's locked pages."""
    length = location.input_buffer_length
    if not length:
        return 0
    information = information_of(location)
    with memoryview(irp.system_buffer) as source:
        crc32(source[:length])
        if location.output_buffer_length:
            mapping = map_locked_pages(irp.mdl_address)
            mapping.write(0, source[:information])
    return information


def read_status(irp: Irp, location: IoStackLocation, is_neither: bool) -> int:
    """Return the status a failing request asks for: its first four input bytes."""
    if location.input_buffer_length < 4:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "a status has four bytes")
    source: Any = location.type3_input_buffer if is_neither else irp.system_buffer
    if is_neither and irp.requestor_mode != KERNEL_MODE:
        thread = irp.thread
        assert thread is not None
        assert thread.process is not None
        source = thread.process.address_space.read(source, 4)
    return int.from_bytes(bytes(source[:4]), "little")
