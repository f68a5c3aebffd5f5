"""Queues that change or end with entries in flight, and posts that are cut off by a death."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.end_to_end import test_engine_traffic as traffic
from tests.end_to_end.conftest import END_SECONDS, Kernel
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import End
from user_proc.verbs.completion import WC
from user_proc.verbs.wr import SGE, RecvWR

pytestmark = pytest.mark.processes

START, BACK = 4096, 1 << 21
OK, RTS = 0, 3
LENGTH = 64
#: How many lines of the library a post runs through before it is killed; some of them by default.
MOST_LINES = 60
SOME_LINES = (5, 15, 25)

Join = Callable[..., traffic.Joined]
join = traffic.join


def take_one(end: End) -> WC:
    """Take the next completion and no more."""
    deadline = time.monotonic() + END_SECONDS
    while not (found := end.cq.poll(1)[1]):
        assert time.monotonic() < deadline
    return found[0]


def test_completions_of_a_queue_that_is_resized_all_the_time_come_once_and_in_order(join: Join):
    end, peer = join()
    count = 400
    seen: list[int] = []
    sizes = (260, 1000, 300, 4000)
    for number in range(count):
        if number % 100 == 0:
            for offset in range(100):
                element = SGE(end.mr.buf + BACK, LENGTH, end.mr.lkey)
                end.qp.post_recv(RecvWR(number + offset, 1, [element]))
            peer.tell("send_many", 100, "SEND", START, LENGTH, (0, 0))
        if number % 25 == 0:
            end.cq.resize(sizes[number // 25 % len(sizes)])
        one = take_one(end)
        assert one.status == OK
        seen.append(one.wr_id)
        if number % 100 == 99:
            assert peer.answer() is None
            assert peer.ask("statuses", 100) == [OK] * 100
    assert seen == list(range(count))


@pytest.mark.parametrize("side", ["requester", "responder"])
def test_a_queue_pair_is_destroyed_with_messages_in_flight(join: Join, side: str):
    end, peer = join()
    one, other = join()
    remote = peer.buf + BACK, peer.rkey
    end.fill(1, START, 1 << 20)
    for _ in range(40):
        end.send("RDMA_WRITE", START, 1 << 20, remote)
    if side == "requester":
        end.renew()  # closes the queue pair, and takes what had completed
    else:
        peer.ask("renew")
        found = end.statuses(40)
        failed = [status for status in found if status]
        assert len(found) == 40
        assert failed == [12, *[5] * (len(failed) - 1)][: len(failed)]  # nobody answers any more
        end.renew()
    assert end.cq.poll(16)[0] == 0
    number = peer.ask("renew")
    peer.ask("connect", end.qp.qp_num)
    end.connect(number)
    for near, far in ((end, peer), (one, other)):  # both pairs go on
        near.send("RDMA_WRITE", START, LENGTH, (far.buf + BACK, far.rkey))
        assert near.statuses() == [OK]
        assert bytes.fromhex(far.ask("read", BACK, LENGTH)) == near.read(START, LENGTH)


class Stage:
    """One end that stays, and a pair beside; senders come and are killed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._end, self._one, self._other = End(kernel.name), End(kernel.name), Peer(kernel.name)
        self._one.connect(self._other.qpn)
        self._other.ask("connect", self._one.qp.qp_num)

    def kill_in_post(self, lines: int) -> bool:
        """Have a sender die in its second post; tell whether it did, after all was checked."""
        end, one, other = self._end, self._one, self._other
        victim = Peer(self._kernel.name)
        number = end.renew()
        end.connect(victim.qpn)
        victim.ask("connect", number)
        end.receive(BACK, LENGTH, 4)
        word = victim.ask("fill", lines, START, LENGTH)
        victim.tell("die_in_post", lines, START, LENGTH)
        dies = victim.process.wait(END_SECONDS) == -signal.SIGKILL
        victim.end()
        one.send("RDMA_WRITE", START, LENGTH, (other.buf + BACK, other.rkey))
        assert one.statuses() == [OK]
        # The last message came once at most: it had been posted or had not.
        assert [completion.status for completion in end.cq.poll(4)[1]] in ([OK] * 2, [OK] * 3)
        assert int.from_bytes(end.read(BACK + LENGTH - 8, 8), "little") == word
        assert end.state() == RTS
        return dies

    def close(self) -> None:
        self._end.context.close()
        self._one.context.close()
        self._other.end()


@pytest.fixture(scope="module")
def stage(shared_kernel: Kernel) -> Iterator[Stage]:
    made = Stage(shared_kernel)
    yield made
    made.close()


@pytest.mark.parametrize("lines", SOME_LINES)
def test_who_is_killed_in_a_post_harms_nobody_else(stage: Stage, lines: int):
    assert stage.kill_in_post(lines)


@pytest.mark.stress
def test_who_is_killed_at_any_line_of_a_post_harms_nobody_else(stage: Stage):
    died = [stage.kill_in_post(lines) for lines in range(1, MOST_LINES)]
    print(f"a post is {sum(died)} lines")
    assert all(died[: max(SOME_LINES)])
    assert not all(died)  # so every line of a post was one
