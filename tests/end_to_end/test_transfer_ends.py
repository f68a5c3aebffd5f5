"""Transfers in flight when one end gives its memory up, is killed, execs, or stops.

Whatever the end does, the other one gets the status the table names and each message once, and two
sessions beside them notice nothing. All of the table with `-m stress`.
"""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.end_to_end.conftest import PLAIN_KERNEL, Kernel
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import End

pytestmark = pytest.mark.processes

START, BACK = 4096, 1 << 21
LENGTH = 1 << 20
WITNESSED = 1 << 16
WRITE = "RDMA_WRITE"
BESIDE = 3  # sessions: the end that stays, and two witnesses
COUNT = 48
LATER = 8
RTS = 3
SUCCESS, LOC_PROT, FLUSHED, REM_ACCESS, REM_OP, RETRY_EXC = 0, 4, 5, 10, 11, 12

GIVES_UP, KILLED, EXECS, STOPS = "gives its region up", "is killed", "execs", "stops"
ENDS = (GIVES_UP, KILLED, EXECS, STOPS)
ROLES = ("requester", "responder")
MEMORIES = ("arena", "private")
OPCODES = ("RDMA_WRITE", "RDMA_READ", "SEND")


@dataclass(frozen=True, slots=True)
class Case:
    """What the end is in a transfer, where its memory is, what is transferred, what it does."""

    role: str
    does: str
    memory: str
    opcode: str

    def __str__(self) -> str:
        return f"{self.role} {self.does}, {self.opcode}, {self.memory}"


WHOLE = [Case(*values) for values in itertools.product(ROLES, ENDS, MEMORIES, OPCODES)]
#: Each role with each end, memories and opcodes in turn.
SOME = [
    Case(role, does, MEMORIES[(number + index) % 2], OPCODES[(number + 2 * index) % 3])
    for index, role in enumerate(ROLES)
    for number, does in enumerate(ENDS)
]

#: What the requester gets first, after successes only, when the responder ends.
OF_RESPONDER = {
    (GIVES_UP, "RDMA_WRITE"): {REM_ACCESS},
    (GIVES_UP, "RDMA_READ"): {REM_ACCESS},
    (GIVES_UP, "SEND"): {REM_OP},
    (KILLED, "RDMA_WRITE"): {REM_ACCESS, RETRY_EXC},
    (KILLED, "RDMA_READ"): {REM_ACCESS, RETRY_EXC},
    (KILLED, "SEND"): {REM_OP, RETRY_EXC},
}


class Witness:
    """Two more sessions, which write to each other."""

    def __init__(self, kernel: str) -> None:
        self._one, self._other = Peer(kernel), Peer(kernel)
        self._one.ask("connect", self._other.qpn)
        self._other.ask("connect", self._one.qpn)
        self._seed = 0

    def post(self) -> None:
        self._seed += 1
        self._one.ask("fill", self._seed, 0, WITNESSED)
        for length in (64, WITNESSED):
            self._one.ask("send", WRITE, 0, length, (self._other.buf, self._other.rkey))

    def check(self) -> None:
        assert self._one.ask("statuses", 2) == [SUCCESS] * 2
        assert self._other.ask("read", 0, WITNESSED) == self._one.ask("read", 0, WITNESSED)

    def close(self) -> None:
        self._one.end()
        self._other.end()


class Stage:
    """A kernel, the end that stays, and a witness."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.near = End(kernel.name)
        self.witness = Witness(kernel.name)
        self._victims: list[Peer] = []

    def victim(self, memory: str) -> Peer:
        self.near.renew()
        victim = Peer(self.kernel.name, *(["private"] if memory == "private" else []))
        self._victims.append(victim)
        self.near.connect(victim.qpn)
        victim.ask("connect", self.near.qp.qp_num)
        return victim

    def clear(self) -> None:
        while self._victims:
            self._victims.pop().end()

    def close(self) -> None:
        self.clear()
        self.near.context.close()
        self.witness.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("kernel")
    kernel = Kernel(folder, PLAIN_KERNEL, "--verifier")
    made = Stage(kernel)
    yield made
    made.close()
    kernel.wait_for_sessions(0)
    kernel.leave()
    assert kernel.process.returncode == 0, kernel.log


@pytest.fixture(autouse=True)
def _no_victims(stage: Stage) -> Iterator[None]:
    yield
    stage.clear()


def end(victim: Peer, does: str) -> None:
    """Have the victim do what it does, with transfers in flight."""
    if does == GIVES_UP:
        victim.tell("give_up_region")
    elif does == EXECS:
        victim.tell("become_another")
    else:
        victim.process.send_signal(signal.SIGKILL if does == KILLED else signal.SIGSTOP)


def check_failure(found: list[int], first: set[int]) -> None:
    """Successes, then one of the statuses, then flushed requests; or all were done before."""
    failed = found[found.count(SUCCESS) :]
    assert found[: found.count(SUCCESS)] == [SUCCESS] * found.count(SUCCESS)
    assert not failed or failed[0] in first, found
    assert set(failed[1:]) <= {FLUSHED}, found


def responder_ends(stage: Stage, case: Case) -> None:
    near, victim = stage.near, stage.victim(case.memory)
    near.fill(1, START, LENGTH)
    if case.opcode == "SEND":
        victim.ask("receive", BACK, LENGTH, COUNT + LATER)
    stage.witness.post()
    remote = victim.buf + BACK, victim.rkey
    for _ in range(COUNT):
        near.send(case.opcode, START, LENGTH, remote)
    end(victim, case.does)
    stage.witness.check()
    found = near.statuses(COUNT)
    assert len(found) == COUNT
    if case.does == STOPS:  # it need not run for its memory to be read and written
        assert found == [SUCCESS] * COUNT
        victim.process.send_signal(signal.SIGCONT)
        if case.opcode == "SEND":
            assert victim.ask("statuses", COUNT) == [SUCCESS] * COUNT
        if case.opcode != "RDMA_READ":
            assert bytes.fromhex(victim.ask("read", BACK, LENGTH)) == near.read(START, LENGTH)
        return
    for _ in range(LATER):  # of what is posted later nothing can succeed any more, once it is over
        if found[-1] != SUCCESS:
            break
        if case.does != GIVES_UP:
            stage.kernel.wait_for_sessions(BESIDE)
        else:
            victim.answer()
        near.send(case.opcode, START, LENGTH, remote)
        found += near.statuses()
    assert found[-1] != SUCCESS
    does = KILLED if case.does == EXECS else case.does
    check_failure(found, OF_RESPONDER[does, case.opcode])


def requester_ends(stage: Stage, case: Case) -> None:
    near, victim = stage.near, stage.victim(case.memory)
    near.fill(2, BACK, LENGTH)
    if case.opcode == "SEND":
        near.receive(BACK, LENGTH, COUNT)
    victim.ask("fill", 3, START, LENGTH)
    sent = bytes.fromhex(victim.ask("read", START, LENGTH))
    stage.witness.post()
    remote = near.mr.buf + BACK, near.mr.rkey
    victim.ask("send_many", COUNT, case.opcode, START, LENGTH, remote)
    end(victim, case.does)
    stage.witness.check()
    if case.does in (KILLED, EXECS):
        stage.kernel.wait_for_sessions(BESIDE)
    else:
        victim.process.send_signal(signal.SIGCONT)
        if case.does == GIVES_UP:
            assert victim.answer() == "gone"
        found = victim.ask("statuses", COUNT)
        assert len(found) == COUNT
        check_failure(found, {LOC_PROT} if case.does == GIVES_UP else set())
    assert near.state() == RTS  # a responder is not told
    came = near.cq.poll(2 * COUNT)[1]
    assert {one.status for one in came} <= {SUCCESS}
    assert {one.byte_len for one in came} <= {LENGTH}
    if case.opcode == "SEND" and case.does in (GIVES_UP, STOPS):
        assert len(came) == found.count(SUCCESS)
    if case.does == STOPS and case.opcode != "RDMA_READ":
        assert near.read(BACK, LENGTH) == sent


def run(stage: Stage, case: Case) -> None:
    (requester_ends if case.role == "requester" else responder_ends)(stage, case)
    stage.witness.post()
    stage.witness.check()


def test_the_tables_are_whole():
    assert len(WHOLE) == len(set(WHOLE)) == 48
    assert set(SOME) <= set(WHOLE)
    assert {(case.role, case.does) for case in SOME} == set(itertools.product(ROLES, ENDS))
    assert {case.opcode for case in SOME} == set(OPCODES)
    assert {case.memory for case in SOME} == set(MEMORIES)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_other_end_gets_what_it_must_and_nobody_else_anything(stage: Stage, case: Case):
    run(stage, case)


@pytest.mark.stress
@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_every_end_of_every_transfer(stage: Stage, case: Case):
    run(stage, case)
