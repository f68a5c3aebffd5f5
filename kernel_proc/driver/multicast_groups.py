"""Multicast groups in the HCA's table: a hashed head for each, and chained entries of 56 QPs.

Half of the table is found by hashing; entries of the other half are linked to a head whose place
is taken. A GID of zeros marks a head that is free, a next index of 0 the end of a chain. A member
that leaves is replaced by the last one, so members have no gaps.

Rules: PASSIVE_LEVEL, waits for commands; the table is changed under one KMUTEX.
Spec: IBA vol. 1, 10.5; Linux drivers/infiniband/hw/mthca/mthca_mcg.c.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import (
    MGM_ENTRY_SIZE,
    MGM_HEAD,
    MGM_QP_OFFSET,
    MGM_QP_VALID,
    MGM_QPS,
)
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver

_NO_GID: Final = bytes(16)
_NEXT_SHIFT: Final = 6
_HASH_MASK: Final = 0xFFFF


class Member(Protocol):
    """A QP, as far as groups care."""

    number: int
    groups: dict[bytes, None]


class Entry:
    """One entry of the table, taken apart."""

    __slots__ = ("gid", "members", "next")

    def __init__(self, gid: bytes, members: list[int], following: int = 0) -> None:
        self.gid = gid
        self.members = members
        self.next = following

    @classmethod
    def decode(cls, raw: bytes) -> "Entry":
        """Take an entry apart; members end at the first that is not valid."""
        following, gid = MGM_HEAD.unpack_from(raw)
        members = []
        for place in range(MGM_QP_OFFSET, MGM_ENTRY_SIZE, 4):
            word = int.from_bytes(raw[place : place + 4], "big")
            if not word & MGM_QP_VALID:
                break
            members.append(word & ~MGM_QP_VALID)
        return cls(gid, members, following >> _NEXT_SHIFT)

    def encode(self) -> bytes:
        """Put an entry together."""
        words = b"".join((MGM_QP_VALID | qpn).to_bytes(4, "big") for qpn in self.members)
        head = MGM_HEAD.pack(self.next << _NEXT_SHIFT, self.gid)
        return (head + words).ljust(MGM_ENTRY_SIZE, b"\0")


class Place(NamedTuple):
    """Where a group is: its entry's index, and that of the one before it in the chain, or -1.

    `at` is -1 when the chain has neither the group nor a free head; `entry` is then its last.
    """

    at: int
    previous: int
    entry: Entry


def _read(driver: "HcaDriver", index: int) -> Entry:
    result = driver.channel.run(op.READ_MGM, modifier=index, outbox_length=MGM_ENTRY_SIZE)
    return Entry.decode(result.outbox)


def _write(driver: "HcaDriver", index: int, entry: Entry) -> None:
    driver.channel.run(op.WRITE_MGM, modifier=index, inbox=entry.encode())


def _find(driver: "HcaDriver", gid: bytes) -> Place:
    """Walk the chain that a GID is in, if it is in the table."""
    index = driver.channel.run(op.MGID_HASH, inbox=gid).out_param & _HASH_MASK
    previous = -1
    while True:
        entry = _read(driver, index)
        if entry.gid in (gid, _NO_GID):
            return Place(index, previous, entry)
        previous, index = index, entry.next
        if not index:
            return Place(-1, previous, entry)


@contextmanager
def _table(driver: "HcaDriver") -> Iterator[None]:
    lock = notification_of(driver).multicast_lock
    lock.wait()
    try:
        yield
    finally:
        lock.release()


def attach(driver: "HcaDriver", member: Member, gid: bytes) -> None:
    """Make a QP a member of a group; one that is a member already stays it."""
    with _table(driver):
        place = _find(driver, gid)
        if place.at < 0:
            _link(driver, member, gid, place.previous)
        else:
            _join(driver, member, gid, place)
        member.groups[gid] = None


def _join(driver: "HcaDriver", member: Member, gid: bytes, place: Place) -> None:
    entry = place.entry
    if entry.gid != gid:
        entry = Entry(gid, [], entry.next)
    if member.number in entry.members:
        return
    if len(entry.members) >= MGM_QPS:
        raise VerbRefused(errno.ENOMEM, VerbReason.GROUP_FULL, 0, MGM_QPS)
    entry.members.append(member.number)
    _write(driver, place.at, entry)


def _link(driver: "HcaDriver", member: Member, gid: bytes, previous: int) -> None:
    """Give a group an entry of the overflow half, and link it to the end of its chain."""
    numbers = driver.numbers.mgm
    index = numbers.allocate()
    if index is None:
        raise VerbRefused(errno.ENOMEM, VerbReason.MULTICAST_TABLE_FULL, 0, numbers.size)
    try:
        _read(driver, index)
        _write(driver, index, Entry(gid, [member.number]))
        last = _read(driver, previous)
        last.next = index
        _write(driver, previous, last)
    except VerbRefused:
        numbers.free(index)
        raise


def detach(driver: "HcaDriver", member: Member, gid: bytes) -> None:
    """End a membership; a group without members leaves the table."""
    with _table(driver):
        place = _find(driver, gid)
        entry = place.entry
        if place.at < 0 or entry.gid != gid or member.number not in entry.members:
            raise VerbRefused(errno.EINVAL, VerbReason.NOT_ATTACHED)
        where = entry.members.index(member.number)
        entry.members[where] = entry.members[-1]
        entry.members.pop()
        _write(driver, place.at, entry)
        member.groups.pop(gid, None)
        if not entry.members:
            _unlink(driver, place)


def _unlink(driver: "HcaDriver", place: Place) -> None:
    """Take an entry without members out of its chain."""
    entry = place.entry
    if place.previous >= 0:
        before = _read(driver, place.previous)
        before.next = entry.next
        _write(driver, place.previous, before)
        driver.numbers.mgm.free(place.at)
    elif entry.next:
        # The head takes the place of the next entry, which becomes free.
        moved = _read(driver, entry.next)
        _write(driver, place.at, moved)
        driver.numbers.mgm.free(entry.next)
    else:
        _write(driver, place.at, Entry(_NO_GID, []))


def detach_all(driver: "HcaDriver", member: Member) -> None:
    """End every membership of a QP whose context is closed; a dead HCA has none."""
    for gid in list(member.groups):
        if driver.dead:
            member.groups.clear()
            return
        detach(driver, member, gid)
