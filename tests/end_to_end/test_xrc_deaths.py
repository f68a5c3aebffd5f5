"""XRC between three processes of which one ends: who is told what, and that nothing is left.

One process has the shared queue, one the target, this one sends. Each is killed, or ends in order,
while messages are on their way. Many times, at random moments, with `-m stress`.
"""

import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.end_to_end.conftest import END_SECONDS, wait_until
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from tests.end_to_end.xrc_end import XrcEnd
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes

OK, FLUSH, INVALID, NO_ANSWER, NOT_READY = 0, 5, 9, 12, 13
RTS, ERR = 3, 6
QP_REQ_ERR, SRQ_LIMIT = 2, 15
START, HALF, LONG = 4096, 1 << 21, 1 << 20
MANY_ROUNDS = 40


class Three(NamedTuple):
    """The owner of the shared queue, that of the target, and the sender."""

    owner: Peer
    middle: Peer
    end: XrcEnd
    srqn: int
    target: int


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"xrc-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as started:
        yield started
        assert started.running, started.log.read_text()


@pytest.fixture
def nothing(kernel: StartedKernel) -> Iterator[dict[str, Any]]:
    """What is held before; it must be held after, and no more."""
    before = everything_held(kernel_state(kernel.name))
    yield before
    wait_for_nothing_more(kernel.name, before)
    assert domains(kernel) == []


def domains(kernel: StartedKernel) -> list[int]:
    """How often each domain is open, as each of its openings tells it."""
    life = kernel_state(kernel.name)["hca"]["driver"]["hca"]
    objects = [one for context in life["contexts"] for one in context["objects"]]
    return [one["opened"] for one in objects if one["kind"] == "XRC domain"]


def meet(kernel: str, file: Path) -> Three:
    """Have three ends of one domain, with a sender connected to a target."""
    file.touch()
    owner, middle = (Peer(kernel, module="xrc_end") for _ in range(2))
    end = XrcEnd(kernel)
    for peer in (owner, middle):
        peer.ask("open_domain", str(file))
    srqn, target, sender = owner.ask("make_srq", 128), middle.ask("make_target"), end.make_sender()
    middle.ask("join_target", sender)
    end.join_sender(target)
    return Three(owner, middle, end, srqn, target)


def part(three: Three) -> None:
    three.end.context.close()
    three.owner.end()
    three.middle.end()


@pytest.fixture
def three(kernel: StartedKernel, nothing: dict[str, Any], tmp_path: Path) -> Iterator[Three]:
    made = meet(kernel.name, tmp_path / "domain")
    yield made
    part(made)


def finish(peer: Peer, number: int) -> None:
    peer.process.send_signal(number)
    peer.process.wait(END_SECONDS)


def send_until_it_fails(three: Three, length: int) -> list[int]:
    """Send, some on their way at a time, until one is no success; its status and the rest."""
    end = three.end
    found: list[int] = []
    while not any(found):
        for _ in range(8):
            end.send_xrc("SEND", START, length, three.srqn)
        found += end.statuses(8)
    return [status for status in found if status]


def test_messages_go_through_a_process_that_has_no_part_of_them(three: Three):
    three.owner.ask("post_srq", HALF, 64, 3)
    three.owner.ask("arm_srq", 2)
    data = three.end.fill(1, START, 64)
    for _ in range(2):
        three.end.send_xrc("SEND_WITH_IMM", START, 64, three.srqn)
    assert three.end.statuses(2) == [OK, OK]
    assert three.end.sender is not None
    arrived = [OK, 64, three.target, three.end.sender.qp_num]
    assert three.owner.ask("srq_completions", 2) == [arrived] * 2
    there = bytes.fromhex(three.owner.ask("read", HALF, 64))
    assert int.from_bytes(there[-8:], "little") == data
    assert three.owner.ask("event") == [SRQ_LIMIT]
    # Memory is that of the queue's owner, by its keys.
    three.end.send_xrc("RDMA_WRITE", START, 64, three.srqn, (three.owner.buf, three.owner.rkey))
    three.end.send_xrc("RDMA_READ", HALF, 64, three.srqn, (three.owner.buf, three.owner.rkey))
    assert three.end.statuses(2) == [OK, OK]
    assert three.end.read(HALF, 64) == three.end.read(START, 64)
    three.end.send_xrc("RDMA_WRITE", START, 64, three.srqn, (three.middle.buf, three.middle.rkey))
    assert three.end.statuses() == [10]


@pytest.mark.parametrize("length", [64, LONG])
def test_the_owner_of_the_shared_queue_is_killed(three: Three, length: int):
    three.owner.ask("post_srq", HALF, LONG, 128)
    for _ in range(8):
        three.end.send_xrc("SEND", START, length, three.srqn)
    finish(three.owner, signal.SIGKILL)
    found = [status for status in three.end.statuses(8) if status]
    found = found or send_until_it_fails(three, length)
    # A page of the dead may be missed before its queue is.
    assert found[0] in (INVALID, 11)
    assert set(found[1:]) <= {FLUSH}
    assert three.middle.ask("states")[1] == ERR
    # Who is left goes on with a queue of his own.
    srqn, target, sender = (
        three.middle.ask("make_srq"), three.middle.ask("make_target"), three.end.make_sender(),
    )  # fmt: skip
    three.middle.ask("join_target", sender)
    three.end.join_sender(target)
    three.middle.ask("post_srq", HALF, 64)
    three.end.send_xrc("SEND", START, 64, srqn)
    assert three.end.statuses() == [OK]
    assert three.middle.ask("srq_completions") == [[OK, 64, target, sender]]


@pytest.mark.parametrize("length", [64, LONG])
def test_the_owner_of_the_target_is_killed(three: Three, kernel: StartedKernel, length: int):
    three.owner.ask("post_srq", HALF, LONG, 128)
    for _ in range(8):
        three.end.send_xrc("SEND", START, length, three.srqn)
    finish(three.middle, signal.SIGKILL)
    wait_until(lambda: domains(kernel) == [1])
    found = [status for status in three.end.statuses(8) if status]
    found = found or send_until_it_fails(three, length)
    assert found[0] == NO_ANSWER
    assert set(found[1:]) <= {FLUSH}
    # The queue is as it was: what came completed, once each, and the rest is there to be used.
    target, sender = three.owner.ask("make_target"), three.end.make_sender()
    three.owner.ask("join_target", sender)
    three.end.join_sender(target)
    three.end.send_xrc("SEND", START, 64, three.srqn)
    assert three.end.statuses() == [OK]
    came: list[list[int]] = []
    while not came or came[-1][2] != target:
        came += three.owner.ask("srq_completions")
    assert {status for status, *_ in came} <= {OK, FLUSH}
    assert sum(1 for status, *_ in came if status == FLUSH) <= 1
    assert came[-1] == [OK, 64, target, sender]


def test_the_sender_is_killed(kernel: StartedKernel, nothing: dict[str, Any], tmp_path: Path):
    file = tmp_path / "domain"
    file.touch()
    here, killed = XrcEnd(kernel.name), Peer(kernel.name, module="xrc_end")
    try:
        here.open_domain(str(file))
        srqn, target = here.make_srq(), here.make_target()
        here.join_target(killed.ask("make_sender"))
        killed.ask("join_sender", target)
        here.post_srq(HALF, LONG, 32)
        for _ in range(16):
            killed.tell("send_xrc", "SEND", START, LONG, srqn)
        finish(killed, signal.SIGKILL)
        wait_until(lambda: len(kernel_state(kernel.name)["server"]["sessions"]) == 1)
        assert here.states() == [-1, RTS]  # it hears of nothing
        before = here.srq_completions_now()
        assert all(status == OK for status, *_ in before)
        # An entry in hand comes back when the target goes.
        sender = here.make_sender()
        here.join_target_again(sender)
        assert here.target is not None
        here.join_sender(here.target.qp_num)
        here.send_xrc("SEND", START, 64, srqn)
        assert here.statuses() == [OK]
        after = here.srq_completions_now()
        assert [status for status, *_ in after[:-1]] in ([], [FLUSH])
        assert after[-1] == [OK, 64, here.target.qp_num, sender]
    finally:
        here.context.close()
        killed.end()


def test_the_domain_goes_with_the_last_of_those_in_it(
    kernel: StartedKernel, nothing: dict[str, Any], tmp_path: Path
):
    three = meet(kernel.name, tmp_path / "domain")
    assert domains(kernel) == [2, 2]
    three.owner.ask("post_srq", HALF, 64, 4)
    three.end.send_xrc("SEND", START, 64, three.srqn)
    assert three.end.statuses() == [OK]
    finish(three.owner, signal.SIGKILL)
    wait_until(lambda: domains(kernel) == [1])
    finish(three.middle, signal.SIGTERM)
    wait_until(lambda: domains(kernel) == [])
    part(three)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_xrc_under_many_kills(kernel: StartedKernel, nothing: dict[str, Any], tmp_path: Path):
    chance = random.Random(77)
    statuses: dict[int, int] = {}
    for number in range(MANY_ROUNDS):
        three = meet(kernel.name, tmp_path / f"domain {number}")
        three.owner.ask("post_srq", HALF, LONG, 128)
        count = chance.randrange(1, 60)
        for _ in range(count):
            three.end.send_xrc("SEND", START, chance.choice((8, 4096, 300_000)), three.srqn)
        victims = chance.sample([three.owner, three.middle], chance.randrange(1, 3))
        for victim in victims:
            victim.process.send_signal(signal.SIGKILL)
        for victim in victims:
            victim.process.wait(END_SECONDS)
        for status in three.end.statuses(count):
            statuses[status] = statuses.get(status, 0) + 1
        part(three)
        wait_for_nothing_more(kernel.name, nothing)
    assert set(statuses) <= {OK, FLUSH, INVALID, 11, NO_ANSWER}
    print(f"{MANY_ROUNDS} rounds of kills, statuses: {statuses}")
