"""Verbs of several threads on the same objects, of two processes at once, and across a fork.

XRC domains are the one object processes share: by the inode of a descriptor each of them has.
"""

import errno
import os
import queue
import random
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import END_SECONDS, READY_USER, wait_until
from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from tests.end_to_end.verbs_things import XRC_SRQ_MASK, XRCD_MASK, attributes
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqInitAttrEx
from user_proc.verbs.wr import RecvWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

pytestmark = pytest.mark.processes

NAME = f"shared-{uuid.uuid4().hex[:8]}"
ROOT = Path(__file__).resolve().parents[2]
STATE = int(e.IBV_QP_STATE)
THREADS = 4


@pytest.fixture(scope="module", autouse=True)
def _kernel() -> Iterator[None]:
    with start_kernel(NAME, settings={"verifier": True}) as kernel:
        nothing = everything_held(kernel_state(NAME))
        yield
        wait_for_nothing_more(NAME, nothing)
        assert kernel.running, kernel.log.read_text()


@pytest.fixture
def context() -> Iterator[Context]:
    with Context(name="mthca0", kernel=NAME) as opened:
        yield opened


def in_threads(routine: Callable[[int], None], count: int = THREADS) -> None:
    """Run a routine in threads that begin together; fail with what any of them raised."""
    begin = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            begin.wait(END_SECONDS)
            routine(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


# Threads


def test_many_threads_change_one_queue_pair(context: Context):
    """Each call is all or nothing: the attributes are always those of one of the callers."""
    pd, cq = PD(context), CQ(context, 4)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1)), QPAttr())
    mask = e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
    pairs = {(0, 1, 2), (7, 2, 4), (9, 1, 6), (63, 2, 14)}
    seen: set[tuple[int, int, int]] = set()

    def change(number: int) -> None:
        index, port, access = sorted(pairs)[number]
        for _ in range(40):
            attr = QPAttr(port_num=port)
            attr.pkey_index, attr.qp_access_flags = index, access
            qp.modify(attr, mask)
            found = qp.query(mask)[0]
            seen.add((found.pkey_index, found.port_num, found.qp_access_flags))

    in_threads(change)
    assert seen
    assert seen <= pairs
    qp.close()


def test_many_threads_race_one_queue_pair_through_its_states(context: Context):
    pd, cq = PD(context), CQ(context, 4)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1)))
    refused: list[tuple[int, str]] = []

    def race(number: int) -> None:
        chance = random.Random(number)
        for _ in range(30):
            state = chance.choice([0, 1, 2, 3, 4, 6])
            mask = STATE | {1: 0x38, 2: 0x129180, 3: 0x12E00}.get(state, 0)
            try:
                qp.modify(attributes(qp_state=state), mask)
            except PyverbsRDMAError as error:
                refused.append((error.error_code, error.reason))

    in_threads(race)
    assert refused
    assert {code for code, _ in refused} == {errno.EINVAL}
    words = ("there is no transition", " needs ", "not take")
    assert all(any(word in why for word in words) for _, why in refused), set(refused)
    assert qp.query(STATE)[0].qp_state in (0, 1, 2, 3, 4, 6)
    qp.close()
    cq.close()
    pd.close()


def test_many_threads_make_and_close_on_the_same_parents(context: Context):
    pd, channel = PD(context), CompChannel(context)
    cq = CQ(context, 64, None, channel)
    numbers: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def live(_: int) -> None:
        for _ in range(12):
            region = MR(pd, 4096, int(e.IBV_ACCESS_LOCAL_WRITE))
            qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)))
            qp.to_rts(attributes())
            numbers.put(("QP", qp.qp_num))
            numbers.put(("key", region.lkey))
            qp.close()
            region.close()

    in_threads(live)
    taken = [numbers.get() for _ in range(numbers.qsize())]
    assert len(taken) == len(set(taken)) == 2 * 12 * THREADS  # none is given again at once
    for parent in (channel, pd):
        parent.close()


def test_many_threads_close_the_same_objects(context: Context):
    for _ in range(5):
        pd, cq = PD(context), CQ(context, 4)
        qps = [
            QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1)))
            for _ in range(4)
        ]
        region = MR(pd, 64)
        order: list[Any] = [pd, cq, *qps, region]

        def close(number: int, everything: list[Any] = order) -> None:
            for one in everything[number:] + everything[:number]:
                one.close()

        in_threads(close)
    state = kernel_state(NAME)["hca"]["driver"]["hca"]
    assert [one["objects"] for one in state["contexts"]] == [[]]


def test_many_threads_post_to_one_queue_and_poll_it(context: Context):
    each, room = 200, threading.Semaphore(32)
    pd, cq = PD(context), CQ(context, 64)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 32, 1, 1)), QPAttr())
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), STATE)
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    left = threading.Semaphore(THREADS * each)

    def work(number: int) -> None:
        if number < THREADS:
            for place in range(each):
                assert room.acquire(timeout=END_SECONDS)
                qp.post_recv(RecvWR(number * each + place))
            return
        while left.acquire(blocking=False):
            while not (polled := cq.poll(1)[1]):
                pass
            assert polled[0].status == e.IBV_WC_WR_FLUSH_ERR
            found.put(polled[0].wr_id)
            room.release()

    in_threads(work, THREADS + 2)
    assert sorted(found.get() for _ in range(found.qsize())) == list(range(THREADS * each))
    qp.close()


# Processes

OTHER_LIFE = """
import sys
from tests.user_proc.verbs.self_connected import run
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.cq import CQ
from user_proc.verbs.mr import MR
from user_proc.verbs.qp import QP, QPCap, QPInitAttr
from user_proc.verbs import enums as e
with Context(name="mthca0", kernel=sys.argv[1]) as context:
    print("open", flush=True)
    sys.stdin.readline()
    for _ in range(8):
        run(context)
    pd, cq = PD(context), CQ(context, 4)
    regions = [MR(pd, 64) for _ in range(8)]
    init = QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1))
    qps = [QP(pd, init) for _ in range(8)]
    print(*[f"k{one.lkey}" for one in regions], *[f"q{one.qp_num}" for one in qps], flush=True)
    sys.stdin.readline()
    assert all(one.query(e.IBV_QP_STATE)[0].qp_state == 0 for one in qps)
print("closed", flush=True)
"""


class Other:
    """Another user process, asked line by line."""

    def __init__(self, program: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = READY_USER.start(program, NAME, *arguments, stderr=None, passed=pass_fds)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "") -> str:
        self.tell(line)
        return self.said()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_two_processes_at_once_never_have_the_same_numbers():
    others = [Other(OTHER_LIFE) for _ in range(2)]
    assert [one.said() for one in others] == ["open"] * 2
    for one in others:
        one.tell()
    numbers = [set(one.said().split()) for one in others]
    assert [len(one) for one in numbers] == [16, 16]
    assert not numbers[0] & numbers[1]
    assert [one.ask() for one in others] == ["closed"] * 2
    for one in others:
        one.process.communicate(timeout=END_SECONDS)
        assert one.process.returncode == 0


def test_what_a_child_inherits_belongs_to_the_parent():
    program = READY_USER.start("from tests.end_to_end.verbs_fork_rules import main; main()", NAME)
    assert program.communicate(timeout=END_SECONDS) == ("good\n", "")


# XRC domains

DOMAINS = """
import os, sys
from tests.end_to_end.verbs_things import XRCD_MASK
from user_proc.verbs import enums as e
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPInitAttrEx
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr
context = Context(name="mthca0", kernel=sys.argv[1])
had = []
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        if verb == "open":
            flags, descriptor = map(int, arguments)
            had.append(XRCD(context, XRCDInitAttr(XRCD_MASK, flags, descriptor)))
        elif verb == "target":
            init = QPInitAttrEx(e.IBV_QPT_XRC_RECV, xrcd=had[-1],
                                comp_mask=int(e.IBV_QP_INIT_ATTR_XRCD))
            had.append(QP(context, init))
        elif verb == "close":
            had.pop().close()
        print("good", flush=True)
    except PyverbsRDMAError as error:
        print(error.error_code, flush=True)
"""
EXCLUSIVE = os.O_CREAT | os.O_EXCL


@contextmanager
def domain_users(*descriptors: int, count: int = 2) -> Iterator[list[Other]]:
    users = [Other(DOMAINS, pass_fds=descriptors) for _ in range(count)]
    try:
        assert [one.said() for one in users] == ["ready"] * count
        yield users
    finally:
        for one in users:
            one.kill()


def domains() -> list[tuple[int, int]]:
    """The openings of all processes: number of the domain, and how often it is open."""
    found = [
        (one["number"], one["opened"])
        for context in kernel_state(NAME)["hca"]["driver"]["hca"]["contexts"]
        for one in context["objects"]
        if one["kind"] == "XRC domain"
    ]
    return sorted(found)


def test_an_xrc_domain_is_shared_by_a_descriptor_and_goes_with_its_last_closer():
    with tempfile.TemporaryFile() as file, domain_users(file.fileno()) as (one, other):
        descriptor = file.fileno()
        assert other.ask(f"open 0 {descriptor}") == str(errno.EAGAIN)
        assert one.ask(f"open {EXCLUSIVE} {descriptor}") == "good"
        assert other.ask(f"open {EXCLUSIVE} {descriptor}") == str(errno.EINVAL)
        assert other.ask(f"open 0 {descriptor}") == "good"
        (number, opened), again = domains()
        assert opened == 2
        assert again == (number, 2)
        assert one.ask("close") == "good"
        assert domains() == [(number, 1)]
        assert one.ask(f"open {EXCLUSIVE} {descriptor}") == str(errno.EINVAL)
        assert other.ask("target") == "good"
        assert one.ask(f"open {os.O_CREAT} {descriptor}") == "good"
        assert [one_open for _, one_open in domains()] == [2, 2]
        assert [other.ask("close"), other.ask("close"), one.ask("close")] == ["good"] * 3
        assert domains() == []
        assert one.ask(f"open 0 {descriptor}") == str(errno.EAGAIN)
        assert other.ask(f"open {EXCLUSIVE} {descriptor}") == "good"
        assert domains()[0][0] != number  # numbers are not given again at once


def test_the_death_of_the_last_closer_removes_the_domain():
    with tempfile.TemporaryFile() as file, domain_users(file.fileno(), count=3) as users:
        descriptor = file.fileno()
        for user in users:
            assert user.ask(f"open {os.O_CREAT} {descriptor}") == "good"
        assert users[0].ask("target") == "good"
        watcher = users[2]
        for user in users[:2]:
            user.kill()
        wait_until(lambda: [opened for _, opened in domains()] == [1])
        assert watcher.ask("close") == "good"
        assert watcher.ask(f"open 0 {descriptor}") == str(errno.EAGAIN)


def test_domains_go_by_the_file_and_not_by_its_name(tmp_path: Path):
    first, linked, other = (tmp_path / name for name in ("first", "linked", "other"))
    first.touch()
    other.touch()
    os.link(first, linked)
    with first.open() as a, linked.open() as b, other.open() as c:
        numbers = (a.fileno(), b.fileno(), c.fileno())
        with domain_users(*numbers) as (one, two):
            assert one.ask(f"open {EXCLUSIVE} {numbers[0]}") == "good"
            assert two.ask(f"open {EXCLUSIVE} {numbers[1]}") == str(errno.EINVAL)
            assert two.ask(f"open {EXCLUSIVE} {numbers[2]}") == "good"
            first.unlink()
            assert two.ask(f"open 0 {numbers[1]}") == "good"
            assert [opened for _, opened in domains()] == [1, 2, 2] or [
                opened for _, opened in domains()
            ] == [2, 2, 1]


def test_a_domain_with_a_queue_in_it_is_busy_in_its_own_process_alone(context: Context):
    with tempfile.TemporaryFile() as file, domain_users(file.fileno(), count=1) as (other,):
        assert other.ask(f"open {os.O_CREAT} {file.fileno()}") == "good"
        assert other.ask("target") == "good"
        xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, 0, file.fileno()))
        attr = SrqInitAttrEx(4)
        attr.comp_mask, attr.srq_type = XRC_SRQ_MASK, int(e.IBV_SRQT_XRC)
        attr.pd, attr.xrcd, attr.cq = PD(context), xrcd, CQ(context, 4)
        srq = SRQ(context, attr)
        xrcd.disown(srq)
        with pytest.raises(PyverbsRDMAError, match="Failed to dealloc XRCD") as caught:
            xrcd.close()
        assert caught.value.error_code == errno.EBUSY
        srq.close()
        xrcd.close()
        assert [opened for _, opened in domains()] == [1]


def test_two_connections_of_one_process_are_two_users(context: Context):
    with UserProcess.connect(NAME) as process, Context(name="mthca0", process=process) as second:
        with tempfile.TemporaryFile() as file:
            mine = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, file.fileno()))
            theirs = XRCD(second, XRCDInitAttr(XRCD_MASK, 0, file.fileno()))
        mine.close()
        init = QPInitAttrEx(
            int(e.IBV_QPT_XRC_RECV), xrcd=theirs, comp_mask=int(e.IBV_QP_INIT_ATTR_XRCD)
        )
        assert QP(second, init).qp_state == e.IBV_QPS_RESET
        assert [opened for _, opened in domains()] == [1]
