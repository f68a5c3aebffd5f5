"""A command without an answer may have been carried out or not: neither hurts anybody.

Each verb of several commands is stopped at each of them, both ways: the HCA does the command and
does not say so, or does nothing and says nothing. What the HCA has afterwards, the driver has too.
"""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver import multicast_groups
from kernel_proc.driver.cq_verbs import Cq
from kernel_proc.driver.limits import Profile
from kernel_proc.driver.qp_resource import Qp
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import CreateCq, Multicast, Object, RegMr, ReregMr, ResizeCq
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import Answer, HcaBox
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, RESET, UD, CqUser, QueueUser
from tests.kernel_proc.driver.test_kernel_client import Client
from tests.kernel_proc.driver.test_mcast_verbs import Member, colliding, heads_are_free

STATE, TO_INIT, QKEY = 0x1, 0x39, 0x40
TO_INIT_UD = 0x71
NO_ANSWER = (errno.EBUSY, Reason.COMMAND_TIMEOUT)

#: Whether the HCA does what it does not answer.
DONE = pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])


def no_answer(box: HcaBox, nth: int, done: bool, more: int = 0) -> list[int]:
    """Leave the nth command from now without an answer, and `more` after it."""
    interface = box.hca.commands
    perform, tell = type(interface)._perform, type(interface)._tell
    seen: list[int] = []
    told = 0

    def performed(command: Any) -> int:
        seen.append(command.opcode)
        if not done and nth <= len(seen) - 1 <= nth + more:
            return op.CMD_STAT_INTERNAL_ERR
        return perform(interface, command)

    def answered(command: Any) -> None:
        nonlocal told
        told += 1
        if not nth <= told - 1 <= nth + more:
            tell(interface, command)

    interface.__dict__["_perform"] = performed
    interface.__dict__["_tell"] = answered
    return seen


@pytest.fixture
def user() -> QueueUser:
    return QueueUser(HcaBox(profile=Profile(log_cqs=13, log_mgms=9)))


# A CQ that is moved


def _filled(user: QueueUser, count: int = 5) -> tuple[int, CqUser]:
    cq = user.cq(15)
    qp = user.qp(cq, RC, max_recv_wr=16)
    assert not user.modify(qp.handle, TO_INIT, qp_state=INIT).errno
    assert not user.modify(qp.handle, STATE, qp_state=ERR).errno
    assert qp.receive is not None
    for _ in range(count):
        qp.receive.post()
    user.settle()
    return qp.handle, cq


def _resize(user: QueueUser, cq: CqUser, cqe: int = 63) -> tuple[ResizeCq, Answer]:
    length = CQE_SIZE << cqe.bit_length()
    request = ResizeCq(cq.handle, cqe, user.memory(length), length)
    return request, user.ask(codes.IOCTL_RESIZE_CQ, request)


def _check_moved_or_not(user: QueueUser, cq: CqUser, request: ResizeCq, answer: Answer) -> None:
    """The caller is told what is so, the driver knows it, and nothing that waited is lost."""
    known: Cq = user.session.context.find(Cq, cq.handle)
    hca = user.box.hca.tables.cqs.find(known.number)
    assert hca is not None
    assert hca.buffer.alive
    assert (hca.context.lkey, hca.mask + 1) == (known.lkey, known.size)
    assert known.candidate is None
    assert (hca.mask == request.cqe) == (answer.errno == 0)
    if not answer.errno:
        cq.use(answer.reply, user.view(request.buffer, request.buffer_length))
    assert [entry.wqe_index for entry in cq.poll_all()] == [0, 1, 2, 3, 4]


def _end(user: QueueUser, qp: int, cq: CqUser, left: int = 0) -> None:
    user.destroy(codes.IOCTL_DESTROY_QP, qp)
    user.destroy(codes.IOCTL_DESTROY_CQ, cq.handle)
    assert user.session.process.locked_pages == left
    assert user.box.life.inspect()["numbers"]["cq"]["used"] == 0
    user.box.as_usual()
    user.box.close()


@pytest.mark.parametrize("nth", range(4))
def test_a_resize_refused_at_any_command_keeps_what_the_hca_uses(user: QueueUser, nth: int):
    qp, cq = _filled(user)
    seen = user.box.at_command(nth, lambda: op.CMD_STAT_INTERNAL_ERR)
    request, answer = _resize(user, cq)
    user.box.as_usual()
    expected = (0, 0) if seen[nth] == op.HW2SW_MPT else (errno.EIO, Reason.COMMAND_FAILED)
    assert answer[:2] == expected
    _check_moved_or_not(user, cq, request, answer)
    assert not _resize(user, cq, 31)[1].errno
    _end(user, qp, cq)


def test_a_resize_whose_undoing_is_refused_too_says_why_it_was_refused(user: QueueUser):
    qp, cq = _filled(user)
    interface = user.box.hca.commands
    perform = type(interface)._perform

    def refused(command: Any) -> int:
        refuses = {op.RESIZE_CQ: op.CMD_STAT_BAD_SIZE, op.HW2SW_MPT: op.CMD_STAT_INTERNAL_ERR}
        status = refuses.get(command.opcode)
        return perform(interface, command) if status is None else status

    interface.__dict__["_perform"] = refused
    request, answer = _resize(user, cq)
    assert answer[:2] == (errno.EINVAL, Reason.CQ_HOLDS_MORE)
    user.box.as_usual()
    _check_moved_or_not(user, cq, request, answer)
    _end(user, qp, cq)


@DONE
@pytest.mark.parametrize("nth", range(4))
def test_a_resize_without_an_answer_is_asked_about(user: QueueUser, nth: int, done: bool):
    qp, cq = _filled(user)
    seen = no_answer(user.box, nth, done)
    request, answer = _resize(user, cq)
    moved = seen[nth] == op.HW2SW_MPT or (seen[nth] == op.RESIZE_CQ and done)
    assert answer[:2] == ((0, 0) if moved else NO_ANSWER)
    user.box.as_usual()
    _check_moved_or_not(user, cq, request, answer)
    # What the HCA may be granted by a key nobody was given stays locked until the end.
    _end(user, qp, cq, 1 if seen[nth] == op.SW2HW_MPT else 0)


@DONE
@pytest.mark.parametrize("again", [True, False], ids=["moved again", "destroyed"])
def test_a_resize_nobody_knows_of_keeps_both_memories(user: QueueUser, done: bool, again: bool):
    qp, cq = _filled(user)
    no_answer(user.box, 2, done, more=1)  # neither RESIZE_CQ nor QUERY_CQ
    request, answer = _resize(user, cq)
    assert answer[:4] == (errno.EBUSY, Reason.RESIZE_UNCERTAIN, cq.handle, op.RESIZE_CQ)
    user.box.as_usual()
    pages = user.session.process.locked_pages
    known: Cq = user.session.context.find(Cq, cq.handle)
    hca = user.box.hca.tables.cqs.find(known.number)
    assert hca is not None
    assert hca.buffer.alive
    assert known.candidate is not None
    if again:
        request, answer = _resize(user, cq, 127)
        assert not answer.errno
        assert user.session.process.locked_pages == pages  # of both, one for two pages more
        _check_moved_or_not(user, cq, request, answer)
    _end(user, qp, cq)


# Queues


Making = Callable[[QueueUser], tuple[int, Any, int]]


def _cq(user: QueueUser) -> tuple[int, Any, int]:
    user.box.life.numbers.cq._next = 4096
    return codes.IOCTL_CREATE_CQ, user.cq_request(), codes.IOCTL_DESTROY_CQ


def _srq(user: QueueUser) -> tuple[int, Any, int]:
    return codes.IOCTL_CREATE_SRQ, user.srq_request(), codes.IOCTL_DESTROY_SRQ


def _qp(user: QueueUser) -> tuple[int, Any, int]:
    cq = user.cq().handle
    request = user.qp_request(RC, send_cq=cq, receive_cq=cq)
    return codes.IOCTL_CREATE_QP, request, codes.IOCTL_DESTROY_QP


LENGTHS: dict[Making, int] = {_cq: 4, _srq: 3, _qp: 4}
CREATIONS = [
    pytest.param(making, nth, id=f"create{making.__name__}-{nth}")
    for making, length in LENGTHS.items()
    for nth in range(length)
]


@DONE
@pytest.mark.parametrize(("making", "nth"), CREATIONS)
def test_a_creation_without_an_answer_can_be_done_again(
    user: QueueUser, making: Making, nth: int, done: bool
):
    box = user.box
    create, request, destroy = making(user)
    before = user.session.process.locked_pages
    no_answer(box, nth, done)
    assert user.ask(create, request)[:2] == NO_ANSWER
    box.as_usual()
    # The chunk, number or key that the command was about is in nobody's way.
    made = [user.good(create, request).handle for _ in range(2)]
    for handle in made:
        user.good(destroy, Object(handle))
    user.session.end()
    assert user.session.process.locked_pages == 0 <= before
    box.close()


@DONE
@pytest.mark.parametrize("making", LENGTHS)
@pytest.mark.parametrize("nth", range(3))
def test_a_destruction_without_an_answer_is_finished_by_the_next(
    user: QueueUser, making: Making, nth: int, done: bool
):
    box = user.box
    create, request, destroy = making(user)
    before = user.session.process.locked_pages
    made = user.good(create, request)
    if making is _qp:
        assert not user.modify(made.handle, TO_INIT, qp_state=INIT).errno
    seen = no_answer(box, nth, done)
    answer = user.ask(destroy, Object(made.handle))
    box.as_usual()
    if len(seen) <= nth or seen[nth] == op.UNMAP_ICM:
        assert not answer.errno  # it only gives something back
    else:
        assert answer[:2] == NO_ANSWER
        user.good(destroy, Object(made.handle))
    assert user.session.process.locked_pages == before
    user.good(destroy, Object(user.good(create, request).handle))
    box.close()


# Kernel memory, which others could be given


@pytest.fixture
def client() -> Iterator[Client]:
    box = HcaBox()
    kernel = Client(box)
    yield kernel
    box.as_usual()
    kernel.close()
    box.close()  # where none of it is left


def _bytes_of_buffers(client: Client) -> int:
    """What the driver holds in buffers."""
    return int(client.box.life.buffers.inspect()["bytes"])


@DONE
@pytest.mark.parametrize("nth", range(3))
def test_kernel_memory_is_nobodys_until_the_hca_has_stopped(client: Client, nth: int, done: bool):
    before = _bytes_of_buffers(client)
    seen = no_answer(client.box, nth, done)
    answer = client.call(codes.IOCTL_CREATE_CQ, CreateCq(255, 0, 0, 0, 0, 0))
    assert (answer.errno, answer.reason) == NO_ANSWER
    taken_back = seen[nth] == op.SW2HW_CQ and done
    assert (_bytes_of_buffers(client) > before) != taken_back


@DONE
def test_a_kernel_clients_memory_is_kept_when_taking_it_back_fails(client: Client, done: bool):
    pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
    made = client.box.processor.run_thread(client.table.register_memory, pd, 8192, 1)
    assert not made.errno
    before = _bytes_of_buffers(client)
    no_answer(client.box, 0, done, more=2)
    client.close()
    assert _bytes_of_buffers(client) == before


@DONE
@pytest.mark.parametrize("asked", [True, False], ids=["QUERY_CQ too", "RESIZE_CQ"])
def test_a_kernel_client_hears_where_its_queue_is(client: Client, done: bool, asked: bool):
    cq = client.good(codes.IOCTL_CREATE_CQ, CreateCq(15, 0, 0, 0, 0, 0)).reply
    before = _bytes_of_buffers(client)
    no_answer(client.box, 2, done, more=int(asked))
    answer = client.call(codes.IOCTL_RESIZE_CQ, ResizeCq(cq.handle, 255, 0, 0))
    client.box.as_usual()
    if asked:
        assert answer.reason == Reason.RESIZE_UNCERTAIN
    else:
        assert (answer.errno, answer.reason) == ((0, 0) if done else NO_ANSWER)
        assert bool(answer.memory) == done
        assert (_bytes_of_buffers(client) == before) != done
    client.good(codes.IOCTL_DESTROY_CQ, Object(cq.handle))
    assert _bytes_of_buffers(client) == before - 4096


# Transitions


@DONE
@pytest.mark.parametrize("how", ["to INIT", "within INIT", "to ERR", "to RESET"])
def test_a_transition_without_an_answer_is_asked_about(user: QueueUser, how: str, done: bool):
    qp = user.qp(user.cq(), UD)
    mask, values = TO_INIT_UD, {"qp_state": INIT, "qkey": 0x22, "pkey_index": 0}
    if how != "to INIT":
        assert not user.modify(qp.handle, mask, **values).errno
        state = {"to ERR": ERR, "to RESET": RESET, "within INIT": INIT}[how]
        mask, values = STATE, {"qp_state": state}
        if how == "within INIT":
            mask, values = QKEY, {"qkey": 0x33}
    known: Qp = user.session.context.find(Qp, qp.handle)
    before = known.hca
    no_answer(user.box, 0, done)
    assert user.modify(qp.handle, mask, **values)[:2] == NO_ANSWER
    user.box.as_usual()
    asked = user.ask(codes.IOCTL_QUERY_QP, Object(qp.handle)).reply
    hca = user.box.hca.tables.qps.find(known.number)
    assert asked.qp_state == known.state == (hca.state if hca is not None else RESET)
    assert asked.qkey == known.hca.qkey
    if not done:
        assert known.hca == before
    elif how in ("to INIT", "within INIT"):
        assert known.hca.qkey == values["qkey"]
    elif how == "to RESET":
        assert known.hca is known.base
    assert (known.doubtful, known.unconfirmed) == (False, None)
    user.good(codes.IOCTL_DESTROY_QP, Object(qp.handle))


def test_a_question_without_an_answer_leaves_the_doubt(user: QueueUser):
    qp = user.qp(user.cq())
    no_answer(user.box, 0, True, more=1)
    assert user.modify(qp.handle, TO_INIT, qp_state=INIT)[:2] == NO_ANSWER
    assert user.ask(codes.IOCTL_QUERY_QP, Object(qp.handle))[:2] == NO_ANSWER
    user.box.as_usual()
    assert user.ask(codes.IOCTL_QUERY_QP, Object(qp.handle)).reply.qp_state == INIT


# Regions


def _registered(user: QueueUser) -> tuple[Any, int]:
    address = user.session.arena(4 * 4096)
    return user.good(codes.IOCTL_REG_MR, RegMr(user.pd, address, 4096, address, 7)), address


def _granted(user: QueueUser, key: int) -> Any:
    """What the HCA grants by a key, None if nothing."""
    return user.box.hca.tables.translation.inspect()["keys"].get(hex(key))


@DONE
@pytest.mark.parametrize("nth", range(3))
def test_a_rereg_without_an_answer_ends_with_dereg(user: QueueUser, nth: int, done: bool):
    made, address = _registered(user)
    locked = user.session.process.locked_pages - 1
    request = ReregMr(made.handle, 1, 0, address + 4096, 3 * 4096, 0)
    no_answer(user.box, nth, done)
    answer = user.ask(codes.IOCTL_REREG_MR, request)
    user.box.as_usual()
    if nth == 0:
        assert (*answer[:2], answer.detail) == (*NO_ANSWER, 1)  # the region is as it was
        assert user.session.process.locked_pages == locked + 1
    else:
        assert answer[:2] == (errno.EBUSY, Reason.REREG_FAILED)
        assert answer.detail == 4
    keys = user.box.hca.tables.translation.inspect()["keys"]
    user.good(codes.IOCTL_DEREG_MR, Object(made.handle))
    after = user.box.hca.tables.translation.inspect()["keys"]
    had_it = nth == 0 or (nth == 1 and not done) or (nth == 2 and done)
    assert keys - after == had_it
    assert user.session.process.locked_pages == locked
    user.box.close()


def test_memory_the_hca_may_still_be_granted_stays_locked_until_the_file_is_closed(
    user: QueueUser,
):
    address = user.session.arena(4096)
    before = user.session.process.locked_pages
    keys = user.box.hca.tables.translation.inspect()["keys"]
    no_answer(user.box, 1, True)
    answer = user.ask(codes.IOCTL_REG_MR, RegMr(user.pd, address, 4096, address, 1))
    assert answer[:2] == NO_ANSWER
    user.box.as_usual()
    assert user.session.process.locked_pages == before + 1
    user.session.end()
    assert user.session.process.locked_pages == 0
    assert user.box.hca.tables.translation.inspect()["keys"] == keys
    user.box.close()


# Multicast


@pytest.fixture(scope="module")
def tables() -> Iterator[list[HcaBox]]:
    """Tables as no test has used them, or as one has left them that found them clean."""
    made: list[HcaBox] = []
    yield made
    for box in made:
        box.close()


@pytest.fixture
def table(tables: list[HcaBox]) -> Iterator[HcaBox]:
    """A table of four heads and four overflow entries."""
    box = tables.pop() if tables else HcaBox(settings=HcaSettings(log_max_mgms=3))
    yield box
    box.as_usual()
    if _is_clean(box):
        tables.append(box)


def _change(
    box: HcaBox, routine: Callable[..., None], member: Member, gid: bytes
) -> VerbRefused | None:
    """Attach or detach; return the refusal."""

    def change() -> VerbRefused | None:
        try:
            routine(box.life, member, gid)
        except VerbRefused as refusal:
            return refusal
        return None

    found = box.processor.run_thread(change)
    assert found is None or isinstance(found, VerbRefused)
    return found


def _is_clean(box: HcaBox) -> bool:
    repairs = box.life.event_sinks.multicast_repairs  # type: ignore[attr-defined]  # Notification
    return heads_are_free(box) and not len(box.life.numbers.mgm) and not repairs


def _stop(box: HcaBox, how: str, nth: int) -> None:
    if how == "refused":
        box.at_command(nth, lambda: op.CMD_STAT_INTERNAL_ERR)
    else:
        no_answer(box, nth, how == "done")


HOW = pytest.mark.parametrize("how", ["refused", "done", "not done"])


@HOW
@pytest.mark.parametrize("nth", range(6))
@pytest.mark.parametrize("others", [0, 1])
def test_an_attachment_stopped_anywhere_ends_with_its_qp(
    table: HcaBox, how: str, nth: int, others: int
):
    gids = colliding(table.hca.tables.multicast.hash_of, 2)
    first, member, members = Member(0x500), Member(0x501), table.hca.tables.multicast.members
    if others:  # the group gets an entry of the overflow half
        assert _change(table, multicast_groups.attach, first, gids[0]) is None
    _stop(table, how, nth)
    refusal = _change(table, multicast_groups.attach, member, gids[1])
    table.as_usual()
    listed = member.number in members(gids[1])
    if refusal is None:
        assert listed
        assert not others
        assert nth > 2
    elif listed:
        assert how == "done"
        assert member.groups == {gids[1]: False}
    table.processor.run_thread(multicast_groups.detach_all, table.life, member)
    assert not member.groups
    assert not members(gids[1])
    table.processor.run_thread(multicast_groups.detach_all, table.life, first)
    assert _is_clean(table)


@HOW
@pytest.mark.parametrize("nth", range(6))
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_detachment_stopped_anywhere_is_all_or_nothing(
    table: HcaBox, how: str, nth: int, which: int
):
    gids = colliding(table.hca.tables.multicast.hash_of, 3)
    member, other, members = Member(0x500), Member(0x501), table.hca.tables.multicast.members
    for gid in gids:
        assert _change(table, multicast_groups.attach, member, gid) is None
    _stop(table, how, nth)
    refusal = _change(table, multicast_groups.detach, member, gids[which])
    table.as_usual()
    listed = member.number in members(gids[which])
    if refusal is None:
        assert not listed
        assert gids[which] not in member.groups
    else:
        assert listed == (member.groups.get(gids[which]) is True) or refusal.unanswered
        # Asked again it succeeds: it is attached still, or nobody knew.
        assert _change(table, multicast_groups.detach, member, gids[which]) is None
    assert [bool(members(gid)) for gid in gids] == [gid != gids[which] for gid in gids]
    # The next to join finds a group, whatever was left of it.
    assert _change(table, multicast_groups.attach, other, gids[which]) is None
    assert members(gids[which]) == [other.number]
    for one in (member, other):
        table.processor.run_thread(multicast_groups.detach_all, table.life, one)
    assert _is_clean(table)


def test_a_qp_that_may_be_attached_can_be_destroyed(user: QueueUser):
    gid = b"\xff" + bytes(15)
    qp = user.qp(user.cq(), UD)
    no_answer(user.box, 2, True)
    message = Multicast(qp.handle, gid, 0xC001)
    assert user.ask(codes.IOCTL_ATTACH_MCAST, message)[:2] == NO_ANSWER
    user.box.as_usual()
    assert user.box.hca.tables.multicast.members(gid) == [qp.number]
    user.good(codes.IOCTL_DESTROY_QP, Object(qp.handle))
    assert user.box.hca.tables.multicast.inspect()["used"] == 0
