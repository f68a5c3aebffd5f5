"""The HCA's two tables for memory: keys (MPT) and translations (MTT).

A key is its index, with a generation above it, rotated left by 8. Keys are reused oldest first. The
translations of a region lie in a run of segments whose number is a power of two.

What a command that was not answered may still do to an entry must hit nobody else: the entry is
then never given out again.

Rules: PASSIVE_LEVEL; what sends commands waits.
Spec: Linux mthca_mr.c; docs/memory-registration.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_proc.driver.buddy import Buddy
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import (
    MPT_ENTRY,
    MTT_ENTRY_SIZE,
    MTT_SEGMENT_ENTRIES,
    WRITE_MTT_HEADER,
    WRITE_MTT_MOST_ENTRIES,
    MptEntry,
)
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver

_KEY_MASK: Final = (1 << 32) - 1
_PART: Final = WRITE_MTT_MOST_ENTRIES * MTT_ENTRY_SIZE


class MttRange(NamedTuple):
    """2^order segments from `first` on."""

    first: int
    order: int

    @property
    def address(self) -> int:
        """The byte offset in the MTT."""
        return self.first * MTT_SEGMENT_ENTRIES * MTT_ENTRY_SIZE


class OwnedKey:
    """A key that is somebody's; `in_hardware` while what it names is granted.

    `uncertain` when a command that grants or ends that was not answered: then the key is not used
    again, and `in_hardware` means that it may be granted.
    """

    __slots__ = ("in_hardware", "key", "uncertain")

    def __init__(self, key: int) -> None:
        self.key = key
        self.in_hardware = False
        self.uncertain = False


class MemoryKeys:
    """Both tables of one life of the HCA."""

    def __init__(self, driver: "HcaDriver") -> None:
        self._driver = driver
        self._mtt = Buddy(driver.limits.log_mtt_segments)
        reserved = driver.limits.device.reserved_mtt_segments
        if reserved:
            self._mtt.allocate((reserved - 1).bit_length())
        self.lost_keys = 0
        self.lost_ranges = 0

    # Translations

    def make_translations(self, entries: bytes) -> MttRange:
        """Have big-endian entries in the MTT; refuse with nothing changed."""
        mtt = self._allocate_range(len(entries) // MTT_ENTRY_SIZE)
        try:
            self._write(mtt.address, entries)
        except VerbRefused as refusal:
            self.free_translations(mtt, for_good=refusal.unanswered)
            raise
        return mtt

    def free_translations(self, mtt: MttRange, *, for_good: bool = False) -> None:
        """Give a range back that no key uses; `for_good` keeps it from being used again."""
        if for_good:
            self.lost_ranges += 1
            return
        self._driver.icm.put_range("mtt", mtt.first, 1 << mtt.order)
        self._mtt.free(mtt.first)

    def _allocate_range(self, count: int) -> MttRange:
        segments = max(1, -(-count // MTT_SEGMENT_ENTRIES))
        order = (segments - 1).bit_length()
        first = self._mtt.allocate(order) if order <= self._mtt.log_size else None
        if first is None:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_TRANSLATIONS, 0, count)
        try:
            self._driver.icm.get_range("mtt", first, 1 << order)
        except BaseException:
            self._mtt.free(first)
            raise
        return MttRange(first, order)

    def _write(self, address: int, entries: bytes) -> None:
        for start in range(0, len(entries), _PART):
            part = entries[start : start + _PART]
            count = len(part) // MTT_ENTRY_SIZE
            inbox = WRITE_MTT_HEADER.pack(address + start, 0) + part
            # The count is even: an odd one writes one entry of zero within the segment.
            self._driver.channel.run(op.WRITE_MTT, modifier=count + (count & 1), inbox=inbox)

    # Keys

    def allocate_key(self, owner: object = None) -> int:
        """Return a key nobody has, with its place in the MPT; refuse with nothing changed."""
        numbers = self._driver.numbers.mpt
        number = numbers.take(owner)
        try:
            self._driver.icm.get("mpt", numbers.index_of(number))
        except BaseException:
            numbers.free(number)
            raise
        return (number << 8 | number >> 24) & _KEY_MASK

    def free_key(self, key: int, *, for_good: bool = False) -> None:
        """Give a key back that the HCA does not own; `for_good` keeps it from being used again."""
        if for_good:
            self.lost_keys += 1
            return
        number = _number_of(key)
        numbers = self._driver.numbers.mpt
        self._driver.icm.put("mpt", numbers.index_of(number))
        numbers.free(number)

    def give_to_hardware(self, entry: MptEntry) -> None:
        """Make a key valid: SW2HW_MPT."""
        self._driver.channel.run(
            op.SW2HW_MPT, modifier=self._index(entry.key), inbox=MPT_ENTRY.pack(*entry)
        )

    def take_from_hardware(self, key: int, *, unbind: bool = False) -> None:
        """Make a key invalid: HW2SW_MPT; when it is done no access by it is under way.

        A region that windows are bound to stays (REG_BOUND), unless they are to be unbound.
        """
        opmod = op.HW2SW_MPT_NO_OUTBOX | (op.HW2SW_MPT_UNBIND if unbind else 0)
        self._driver.channel.run(op.HW2SW_MPT, modifier=self._index(key), opmod=opmod)

    def grant(self, owned: OwnedKey, entry: MptEntry) -> None:
        """Have the HCA grant what the entry says by a key that is owned."""
        try:
            self.give_to_hardware(entry)
        except VerbRefused as refusal:
            if refusal.unanswered:
                owned.uncertain = owned.in_hardware = True
            raise
        owned.in_hardware = True

    def revoke(self, owned: OwnedKey, *, unbind: bool = False) -> None:
        """Have the HCA grant nothing by the key any more.

        If that was not answered once, it may have been done late: then it need not be done again.
        """
        if not owned.in_hardware:
            return
        try:
            self.take_from_hardware(owned.key, unbind=unbind)
        except VerbRefused as refusal:
            done_late = owned.uncertain and refusal.is_status(
                op.HW2SW_MPT, op.CMD_STAT_BAD_RES_STATE
            )
            owned.uncertain |= refusal.unanswered
            if not done_late:
                raise
        owned.in_hardware = False

    def _index(self, key: int) -> int:
        return self._driver.numbers.mpt.index_of(_number_of(key))

    def inspect(self) -> dict[str, Any]:
        """Return the use of the MTT, and what was lost to commands without an answer."""
        return {
            "mtt_segments": self._mtt.inspect(),
            "lost_keys": self.lost_keys,
            "lost_ranges": self.lost_ranges,
        }


def _number_of(key: int) -> int:
    return (key >> 8 | key << 24) & _KEY_MASK
