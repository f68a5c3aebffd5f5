"""What a kernel client raises for a verb that was refused."""

import errno

import pytest

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.verbs_table import VerbAnswer
from kernel_proc.clients.ib_nt_statuses import nt_status_of
from kernel_proc.clients.verb_steps import require
from kernel_proc.driver.ib_statuses import status_of
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import nt_status as nt
from shared.verb_reasons import VerbReason


def test_each_status_has_an_ntstatus_and_success_alone_is_one():
    successes = [status for status in IbStatus if nt.nt_success(nt_status_of(status))]
    assert successes == [IbStatus.SUCCESS]


@pytest.mark.parametrize(
    ("number", "reason", "status"),
    [
        (errno.ENOMEM, VerbReason.OUT_OF_MEMORY, nt.STATUS_INSUFFICIENT_RESOURCES),
        (errno.ENOMEM, VerbReason.OUT_OF_NUMBERS, nt.STATUS_INSUFFICIENT_RESOURCES),
        (errno.EINVAL, VerbReason.BAD_CQE, nt.STATUS_INVALID_PARAMETER),
        (errno.EINVAL, VerbReason.NO_SUCH_OBJECT, nt.STATUS_INVALID_HANDLE),
        (errno.EINVAL, VerbReason.NO_SUCH_TRANSITION, nt.STATUS_CONNECTION_INVALID),
        (errno.EBUSY, VerbReason.IN_USE, nt.STATUS_DEVICE_BUSY),
        (errno.EIO, VerbReason.DEVICE_FATAL, nt.STATUS_INVALID_DEVICE_STATE),
        (errno.EOPNOTSUPP, VerbReason.QP_TYPE_NOT_SUPPORTED, nt.STATUS_INVALID_DEVICE_REQUEST),
    ],
)
def test_a_refusal_is_raised_with_the_status_that_says_why(
    number: int, reason: VerbReason, status: int
):
    answer = VerbAnswer(number, reason, status=status_of(number, reason))
    with pytest.raises(RaisedStatus, match=f"create_cq was refused: .*errno {number}") as caught:
        require(answer, "create_cq")
    assert caught.value.status == status


def test_an_answer_that_is_none_is_returned():
    answer = VerbAnswer(reply="what it made")
    assert require(answer, "create_cq") is answer
