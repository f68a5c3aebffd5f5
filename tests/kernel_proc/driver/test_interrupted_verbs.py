"""A verb that is stopped at any of its commands: by a refusal, a death, or no answer at all.

Whatever the command at which it happens, nothing is left behind: tables, locked pages and memory
are as before the verb, or as after it.
"""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.driver.limits import Profile
from kernel_proc.hca_abi import command_opcodes as op
from shared.message_codec import Message
from shared.nt_status import STATUS_IO_DEVICE_ERROR
from shared.verb_codes import (
    IOCTL_ALLOC_MW,
    IOCTL_ALLOC_PD,
    IOCTL_CREATE_CQ,
    IOCTL_DEALLOC_MW,
    IOCTL_DEREG_MR,
    IOCTL_DESTROY_CQ,
    IOCTL_MODIFY_PORT,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_GID,
    IOCTL_QUERY_PORT,
    IOCTL_REG_MR,
    IOCTL_REREG_MR,
)
from shared.verb_messages import AllocMw, CreateCq, ModifyPort, Object, PortQuery, RegMr, ReregMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, answer_of, good, verb

PAGE = 4096
REG_PAGES = 520  # two WRITE_MTT where memory is fragmented


def reg_mr(session: HcaSession) -> tuple[int, Message]:
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.arena(REG_PAGES * PAGE)
    session.box.life.numbers.mpt._next = 4096  # the key lies in a chunk to be mapped
    return IOCTL_REG_MR, RegMr(pd, address, REG_PAGES * PAGE, address, 1)


def dereg_mr(session: HcaSession) -> tuple[int, Message]:
    return IOCTL_DEREG_MR, Object(good(session, *reg_mr(session)).handle)


def rereg_mr(session: HcaSession) -> tuple[int, Message]:
    handle = good(session, *reg_mr(session)).handle
    address = session.arena(REG_PAGES * PAGE)
    return IOCTL_REREG_MR, ReregMr(handle, 1, 0, address, REG_PAGES * PAGE, 0)


def alloc_mw(session: HcaSession) -> tuple[int, Message]:
    pd = good(session, IOCTL_ALLOC_PD).handle
    session.box.life.numbers.mpt._next = 4096
    return IOCTL_ALLOC_MW, AllocMw(pd, 1)


def dealloc_mw(session: HcaSession) -> tuple[int, Message]:
    return IOCTL_DEALLOC_MW, Object(good(session, *alloc_mw(session)).handle)


def create_cq(session: HcaSession) -> tuple[int, Message]:
    session.box.life.numbers.cq._next = 4096
    return IOCTL_CREATE_CQ, CreateCq(127, 0, 1, 0, session.arena(2 * PAGE), 2 * PAGE)


def destroy_cq(session: HcaSession) -> tuple[int, Message]:
    return IOCTL_DESTROY_CQ, Object(good(session, *create_cq(session)).handle)


def query_gid(session: HcaSession) -> tuple[int, Message]:
    return IOCTL_QUERY_GID, PortQuery(1, 0)


def modify_port(session: HcaSession) -> tuple[int, Message]:
    return IOCTL_MODIFY_PORT, ModifyPort(1, 1 << 16, 0, 0)


Scenario = Callable[[HcaSession], tuple[int, Message]]

LENGTHS: dict[Scenario, int] = {
    reg_mr: 4,
    rereg_mr: 4,
    dereg_mr: 2,
    alloc_mw: 2,
    dealloc_mw: 2,
    create_cq: 4,
    destroy_cq: 3,
    query_gid: 2,
    modify_port: 2,
}
POINTS = [
    pytest.param(scenario, nth, id=f"{scenario.__name__}-{nth}")
    for scenario, length in LENGTHS.items()
    for nth in range(length)
]
#: Commands that only give something back: the verb is done all the same.
BEYOND_RECALL = {op.UNMAP_ICM}


@pytest.fixture
def fragmented() -> HcaBox:
    return HcaBox(largest_run=1, profile=Profile(log_cqs=13, log_mgms=9))


@pytest.mark.parametrize("scenario", LENGTHS)
def test_the_lengths_are_right(scenario: Scenario, fragmented: HcaBox):
    session = fragmented.session()
    names, _ = fragmented.commands_of(session, *scenario(session))
    assert len(names) == LENGTHS[scenario], names
    fragmented.close()


@pytest.mark.parametrize(("scenario", "nth"), POINTS)
def test_a_refused_command_leaves_nothing(scenario: Scenario, nth: int, fragmented: HcaBox):
    box = fragmented
    session = box.session()
    ioctl, message = scenario(session)
    before = box.tables()
    seen = box.at_command(nth, lambda: op.CMD_STAT_INTERNAL_ERR)
    answer = verb(session, ioctl, message)
    box.as_usual()
    opcode = seen[nth]
    if opcode in BEYOND_RECALL:
        assert answer.errno == 0
    elif ioctl == IOCTL_REREG_MR and opcode == op.SW2HW_MPT:
        assert answer[:2] == (errno.EIO, VerbReason.REREG_FAILED)
    else:
        assert answer[:2] == (errno.EIO, VerbReason.COMMAND_FAILED)
        if ioctl != IOCTL_REREG_MR:
            assert answer.detail == opcode << 8 | op.CMD_STAT_INTERNAL_ERR
        if not (ioctl == IOCTL_DESTROY_CQ and nth == 1):  # half destroyed; destroyed again below
            assert box.tables() == before
        good(session, ioctl, message)
    box.close()


@pytest.mark.parametrize("how", ["process", "catastrophic"])
@pytest.mark.parametrize(("scenario", "nth"), POINTS)
def test_a_death_at_a_command_leaves_nothing(
    scenario: Scenario, nth: int, how: str, fragmented: HcaBox
):
    box = fragmented
    session = box.session()
    ioctl, message = scenario(session)

    def die() -> None:
        if how == "catastrophic":
            raise RuntimeError("for the test")
        box.link.kill("for the test")

    box.at_command(nth, die)
    answer = verb(session, ioctl, message)
    ends = (IOCTL_DEREG_MR, IOCTL_DEALLOC_MW, IOCTL_DESTROY_CQ)
    finished = ioctl in ends and answer.errno == 0
    assert finished or answer[:2] == (errno.EIO, VerbReason.DEVICE_FATAL) or answer.detail == 4
    assert verb(session, IOCTL_QUERY_DEVICE, None)[:2] == (errno.EIO, VerbReason.DEVICE_FATAL)
    assert session.try_open()[0] == STATUS_IO_DEVICE_ERROR
    if how == "catastrophic":
        box.link.kill("its process follows")
    session.end()
    assert session.process.locked_pages == 0
    box.close()


@pytest.mark.parametrize(("scenario", "nth"), POINTS)
def test_a_process_that_dies_at_a_command_leaves_nothing(
    scenario: Scenario, nth: int, fragmented: HcaBox
):
    box = fragmented
    session = box.session()
    ioctl, message = scenario(session)
    ended: list[int] = []

    def kill() -> None:
        session.thread.terminate()
        box.processor.post(lambda: ended.append(box.life.verbs))

    box.at_command(nth, kill)
    call, _ = session.begin_verb(ioctl, message)
    box.processor.run_until(lambda: bool(ended))
    box.as_usual()
    session.end()
    assert call.done
    assert session.process.locked_pages == 0
    state = box.life.inspect()
    assert state["contexts"] == []
    assert state["regions"]["regions"] == 3  # those of the event queues
    assert state["regions"]["lost_keys"] == state["regions"]["lost_ranges"] == 0
    assert state["numbers"]["cq"]["used"] == 0
    box.close()


@pytest.mark.parametrize(("scenario", "nth"), POINTS)
def test_a_command_without_an_answer_is_given_up(scenario: Scenario, nth: int, fragmented: HcaBox):
    box = fragmented
    session = box.session()
    ioctl, message = scenario(session)
    kept = box.hold_back(nth)
    answer = verb(session, ioctl, message)
    box.as_usual()
    assert answer[:2] == (errno.EBUSY, VerbReason.COMMAND_TIMEOUT) or answer.errno in (
        0,
        errno.EBUSY,
    )
    assert box.life.channel.inspect()["given_up"] == 1
    # It comes after all, while others are under way: it ends none of them.
    kept[0]()
    assert good(session, IOCTL_QUERY_PORT, PortQuery(1)).lid
    commands = box.life.channel.inspect()
    assert (commands["late_completions"], commands["given_up"]) == (1, 0)
    session.end()
    assert session.process.locked_pages == 0
    box.close()


def test_a_region_that_was_taken_back_late_can_be_deregistered(fragmented: HcaBox):
    box = fragmented
    session = box.session()
    ioctl, message = dereg_mr(session)
    box.hold_back(0)
    assert verb(session, ioctl, message)[:2] == (errno.EBUSY, VerbReason.COMMAND_TIMEOUT)
    assert session.process.locked_pages == REG_PAGES  # the HCA may still use them
    box.as_usual()
    good(session, ioctl, message)
    assert session.process.locked_pages == 0
    assert box.life.inspect()["regions"]["lost_keys"] == 1
    box.close()


def test_two_verbs_at_a_time_get_their_own_answers(box: HcaBox, session: HcaSession):
    other = session.new_thread()
    first = session.begin_verb(IOCTL_QUERY_GID, PortQuery(1, 0))
    second = session.begin_verb(IOCTL_QUERY_GID, PortQuery(2, 0), other)
    box.processor.run_until(lambda: first[0].done and second[0].done)
    gids: list[Any] = [answer_of(request.output or b"").reply.gid for _, request in (first, second)]
    assert gids[0][-1] + 1 == gids[1][-1]


def test_more_verbs_than_commands_may_be_outstanding(box: HcaBox, session: HcaSession):
    calls = [
        session.begin_verb(IOCTL_QUERY_PORT, PortQuery(1), session.new_thread()) for _ in range(100)
    ]
    box.processor.run_until(lambda: all(call.done for call, _ in calls))
    assert all(answer_of(request.output or b"").reply.lid for _, request in calls)
