"""Shared receive queues: what can be created, the limit, query, destroy."""

import errno
import os

import pytest

from shared import verb_codes as codes
from shared.verb_messages import NO_FD, Destroyed, ModifySrq, Object, OpenXrcd, SrqAttributes
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import QueueUser

MAX_WR, LIMIT = 1, 2


@pytest.fixture
def user(box: HcaBox) -> QueueUser:
    return QueueUser(box)


@pytest.mark.parametrize(("asked", "granted"), [(1, 1), (3, 4), (8, 8), (100, 128)])
def test_the_size_is_rounded_up(user: QueueUser, asked: int, granted: int):
    created = user.srq(max_wr=asked, max_sge=2)
    assert created.max_wr == granted
    assert created.max_sge >= 2
    shown = user.good(codes.IOCTL_QUERY_SRQ, Object(created.handle))
    assert shown == SrqAttributes(granted, created.max_sge, 0)


def test_what_is_refused(user: QueueUser):
    cq = user.cq()
    rows = [
        ({"max_wr": 0}, errno.EINVAL, Reason.BAD_MAX_WR, 0, 16384),
        ({"max_wr": 16385}, errno.EINVAL, Reason.BAD_MAX_WR, 16385, 16384),
        ({"max_sge": 28}, errno.EINVAL, Reason.BAD_MAX_SGE, 28, 27),
        ({"srq_type": 2}, errno.EOPNOTSUPP, Reason.SRQ_TYPE_NOT_SUPPORTED, 0, 2),
        ({"srq_type": 3}, errno.EINVAL, Reason.SRQ_TYPE_NOT_SUPPORTED, 0, 3),
        ({"pd": 0}, errno.EINVAL, Reason.PD_NEEDED, 0, 0),
        ({"pd": cq.handle}, errno.EINVAL, Reason.WRONG_KIND, cq.handle, 0),
        ({"srq_type": 1, "cq": cq.handle}, errno.EINVAL, Reason.XRCD_NEEDED, 0, 0),
        ({"srq_type": 1, "xrcd": 5}, errno.EINVAL, Reason.XRC_CQ_NEEDED, 0, 0),
        ({"buffer_length": 511}, errno.EINVAL, Reason.BUFFER_TOO_SMALL, 511, 512),
        ({"buffer": 0x10000}, errno.EINVAL, Reason.NOT_IN_ONE_ARENA, 0x10000, 512),
    ]
    request = user.srq_request()
    before = user.box.tables()
    for changes, *expected in rows:
        answer = user.ask(codes.IOCTL_CREATE_SRQ, request._replace(**changes))
        assert list(answer[:4]) == expected, changes
    assert user.box.tables() == before


def test_the_commands_of_a_life(user: QueueUser):
    user.srq()  # maps the chunk
    made: list[int] = []
    box = user.box
    assert box.names_of_commands(lambda: made.append(user.srq().handle)) == [
        "WRITE_MTT",
        "SW2HW_MPT",
        "SW2HW_SRQ",
    ]
    armed = ModifySrq(made[0], LIMIT, 0, 2)
    assert box.names_of_commands(lambda: user.good(codes.IOCTL_MODIFY_SRQ, armed)) == ["ARM_SRQ"]
    assert box.names_of_commands(lambda: user.destroy(codes.IOCTL_DESTROY_SRQ, made[0])) == [
        "HW2SW_SRQ",
        "HW2SW_MPT",
    ]


def test_a_destroyed_srq_leaves_nothing(user: QueueUser):
    assert user.pd
    before = user.box.tables()
    assert user.destroy(codes.IOCTL_DESTROY_SRQ, user.srq().handle) == Destroyed(0, 0)
    assert user.box.tables() == before


@pytest.mark.parametrize(
    ("mask", "max_wr", "limit", "code", "reason", "object_", "detail"),
    [
        (MAX_WR, 16, 0, errno.EOPNOTSUPP, Reason.SRQ_RESIZE_NOT_SUPPORTED, 0, 16),
        (MAX_WR | LIMIT, 16, 2, errno.EOPNOTSUPP, Reason.SRQ_RESIZE_NOT_SUPPORTED, 0, 16),
        (LIMIT, 0, 9, errno.EINVAL, Reason.SRQ_LIMIT_ABOVE_SIZE, 9, 8),
        (4, 0, 0, errno.EINVAL, Reason.UNKNOWN_ATTRIBUTES, 0, 4),
    ],
)
def test_a_refused_change_changes_nothing(
    user: QueueUser,
    mask: int,
    max_wr: int,
    limit: int,
    code: int,
    reason: int,
    object_: int,
    detail: int,
):
    srq = user.srq().handle
    user.good(codes.IOCTL_MODIFY_SRQ, ModifySrq(srq, LIMIT, 0, 3))
    answer = user.ask(codes.IOCTL_MODIFY_SRQ, ModifySrq(srq, mask, max_wr, limit))
    assert answer[:4] == (code, reason, object_, detail)
    assert user.good(codes.IOCTL_QUERY_SRQ, Object(srq)).srq_limit == 3


def test_the_limit_is_told_once_and_then_0(user: QueueUser):
    request = user.srq_request()
    created = user.good(codes.IOCTL_CREATE_SRQ, request)
    ring = user.srq_ring(created, request)
    for _ in range(3):
        ring.post()
    user.good(codes.IOCTL_MODIFY_SRQ, ModifySrq(created.handle, LIMIT, 0, 2))
    device = user.box.hca.tables.srqs.find(created.srqn)
    assert device is not None
    assert [device.next_entry() for _ in range(3)] == [0, 1, 2]
    user.settle()
    event = user.good(codes.IOCTL_GET_SRQ_ASYNC_EVENT, Object(created.handle))
    assert (event.event_type, event.object, event.count) == (15, created.handle, 1)
    assert user.good(codes.IOCTL_QUERY_SRQ, Object(created.handle)).srq_limit == 0
    assert user.destroy(codes.IOCTL_DESTROY_SRQ, created.handle) == Destroyed(0, 1)


def test_an_index_that_cannot_be_breaks_the_srq(user: QueueUser):
    created = user.srq()
    user.doorbells.store(created.slot, 1 << 40)
    user.doorbells.ring(3, created.slot)
    user.settle()
    event = user.good(codes.IOCTL_GET_SRQ_ASYNC_EVENT, Object(0))
    assert (event.event_type, event.object) == (14, created.handle)


def test_an_xrc_srq_has_a_domain_and_a_cq(user: QueueUser):
    domain = user.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)).handle
    cq = user.cq()
    srq = user.srq(srq_type=1, xrcd=domain, cq=cq.handle)
    device = user.box.hca.tables.srqs.find(srq.srqn)
    assert device is not None
    assert device.cq is user.box.hca.tables.cqs.find(cq.number)
    user.destroy(codes.IOCTL_DESTROY_SRQ, srq.handle)
    user.destroy(codes.IOCTL_DESTROY_CQ, cq.handle)
