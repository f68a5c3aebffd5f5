"""Commands on the MPT and the MTT.

Spec: Linux drivers/infiniband/hw/mthca/mthca_mr.c; docs/command-interface.md.
"""

from array import array
from typing import Final

from kernel_proc.hca.command import (
    Command,
    CommandNotYet,
    CommandRefused,
    bad_index,
    bad_parameter,
    bad_resource_state,
)
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.memory_key import MemoryKey, check_entry
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi

_STATUS_BITS: Final = 0xF << 28
_MOST_READ: Final = 512


def _index(hca: HcaTables, command: Command) -> int:
    index = command.modifier
    if not hca.limits.reserved_mpts <= index < hca.translation.key_count:
        raise bad_index()
    hca.require_icm(hca.bases.mpt_base, index, abi.MPT_SIZE)
    return index


def sw2hw_mpt(hca: HcaTables, command: Command) -> None:
    """Give a memory key to the hardware: a region's, or that of a window to be bound."""
    index = _index(hca, command)
    entry = abi.MptEntry(*command.unpack(abi.MPT_ENTRY))
    if hca.translation.entry(index) is not None:
        raise bad_resource_state()
    if hca.translation.index_of(entry.key) != index:
        raise bad_parameter()
    if not check_entry(entry, hca.translation.mtt_entries):
        raise bad_parameter()
    entry = entry._replace(flags=entry.flags & ~_STATUS_BITS)
    if entry.flags & abi.MPT_FLAG_REGION:
        key = MemoryKey(entry)
    else:
        key = hca.windows[index] = MemoryWindow(entry)
    if key.mtt_entries:
        _require_mtt(hca, key.first_mtt, key.mtt_entries)
    hca.translation.insert(index, key)


def hw2sw_mpt(hca: HcaTables, command: Command) -> None:
    """Take a memory key back: from now on it names nothing, and a window is bound to nothing."""
    index = _index(hca, command)
    key = _owned(hca, index)
    if key.windows and not command.opmod & op.HW2SW_MPT_UNBIND:
        raise CommandRefused(op.CMD_STAT_REG_BOUND)
    if key.users:
        raise CommandRefused(op.CMD_STAT_RESOURCE_BUSY)
    if key.copies:
        raise CommandNotYet
    if key.windows:
        _unbind_windows_of(hca, key)
    if not command.opmod & op.HW2SW_MPT_NO_OUTBOX:
        command.outbox(_pack(key, abi.MPT_STATUS_SOFTWARE))
    hca.translation.remove(index)
    window = hca.windows.pop(index, None)
    if window is not None:
        window.unbind()


def _unbind_windows_of(hca: HcaTables, key: MemoryKey) -> None:
    """Unbind every window of a region; not yet while a copy by one of them is under way."""
    windows = [window for window in hca.windows.values() if window.region is key]
    if any(window.copies for window in windows):
        raise CommandNotYet
    for window in windows:
        window.unbind()


def query_mpt(hca: HcaTables, command: Command) -> None:
    """Answer an entry that the hardware owns."""
    command.outbox(_pack(_owned(hca, _index(hca, command)), 0))


def _owned(hca: HcaTables, index: int) -> MemoryKey:
    key = hca.translation.entry(index)
    if key is None:
        raise bad_resource_state()
    return key


def _pack(key: MemoryKey, status: int) -> bytes:
    entry = key.entry._replace(flags=key.flags | status, window_count=key.windows)
    return abi.MPT_ENTRY.pack(*entry)


def _require_mtt(hca: HcaTables, first: int, count: int) -> None:
    start = hca.bases.mtt_base + first * abi.MTT_ENTRY_SIZE
    if not hca.icm.is_mapped(start, count * abi.MTT_ENTRY_SIZE):
        raise bad_resource_state()


def _mtt_range(hca: HcaTables, address: int, count: int, most: int) -> int:
    """Check a range of the MTT and return its first entry."""
    first, rest = divmod(address, abi.MTT_ENTRY_SIZE)
    if rest or not 0 < count <= most:
        raise bad_parameter()
    if first + count > hca.translation.mtt_entries:
        raise bad_index()
    _require_mtt(hca, first, count)
    return first


def write_mtt(hca: HcaTables, command: Command) -> None:
    """Store up to 510 entries; their number is rounded up to even by those who count in pairs."""
    count = command.modifier
    if not 0 < count <= abi.WRITE_MTT_MOST_ENTRIES:
        raise bad_parameter()
    head = abi.WRITE_MTT_HEADER.size
    mailbox = command.inbox(head + count * abi.MTT_ENTRY_SIZE)
    address, _ = abi.WRITE_MTT_HEADER.unpack_from(mailbox)
    first = _mtt_range(hca, address, count, abi.WRITE_MTT_MOST_ENTRIES)
    hca.translation.write_mtt(first, mailbox[head:])


def read_mtt(hca: HcaTables, command: Command) -> None:
    """Answer up to 512 entries from the address in `in_param`."""
    first = _mtt_range(hca, command.in_param, command.modifier, _MOST_READ)
    command.check_outbox()
    entries: array[int] = hca.translation.read_mtt(first, command.modifier)
    command.outbox(b"".join(entry.to_bytes(8, "big") for entry in entries))


def sync_tpt(hca: HcaTables, command: Command) -> None:
    """Let no translation be used that was changed before: none is kept here beyond a command."""


_READY: Final = FirmwareState.INITIALISED

HANDLERS: Final = {
    op.SW2HW_MPT: (sw2hw_mpt, _READY),
    op.HW2SW_MPT: (hw2sw_mpt, _READY),
    op.QUERY_MPT: (query_mpt, _READY),
    op.WRITE_MTT: (write_mtt, _READY),
    op.READ_MTT: (read_mtt, _READY),
    op.SYNC_TPT: (sync_tpt, _READY),
}
