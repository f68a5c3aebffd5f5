"""Device memory in the driver: what is over it, and a region whose command was not answered."""

import errno

import pytest

from kernel_proc.hca_abi import command_opcodes as op
from shared import verb_codes as codes
from shared.verb_messages import AllocDm, Object, RegDmMr
from shared.verb_reasons import VerbReason as Reason
from shared.verbs_enums import ibv_access_flags as access
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import QueueUser
from tests.kernel_proc.driver.test_unanswered_commands import DONE, NO_ANSWER, no_answer

RIGHTS = int(access.IBV_ACCESS_LOCAL_WRITE | access.IBV_ACCESS_ZERO_BASED)
PAGE = 4096


@pytest.fixture
def user() -> QueueUser:
    return QueueUser(HcaBox())


def objects(user: QueueUser) -> tuple[int, int]:
    """A domain and three pages of device memory."""
    pd = user.ask(codes.IOCTL_ALLOC_PD, None).reply.handle
    return pd, user.ask(codes.IOCTL_ALLOC_DM, AllocDm(2 * PAGE + 1, 0)).reply.handle


def test_what_lies_over_memory_holds_it(user: QueueUser):
    pd, dm = objects(user)
    made = user.ask(codes.IOCTL_REG_DM_MR, RegDmMr(pd, dm, 100, 5000, RIGHTS)).reply
    refused = user.ask(codes.IOCTL_FREE_DM, Object(dm))
    assert (refused.errno, refused.reason) == (errno.EBUSY, Reason.IN_USE)
    assert user.box.life.device_memory.inspect() == {"bytes": 64 * PAGE, "used": 3 * PAGE}
    for code, handle in (
        (codes.IOCTL_DEREG_MR, made.handle),
        (codes.IOCTL_FREE_DM, dm),
        (codes.IOCTL_DEALLOC_PD, pd),
    ):
        assert not user.ask(code, Object(handle)).errno
    assert user.box.life.device_memory.used == 0
    user.box.close()


@DONE
@pytest.mark.parametrize("nth", range(2))
def test_a_registration_without_an_answer(user: QueueUser, nth: int, done: bool):
    pd, dm = objects(user)
    seen = no_answer(user.box, nth, done)
    answer = user.ask(codes.IOCTL_REG_DM_MR, RegDmMr(pd, dm, 100, 5000, RIGHTS))
    assert (answer.errno, answer.reason) == NO_ANSWER
    assert seen[: nth + 1] == [op.WRITE_MTT, op.SW2HW_MPT][: nth + 1]
    user.box.as_usual()
    assert not user.ask(codes.IOCTL_FREE_DM, Object(dm)).errno
    # The HCA may have the key: then its pages are nobody else's until it is reset.
    assert user.box.life.device_memory.used == 3 * PAGE
    user.box.close()
