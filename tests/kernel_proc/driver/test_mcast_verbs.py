"""Multicast: the rules, the chains of commands, and the table as a model predicts it."""

import errno
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.driver import multicast_groups
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi.contexts import MGM_QPS
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import verb_codes as codes
from shared.verb_messages import Multicast, Object
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import RC, UD, QueueUser

MLID = 0xC001
FIRST = ["MGID_HASH", "READ_MGM", "WRITE_MGM"]


def group(number: int) -> bytes:
    return b"\xff" + bytes(13) + number.to_bytes(2, "big")


def colliding(hash_of: object, count: int) -> list[bytes]:
    """Return groups that share one head of the hash part."""
    first = group(0)
    found = [first]
    number = 1
    while len(found) < count:
        gid = b"\xff" + number.to_bytes(15, "big")
        if hash_of(gid) == hash_of(first):  # type: ignore[operator]  # a bound method
            found.append(gid)
        number += 1
    return found


@pytest.fixture
def small() -> HcaBox:
    """A table of four heads and four overflow entries."""
    return HcaBox(settings=HcaSettings(log_max_mgms=3))


def heads_are_free(box: HcaBox) -> bool:
    """Tell whether no chain begins anywhere; a freed overflow entry keeps what it had."""
    table = box.hca.tables.multicast
    return not any(any(table.read(index)) for index in range(table.size // 2))


class Kernels:
    """A context of the kernel, which has no share."""

    process = None
    owner = None


class Member:
    """A QP that is a member and nothing else."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.context = Kernels()
        self.groups: dict[bytes, bool] = {}


def test_what_is_refused(box: HcaBox):
    user = QueueUser(box)
    cq = user.cq()
    ud, rc = user.qp(cq, UD).handle, user.qp(cq, RC).handle
    rows = [
        (Multicast(rc, group(1), MLID), Reason.NOT_UD, 0, RC),
        (Multicast(ud, b"\xfe" + bytes(15), MLID), Reason.NOT_MULTICAST_GID, 0, 0xFE),
        (Multicast(ud, b"\xff", MLID), Reason.BAD_GID, 0, 1),
        (Multicast(ud, group(1), 0xBFFF), Reason.NOT_MULTICAST_LID, 0xBFFF, 0),
        (Multicast(ud, group(1), 0xFFFF), Reason.NOT_MULTICAST_LID, 0xFFFF, 0),
        (Multicast(9999, group(1), MLID), Reason.NO_SUCH_OBJECT, 9999, 0),
    ]
    for code in (codes.IOCTL_ATTACH_MCAST, codes.IOCTL_DETACH_MCAST):
        for message, *expected in rows:
            assert list(user.ask(code, message)[:4]) == [errno.EINVAL, *expected]
    answer = user.ask(codes.IOCTL_DETACH_MCAST, Multicast(ud, group(1), MLID))
    assert answer[:2] == (errno.EINVAL, Reason.NOT_ATTACHED)


def test_the_commands_of_a_membership(box: HcaBox):
    user = QueueUser(box)
    cq = user.cq()
    first, second = user.qp(cq, UD), user.qp(cq, UD)
    members = box.hca.tables.multicast.members

    def names(code: int, qp: int) -> list[str]:
        message = Multicast(qp, group(1), MLID)
        return box.names_of_commands(lambda: user.good(code, message))

    assert names(codes.IOCTL_ATTACH_MCAST, first.handle) == FIRST
    assert names(codes.IOCTL_ATTACH_MCAST, first.handle) == FIRST[:2]  # it is one already
    assert names(codes.IOCTL_ATTACH_MCAST, second.handle) == FIRST
    assert members(group(1)) == [first.number, second.number]
    assert names(codes.IOCTL_DETACH_MCAST, first.handle) == FIRST
    assert members(group(1)) == [second.number]
    assert names(codes.IOCTL_DETACH_MCAST, second.handle) == [*FIRST, "WRITE_MGM"]
    assert members(group(1)) == []


def test_an_attached_qp_is_busy_and_the_end_detaches_it(box: HcaBox):
    user = QueueUser(box)
    qp = user.qp(user.cq(), UD)
    for number in (1, 2):
        user.good(codes.IOCTL_ATTACH_MCAST, Multicast(qp.handle, group(number), MLID))
    answer = user.ask(codes.IOCTL_DESTROY_QP, Object(qp.handle))
    assert answer[:4] == (errno.EBUSY, Reason.STILL_ATTACHED, qp.handle, 2)
    user.session.end()
    assert not box.hca.tables.multicast.members(group(1))
    assert box.hca.tables.multicast.inspect()["used"] == 0


def test_the_end_of_a_member_on_a_dead_hca(box: HcaBox):
    user = QueueUser(box)
    qp = user.qp(user.cq(), UD)
    user.good(codes.IOCTL_ATTACH_MCAST, Multicast(qp.handle, group(1), MLID))
    box.link.kill("it was pulled out")
    user.session.end()
    assert not any("was not destroyed" in line for line in box.lines)


def test_a_detached_qp_can_be_destroyed(box: HcaBox):
    user = QueueUser(box)
    qp = user.qp(user.cq(), UD)
    message = Multicast(qp.handle, group(1), MLID)
    user.good(codes.IOCTL_ATTACH_MCAST, message)
    user.good(codes.IOCTL_DETACH_MCAST, message)
    user.destroy(codes.IOCTL_DESTROY_QP, qp.handle)


def test_the_overflow_chain_and_its_commands(small: HcaBox):
    life, table = small.life, small.hca.tables.multicast
    gids = colliding(table.hash_of, 4)
    member = Member(0x500)

    def names(routine: Callable[..., None], gid: bytes) -> list[str]:
        return small.names_of_commands(
            lambda: small.processor.run_thread(routine, life, member, gid)
        )

    link = ["READ_MGM", "WRITE_MGM", "READ_MGM", "WRITE_MGM"]
    attach, detach = multicast_groups.attach, multicast_groups.detach
    assert names(attach, gids[0]) == FIRST
    assert names(attach, gids[1]) == ["MGID_HASH", "READ_MGM", *link]
    assert names(attach, gids[2]) == ["MGID_HASH", "READ_MGM", "READ_MGM", *link]
    assert [table.members(gid) for gid in gids[:3]] == [[0x500]] * 3
    # From the middle: the one before is linked to the one behind.
    walk = ["MGID_HASH", "READ_MGM", "READ_MGM"]
    assert names(detach, gids[1]) == [*walk, "WRITE_MGM", "READ_MGM", "WRITE_MGM"]
    assert [table.members(gid) for gid in gids[:3]] == [[0x500], [], [0x500]]
    # The head takes the next entry's place.
    assert names(detach, gids[0]) == [*FIRST, "READ_MGM", "WRITE_MGM"]
    assert [table.members(gid) for gid in gids[:3]] == [[], [], [0x500]]
    assert names(detach, gids[2]) == [*FIRST, "WRITE_MGM"]
    assert heads_are_free(small)
    assert not len(life.numbers.mgm)
    small.close()


def test_no_more_entries_and_no_more_members(small: HcaBox):
    life = small.life

    def attach_all() -> tuple[int, int]:
        for number in range(MGM_QPS):
            multicast_groups.attach(life, Member(0x500 + number), group(0))
        with pytest.raises(VerbRefused) as full:
            multicast_groups.attach(life, Member(0x700), group(0))
        gids = colliding(small.hca.tables.multicast.hash_of, 6)
        for gid in gids[1:5]:
            multicast_groups.attach(life, Member(0x500), gid)
        with pytest.raises(VerbRefused) as none_left:
            multicast_groups.attach(life, Member(0x500), gids[5])
        assert (full.value.reason, full.value.detail) == (Reason.GROUP_FULL, MGM_QPS)
        assert (none_left.value.reason, none_left.value.detail) == (
            Reason.MULTICAST_TABLE_FULL,
            4,
        )
        return full.value.errno, none_left.value.errno

    assert small.processor.run_thread(attach_all) == (errno.ENOMEM, errno.ENOMEM)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_the_table_against_a_dictionary(small: HcaBox, steps: list[tuple[bool, int, int]]):
    life, table = small.life, small.hca.tables.multicast
    gids = colliding(table.hash_of, 6)
    members = [Member(0x500 + number) for number in range(4)]
    model: dict[bytes, set[int]] = {}

    def change(attach: bool) -> Callable[..., None]:
        return multicast_groups.attach if attach else multicast_groups.detach

    def run() -> None:
        for attach, which, who in steps:
            gid, member = gids[which], members[who]
            full = gid not in model and len(model) == 5  # a head and four overflow entries
            if (attach and full) or (not attach and member.number not in model.get(gid, set())):
                with pytest.raises(VerbRefused) as refusal:
                    change(attach)(life, member, gid)
                assert refusal.value.errno == (errno.ENOMEM if attach else errno.EINVAL)
                continue
            change(attach)(life, member, gid)
            if attach:
                model.setdefault(gid, set()).add(member.number)
            else:
                model[gid].remove(member.number)
                if not model[gid]:
                    del model[gid]
            for every in gids:
                listed = table.members(every)
                assert set(listed) == model.get(every, set())
                assert len(listed) == len(set(listed))
        for member in members:
            multicast_groups.detach_all(life, member)
        assert heads_are_free(small)
        assert not len(life.numbers.mgm)

    small.processor.run_thread(run)
