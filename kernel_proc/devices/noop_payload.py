"""How the no-op device touches a payload: every byte read, every byte of the result written.

Each routine sets Information and returns the final status, or raises RaisedStatus when the
caller's memory faults or the input makes no sense. The payload is touched in the dispatch
routine whoever completes the request: METHOD_NEITHER leaves no other place, and so rows of a
benchmark differ in the method alone.

Rules: <= APC_LEVEL, in the caller's thread, which may wait for its private memory.
Spec: WDK, Buffer Descriptions for I/O Control Codes; Using Neither Buffered Nor Direct I/O.
"""

from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

from kernel_proc.io_manager.irp import IoStackLocation, Irp
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.mdl import map_locked_pages
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.ioctl_codes import METHOD_IN_DIRECT, METHOD_NEITHER, METHOD_OUT_DIRECT, NOOP_FILL
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_PENDING, STATUS_SUCCESS

_PIECE: Final = 1 << 20
_STATUS_BYTES: Final = 4
_DIRECT: Final = (METHOD_IN_DIRECT, METHOD_OUT_DIRECT)
_FILLED: Final = memoryview(bytes([NOOP_FILL]) * _PIECE)

# No request may be completed with these two: they mean "not complete" (bug check 0xC9/0x06).
_NO_FINAL_STATUS: Final = frozenset({STATUS_PENDING, 0xFFFF_FFFF})


def information_of(location: IoStackLocation) -> int:
    """Return the bytes of result: as many as both sides hold, or the input when none is asked.

    A direct method without a small input moves its large buffer alone.
    """
    length = location.input_buffer_length
    result_length = location.output_buffer_length
    if not length and location.io_control_code & 3 in _DIRECT:
        return result_length
    return length if not result_length or length < result_length else result_length


def ignore(irp: Irp, location: IoStackLocation) -> int:
    """Leave the payload alone."""
    irp.information = information_of(location)
    return STATUS_SUCCESS


def touch_buffered(irp: Irp, location: IoStackLocation) -> int:
    """Read and rewrite the system buffer; the I/O manager moves it to and from the caller."""
    length = location.input_buffer_length
    if not length:
        irp.information = 0
        return STATUS_SUCCESS
    irp.information = information = information_of(location)
    view = memoryview(irp.system_buffer)
    crc32(view[:length])
    if location.output_buffer_length:
        view[:information] = view[:information]
    return STATUS_SUCCESS


def touch_neither(irp: Irp, location: IoStackLocation) -> int:
    """Read and write the raw addresses of a user, or the buffers a kernel client refers to."""
    length = location.input_buffer_length
    if not length:
        irp.information = 0
        return STATUS_SUCCESS
    irp.information = information = information_of(location)
    source: Any = location.type3_input_buffer
    has_result = location.output_buffer_length
    if irp.requestor_mode == KERNEL_MODE:
        crc32(source)
        if has_result:
            irp.user_buffer[:information] = (
                source if length == information else source[:information]
            )
        return STATUS_SUCCESS
    space = _address_space(irp)
    view = space.arena_view(source, length)
    target = space.arena_view(irp.user_buffer, information) if has_result else None
    if view is None or (target is None and has_result):
        _touch_pieces(irp, space, source, length, information if has_result else 0)
        return STATUS_SUCCESS
    if length <= _PIECE:
        crc32(view)
        if target is not None:
            target[:] = view[:information]
        return STATUS_SUCCESS
    for offset, size in _pieces(irp, length):
        crc32(view[offset : offset + size])
        if target is not None:
            part = view[offset : min(offset + size, information)]
            target[offset : offset + len(part)] = part
    return STATUS_SUCCESS


def _pieces(irp: Irp, length: int) -> Iterator[tuple[int, int]]:
    """Cut a payload of any length, and let other threads run between two pieces."""
    for offset in range(0, length, _PIECE):
        if offset:
            irp.processor.dispatcher.yield_execution()
        yield offset, min(_PIECE, length - offset)


def _address_space(irp: Irp) -> AddressSpace:
    """Return the requesting process's address space; its thread is the current one."""
    thread = irp.thread
    assert thread is not None
    assert thread.process is not None
    space: AddressSpace = thread.process.address_space
    return space


def _touch_pieces(
    irp: Irp, space: AddressSpace, source: int, length: int, result_length: int
) -> None:
    """Do the same by copies, in pieces: a user's private memory may be larger than the kernel's."""
    count = irp.io.copy_counters.count
    checksum = 0
    for offset, size in _pieces(irp, length):
        data = space.read(source + offset, size)
        count(size)
        checksum = crc32(data, checksum)
        if offset < result_length:
            result = memoryview(data)[: result_length - offset]
            space.write(irp.user_buffer + offset, result)
            count(len(result))


def touch_in_direct(irp: Irp, location: IoStackLocation) -> int:
    """Read both inputs: the small one in the system buffer, the large one in its locked pages."""
    irp.information = information_of(location)
    length = location.input_buffer_length
    if length:
        crc32(memoryview(irp.system_buffer)[:length])
    large = location.output_buffer_length
    if large:
        mapping = map_locked_pages(irp.mdl_address)
        for offset, size in _pieces(irp, large):
            if mapping.view is None:  # private memory is copied to be read
                crc32(mapping.read(offset, size))
                irp.io.copy_counters.count(size)
            else:
                crc32(mapping.view[offset : offset + size])
    return STATUS_SUCCESS


def touch_out_direct(irp: Irp, location: IoStackLocation) -> int:
    """Read the input in the system buffer and write it, or a pattern, into the locked pages."""
    irp.information = information = information_of(location)
    length = location.input_buffer_length
    if length:
        source = memoryview(irp.system_buffer)[:length]
        crc32(source)
    if not location.output_buffer_length:
        return STATUS_SUCCESS
    mapping = map_locked_pages(irp.mdl_address)
    if length:
        mapping.write(0, source[:information])
    else:
        for offset, size in _pieces(irp, information):
            mapping.write(offset, _FILLED[:size])
    if mapping.view is None:
        irp.io.copy_counters.count(information)
    return STATUS_SUCCESS


def fail(irp: Irp, location: IoStackLocation) -> int:
    """Return the status that the first four bytes of the input ask for."""
    irp.information = 0
    if location.input_buffer_length < _STATUS_BYTES:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "a status has four bytes")
    if location.io_control_code & 3 != METHOD_NEITHER:
        source: Any = irp.system_buffer
    elif irp.requestor_mode == KERNEL_MODE:
        source = location.type3_input_buffer
    else:
        source = _address_space(irp).read(location.type3_input_buffer, _STATUS_BYTES)
        irp.io.copy_counters.count(_STATUS_BYTES)
    status = int.from_bytes(bytes(source[:_STATUS_BYTES]), "little")
    if status in _NO_FINAL_STATUS:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "not a final status")
    return status
