"""No wake-up is lost between processes: arm, an entry from another thread, wait, acknowledge, poll.

The queue pair is in ERR, so that the HCA completes each receive at once; the poster runs freely
beside the waiter, so arm, entry, event and request meet in whatever order the machine makes of it.
A wake-up that is lost is a wait that does not end in time. A million cycles with `-m stress`.
"""

import fcntl
import itertools
import os
import queue
import random
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from shared.verb_codes import IOCTL_GET_CQ_COMP_EVENT
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import RecvWR

pytestmark = pytest.mark.processes

NAME = f"cycles-{uuid.uuid4().hex[:8]}"
FEW = 1_000
MILLION = 1_000_000
LOST_SECONDS = 20.0
RECEIVES = 8
PARTS = 5  # of each way, so that none is long


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with start_kernel(NAME), Context(name="mthca0", kernel=NAME) as opened:
        yield opened


class Line:
    """A CQ on a channel, and a queue pair in ERR whose receives complete on it at once."""

    def __init__(self, context: Context, channel: CompChannel) -> None:
        self.channel = channel
        self.cq = CQ(context, 2 * RECEIVES, None, channel)
        self._pd = PD(context)
        init = QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(1, RECEIVES, 1, 1))
        self.qp = QP(self._pd, init, QPAttr())
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self.posted = itertools.count()

    def post(self) -> None:
        self.qp.post_recv(RecvWR(next(self.posted)))

    def wait(self) -> None:
        """Take an event and acknowledge it."""
        assert select.select([self.channel.fd], [], [], LOST_SECONDS)[0], "a wake-up was lost"
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)

    def take_one(self) -> int:
        """Poll the one entry there is, which the event was about."""
        number, found = self.cq.poll(2)
        assert number == 1
        return found[0].wr_id

    def close(self) -> None:
        for one in (self.qp, self.cq, self._pd):
            one.close()


class Poster:
    """Another thread that posts to a line whenever it is let."""

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while (line := self.lines.get()) is not None:
                line.post()
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> "Poster":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.put(None)
        self._thread.join(LOST_SECONDS)
        assert not self._thread.is_alive()
        assert self._failure is None


def _cycles(context: Context, cycles: int, one: Callable[[Line, Poster, int], None]) -> None:
    channel = CompChannel(context)
    line = Line(context, channel)
    with Poster() as poster:
        for number in range(cycles):
            one(line, poster, number)
            line.wait()
            assert line.take_one() == number
    line.close()
    channel.close()


def arm_before_the_entry(context: Context, cycles: int) -> None:
    def one(line: Line, poster: Poster, number: int) -> None:
        line.cq.req_notify()
        poster.lines.put(line)

    _cycles(context, cycles, one)


def arm_beside_the_entry(context: Context, cycles: int) -> None:
    def one(line: Line, poster: Poster, number: int) -> None:
        poster.lines.put(line)
        line.cq.req_notify()

    _cycles(context, cycles, one)


def arm_after_the_entry(context: Context, cycles: int) -> None:
    def one(line: Line, poster: Poster, number: int) -> None:
        line.post()
        line.cq.req_notify()

    _cycles(context, cycles, one)


def solicited_or_not(context: Context, cycles: int) -> None:
    """An entry with an error is solicited, too; arming wider before the entry changes nothing."""

    def one(line: Line, poster: Poster, number: int) -> None:
        if number % 3 == 0:
            poster.lines.put(line)
            line.cq.req_notify(True)
            return
        line.cq.req_notify(True)
        if number % 3 == 1:
            line.cq.req_notify(False)
        poster.lines.put(line)

    _cycles(context, cycles, one)


def several_queues_on_one_channel(context: Context, cycles: int) -> None:
    chance = random.Random(2)
    channel = CompChannel(context)
    lines = [Line(context, channel) for _ in range(4)]
    with Poster() as poster:
        for _ in range(cycles // len(lines)):
            steps = [(act, line) for line in lines for act in ("arm", "post")]
            chance.shuffle(steps)
            for act, line in steps:
                if act == "arm":
                    line.cq.req_notify()
                else:
                    poster.lines.put(line)
            for line in lines:
                assert select.select([channel.fd], [], [], LOST_SECONDS)[0], "a wake-up was lost"
                with suppress(PyverbsRDMAError):  # it was another's, which is acknowledged
                    channel.get_cq_event(line.cq)
                    line.cq.ack_events(1)
            for line in lines:
                line.take_one()
    assert not select.select([channel.fd], [], [], 0)[0]
    for line in lines:
        line.close()
    channel.close()


def two_waiting_threads(context: Context, cycles: int) -> None:
    channel = CompChannel(context)
    line = Line(context, channel)
    woken: queue.SimpleQueue[tuple[int, int] | BaseException] = queue.SimpleQueue()
    over = threading.Event()

    def wait(me: int) -> None:
        try:
            while not over.is_set():
                channel.get_cq_event(line.cq)
                line.cq.ack_events(1)
                woken.put((me, line.take_one()))
        except BaseException as error:
            woken.put(error)

    threads = [threading.Thread(target=wait, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    with Poster() as poster:
        for number in range(cycles):
            line.cq.req_notify()
            poster.lines.put(line)
            result = woken.get(timeout=LOST_SECONDS)
            assert not isinstance(result, BaseException), result
            assert result[1] == number
        over.set()
        while any(thread.is_alive() for thread in threads):
            line.cq.req_notify()
            poster.lines.put(line)
            assert not isinstance(woken.get(timeout=LOST_SECONDS), BaseException)
            for thread in threads:
                thread.join(0.05)
    line.close()
    channel.close()


def without_blocking(context: Context, cycles: int) -> None:
    channel = CompChannel(context)
    line = Line(context, channel)
    descriptor = channel.fd
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK)
    watch = select.epoll()
    watch.register(descriptor, select.EPOLLIN)
    with Poster() as poster:
        for number in range(cycles):
            with pytest.raises(PyverbsRDMAError, match="no event waits"):
                channel.get_cq_event(line.cq)
            line.cq.req_notify()
            poster.lines.put(line)
            assert watch.poll(LOST_SECONDS), "a wake-up was lost"
            channel.get_cq_event(line.cq)
            line.cq.ack_events(1)
            assert line.take_one() == number
            assert not watch.poll(0)
    watch.close()
    line.close()
    channel.close()


def arm_then_poll_until_empty(context: Context, cycles: int) -> None:
    """The loop of the manual: whatever comes while it is armed or polled is found or told."""
    chance = random.Random(3)
    channel = CompChannel(context)
    line = Line(context, channel)
    room = threading.Semaphore(RECEIVES)
    failures: list[BaseException] = []

    def post() -> None:
        try:
            for _ in range(cycles):
                assert room.acquire(timeout=LOST_SECONDS)
                for _ in range(chance.randrange(20)):
                    os.sched_yield()
                line.post()
        except BaseException as error:
            failures.append(error)

    poster = threading.Thread(target=post)
    line.cq.req_notify()
    poster.start()
    seen = 0
    while seen < cycles:
        line.wait()
        line.cq.req_notify()
        while found := line.cq.poll(4)[1]:
            assert [wc.wr_id for wc in found] == list(range(seen, seen + len(found)))
            seen += len(found)
            for _ in found:
                room.release()
    poster.join(LOST_SECONDS)
    assert failures == []
    line.close()
    channel.close()


WAYS = [
    arm_before_the_entry, arm_beside_the_entry, arm_after_the_entry, solicited_or_not,
    several_queues_on_one_channel, two_waiting_threads, without_blocking,
    arm_then_poll_until_empty,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_wake_up_is_lost(context: Context, way: Callable[[Context, int], None]):
    way(context, FEW)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_wake_up_is_lost_in_a_million(
    context: Context, way: Callable[[Context, int], None], part: int
):
    way(context, MILLION // (PARTS * len(WAYS)))


def test_requests_ahead_double_while_events_come_fast_up_to_a_bound(context: Context):
    with Context(name="mthca0", kernel=NAME) as fast:
        CompChannel(fast)
        stream = fast.events.pump._streams[IOCTL_GET_CQ_COMP_EVENT]
        assert stream.depth == 2
        for _ in range(20):  # each doubles it at most; how fast events come is the machine's affair
            arm_before_the_entry(fast, 60)
            if stream.depth == 16:
                break
        assert stream.depth == 16
        assert 0 < stream.out <= 16
