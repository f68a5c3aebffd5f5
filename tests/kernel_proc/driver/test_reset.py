"""The control device: a reset that a user asks for, whatever state the HCA is in."""

import errno

import pytest

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.io_manager.irp_flags import GENERIC_READ
from kernel_proc.io_manager.system_services import create_file
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_DEVICE_NOT_READY,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_IO_DEVICE_ERROR,
    STATUS_SUCCESS,
)
from shared.verb_codes import (
    HCA_CONTROL_DEVICE,
    IOCTL_ALLOC_PD,
    IOCTL_QUERY_DEVICE,
    IOCTL_REG_MR,
    IOCTL_RESET_HCA,
    VERB_RESULT,
)
from shared.verb_messages import RegMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, answer_of, good, verb
from tests.kernel_proc.driver.queue_user import RC, QueueUser

DEAD = (errno.EIO, VerbReason.DEVICE_FATAL)


def control_of(session: HcaSession) -> int:
    """Open the control device."""
    status, handle = session.service(create_file, HCA_CONTROL_DEVICE, GENERIC_READ, False)
    assert status == STATUS_SUCCESS
    return int(handle)


def ask(session: HcaSession, handle: int, ioctl: int, length: int) -> tuple[int, bytes]:
    """Send a request on another file than the session's."""
    own, session.handle = session.handle, handle
    try:
        return session.control(ioctl, b"", length)
    finally:
        session.handle = own


def reset(session: HcaSession) -> tuple[int, int]:
    handle = control_of(session)
    status, output = ask(session, handle, IOCTL_RESET_HCA, VERB_RESULT.size)
    session.close(handle)
    assert status == STATUS_SUCCESS
    return answer_of(output)[:2]


@pytest.mark.parametrize("dead", [True, False])
def test_a_user_resets_the_hca_and_opens_it_again(box: HcaBox, dead: bool):
    session, other = box.session("old"), box.session("asks", opened=False)
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.arena(4096)
    good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 1))
    if dead:
        box.link.kill("for the test")
        assert session.try_open()[0] == STATUS_IO_DEVICE_ERROR
    assert reset(other) == (0, 0)
    assert box.extension.inspect()["resets"] == 1
    assert box.extension.inspect()["failure"] == ""
    # What was open stays dead, what is opened now works, at the same time and in one process.
    old = session.handle
    assert verb(session, IOCTL_QUERY_DEVICE, None)[:2] == DEAD
    session.open()
    good(session, IOCTL_ALLOC_PD)
    fresh, session.handle = session.handle, old
    assert verb(session, IOCTL_ALLOC_PD, None)[:2] == DEAD
    session.close()
    session.handle = fresh
    good(session, IOCTL_ALLOC_PD)


def test_queues_of_a_new_context_are_beside_those_of_an_old_one(box: HcaBox):
    user = QueueUser(box)
    user.qp(user.cq(), RC)
    old = user.session.handle
    assert reset(box.session("asks", opened=False)) == (0, 0)
    user.session.open()
    grant = box.processor.run_thread(box.doorbells.open, user.session.process, user.session.lane)
    assert grant.status == STATUS_SUCCESS
    user._pd = None
    second = QueueUser(box, user.session)
    cq = second.cq()
    assert cq.created.consumer_slot == 0  # of a segment nobody else has
    second.qp(cq, RC)
    user.session.close(old)
    second.qp(second.cq(), RC)


def test_a_reset_without_an_hca_to_follow_says_so(box: HcaBox, session: HcaSession):
    def fail() -> None:
        raise OSError(12, "Cannot allocate memory")

    restart, box.link.restart = box.link.restart, fail  # type: ignore[method-assign] # a fault
    assert reset(session) == DEAD
    assert "Cannot allocate memory" in box.extension.inspect()["failure"]
    box.link.restart = restart  # type: ignore[method-assign] # the fault is over
    box.at_command(0, lambda: op.CMD_STAT_INTERNAL_ERR)
    assert reset(session) == (0, 0)  # another device, to which nothing was done
    assert session.try_open()[0] == STATUS_SUCCESS


def test_an_hca_that_does_not_come_up_after_a_reset(box: HcaBox, session: HcaSession):
    restart = box.link.restart

    def stillborn() -> None:
        restart()
        box.link.kill("early")

    box.link.restart = stillborn  # type: ignore[method-assign] # a fault
    assert reset(session) == DEAD
    assert session.try_open()[0] == STATUS_DEVICE_NOT_READY
    box.link.restart = restart  # type: ignore[method-assign] # the fault is over
    assert reset(session) == (0, 0)
    session.open()


def test_what_the_control_device_refuses(box: HcaBox, session: HcaSession):
    handle = control_of(session)
    assert ask(session, handle, IOCTL_ALLOC_PD, 2048)[0] == STATUS_INVALID_DEVICE_REQUEST
    short = ask(session, handle, IOCTL_RESET_HCA, VERB_RESULT.size - 1)
    assert short[0] == STATUS_BUFFER_TOO_SMALL
    # And the HCA's own device takes verbs only.
    assert session.control(IOCTL_RESET_HCA, b"", 2048)[0] == STATUS_INVALID_DEVICE_REQUEST
    assert box.extension.inspect()["resets"] == 0


def test_resets_at_a_time_come_one_after_the_other_and_verbs_under_way_end(
    box: HcaBox, session: HcaSession
):
    handle = control_of(session)
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.arena(64 * 4096)
    message = RegMr(pd, address, 64 * 4096, address, 1)
    call, request = session.begin_verb(IOCTL_REG_MR, message, session.new_thread())
    own, session.handle = session.handle, handle
    resets = [session.begin_verb(IOCTL_RESET_HCA, None, session.new_thread()) for _ in range(3)]
    session.handle = own
    box.processor.run_until(lambda: call.done and all(one.done for one, _ in resets))
    assert answer_of(request.output or b"")[:2] in ((0, 0), DEAD)
    assert [answer_of(one.output or b"")[:2] for _, one in resets] == [(0, 0)] * 3
    assert box.extension.inspect()["resets"] == 3
    assert session.try_open()[0] == STATUS_SUCCESS


def test_a_process_that_ends_while_it_waits_for_a_reset(box: HcaBox):
    session = box.session("asks")
    own, session.handle = session.handle, control_of(session)
    call, _ = session.begin_verb(IOCTL_RESET_HCA, None)
    session.handle = own
    box.processor.run_until(lambda: session.thread.is_waiting)
    session.thread.terminate()
    box.processor.run_until(lambda: call.done)
    session.end()
    assert box.extension.inspect()["up"] is True
