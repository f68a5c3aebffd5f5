"""Multicast groups in the HCA's table: a hashed head for each, and chained entries of 56 QPs.

Half of the table is found by hashing; entries of the other half are linked to a head whose place
is taken. A GID of zeros marks a head that is free, a next index of 0 the end of a chain. A member
that leaves is replaced by the last one, so members have no gaps.

A membership has ended when its entry is written. If the command after it, which takes an entry
without members out of its chain, is refused, the entry stays, the next to join the group finds it,
and the next use of the table takes it out. What was not answered is judged by what the table shows.

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
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver

_NO_GID: Final = bytes(16)
_NEXT_SHIFT: Final = 6
_HASH_MASK: Final = 0xFFFF


class Member(Protocol):
    """A QP, as far as groups care; a group it may or may not be in is False."""

    number: int
    groups: dict[bytes, bool]
    context: "Context"


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
def _table(driver: "HcaDriver", member: Member) -> Iterator[None]:
    """Have the table for oneself, and count afterwards in how many groups the member then is."""
    lock = notification_of(driver).multicast_lock
    lock.wait()
    before = len(member.groups)
    try:
        yield
    finally:
        _count(driver, member, len(member.groups) - before)
        lock.release()


def _count(driver: "HcaDriver", member: Member, more: int) -> None:
    process = member.context.process
    if more and process is not None:
        driver.memberships[process] += more
        if not driver.memberships[process]:
            del driver.memberships[process]


def _require_share(driver: "HcaDriver", member: Member, gid: bytes) -> None:
    """Refuse with ENOMEM a further group to a process that has its share of the table."""
    process = member.context.process
    share = max(1, driver.profile.share_percent * (1 << driver.limits.log_mgms) // 100)
    if gid not in member.groups and process is not None and driver.memberships[process] >= share:
        raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_SHARE, 0, share)


def attach(driver: "HcaDriver", member: Member, gid: bytes) -> None:
    """Make a QP a member of a group; one that is a member already stays it.

    If that is not answered it may be one, and its end detaches it.
    """
    with _table(driver, member):
        _require_share(driver, member, gid)
        _repair(driver)
        place = _find(driver, gid)
        try:
            if place.at < 0:
                _link(driver, member, gid, place.previous)
            else:
                _join(driver, member, gid, place)
        except VerbRefused as refusal:
            if refusal.unanswered:
                member.groups.setdefault(gid, False)
            raise
        member.groups[gid] = True


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
    try:
        index = numbers.take(member.context.owner)
    except VerbRefused as refusal:
        if refusal.reason is VerbReason.OUT_OF_NUMBERS:
            refusal.reason = VerbReason.MULTICAST_TABLE_FULL
        raise
    try:
        _read(driver, index)
        _write(driver, index, Entry(gid, [member.number]))
        last = _read(driver, previous)
        last.next = index
        _write(driver, previous, last)
    except VerbRefused as refusal:
        if refusal.unanswered:
            _repair_later(driver, gid, index)
        else:
            numbers.free(index)
        raise


def detach(driver: "HcaDriver", member: Member, gid: bytes) -> None:
    """End a membership; a group without members leaves the table, if need be later.

    After a refusal the QP is attached as before; if that is not answered it may be detached, and
    asking again succeeds either way.
    """
    with _table(driver, member):
        _repair(driver)
        place = _find(driver, gid)
        entry = place.entry
        if place.at < 0 or entry.gid != gid or member.number not in entry.members:
            if member.groups.pop(gid, None) is None:
                raise VerbRefused(errno.EINVAL, VerbReason.NOT_ATTACHED)
        else:
            _leave(driver, member, place)
        if place.at >= 0 and entry.gid == gid and not entry.members:
            _unlink_or_later(driver, place)


def _leave(driver: "HcaDriver", member: Member, place: Place) -> None:
    entry = place.entry
    where = entry.members.index(member.number)
    entry.members[where] = entry.members[-1]
    entry.members.pop()
    try:
        _write(driver, place.at, entry)
    except VerbRefused as refusal:
        if refusal.unanswered:
            member.groups[entry.gid] = False
        raise
    member.groups.pop(entry.gid, None)


def _unlink_or_later(driver: "HcaDriver", place: Place) -> None:
    """Take an entry without members out of its chain; what fails is left to a later use."""
    try:
        _unlink(driver, place)
    except VerbRefused as refusal:
        if refusal.reason is VerbReason.DEVICE_FATAL:
            raise
        # Whether it is carried out or not, one index of the overflow half is free afterwards.
        index = place.at if place.previous >= 0 else place.entry.next
        _repair_later(driver, place.entry.gid, index if refusal.unanswered else 0)


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
    """End every membership of a QP that is destroyed; a dead HCA has none."""
    if driver.dead:
        _count(driver, member, -len(member.groups))
        member.groups.clear()
    for gid in list(member.groups):
        detach(driver, member, gid)
    if notification_of(driver).multicast_repairs and not driver.dead:
        with _table(driver, member):
            _repair(driver)


# Repairs


def _repair_later(driver: "HcaDriver", gid: bytes, index: int) -> None:
    """Note a group whose chain is to be put in order, and an index that may be in no chain."""
    notification_of(driver).multicast_repairs.append((gid, index))


def _repair(driver: "HcaDriver") -> None:
    """Put chains in order that earlier commands left; what is refused again is left again.

    The HCA carries commands out one after the other, so the table it shows now is the one that
    came of those it did not answer.
    """
    repairs = notification_of(driver).multicast_repairs
    while repairs:
        gid, index = repairs[0]
        try:
            place = _find(driver, gid)
        except VerbRefused:
            return
        repairs.pop(0)
        if place.at < 0 or place.entry.gid != gid:
            if index:
                driver.numbers.mgm.free(index)
        elif not place.entry.members:
            _unlink_or_later(driver, place)
            if repairs and repairs[-1][0] == gid:
                return
