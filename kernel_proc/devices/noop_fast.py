"""The no-op driver's fast I/O: the caller's own addresses, touched at once, and no IRP.

Codes made by `noop_fast_code` are taken if they are to be completed inline and their method is
BUFFERED or NEITHER, whose buffers mean the same here; all others are declined.

Rules: PASSIVE_LEVEL, the caller's thread, which may wait for its private memory.
Spec: shared/ioctl_codes.py; WDK, FAST_IO_DISPATCH; Operations That Can Be IRP-Based or Fast I/O.
"""

from typing import TYPE_CHECKING, Final
from zlib import crc32

from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import (
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_NEITHER,
    noop_fast_code,
)
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.irp import IoStatusBlock
    from kernel_proc.memory.address_space import AddressSpace

_PIECE: Final = 1 << 20
_TAKEN: Final = frozenset(
    noop_fast_code(method, COMPLETION_INLINE) for method in (METHOD_BUFFERED, METHOD_NEITHER)
)


def fast_device_control(
    file: "FileObject",
    wait: bool,
    input_address: int,
    input_length: int,
    output_address: int,
    output_length: int,
    code: int,
    iosb: "IoStatusBlock",
    device: "DeviceObject",
) -> bool:
    """Finish a request without an IRP, or decline it (WDK: FastIoDeviceControl)."""
    if code not in _TAKEN:
        return False
    thread = device.processor.current_thread
    if thread is None or thread.process is None:
        return False
    information = min(input_length, output_length) if output_length else input_length
    try:
        _touch(
            device,
            thread.process.address_space,
            (input_address, input_length),
            (output_address, information if output_length else 0),
        )
    except RaisedStatus as fault:
        iosb.status, iosb.information = fault.status, 0
    else:
        iosb.status, iosb.information = STATUS_SUCCESS, information
    return True


def _touch(
    device: "DeviceObject",
    space: "AddressSpace",
    source: tuple[int, int],
    target: tuple[int, int],
) -> None:
    """Read every byte of the source and write what there is room for; a bad address raises.

    In pieces, because a user's private memory is copied to be read, and may be larger than ours.
    """
    address, length = source
    result_address, result_length = target
    count = device.io.copy_counters.count
    for offset in range(0, length, _PIECE):
        size = min(_PIECE, length - offset)
        data: memoryview | bytes | None = space.arena_view(address + offset, size)
        if data is None:
            data = space.read(address + offset, size)
            count(size)
        crc32(data)
        size = min(size, result_length - offset)
        if size <= 0:
            continue
        result = space.arena_view(result_address + offset, size)
        if result is not None:
            result[:] = data[:size]
        else:
            space.write(result_address + offset, memoryview(data)[:size])
            count(size)
