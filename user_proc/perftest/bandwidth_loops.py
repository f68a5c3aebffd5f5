"""The loops of the bandwidth tools: as much under way as the depths allow, all the time.

Every post and every polled completion is stamped; one request in so many is signaled, and its
completion stands for those before it. Over UD and UC a sender may not overrun the receiver, or
messages would be lost: the receiver answers every half of its queue with a message of one byte.

A side that does both, since both directions are measured at once, never sleeps.

Rules: main thread.
Spec: linux-rdma/perftest, perftest_resources.c (run_iter_bw).
"""

import itertools
import sys
from typing import Final

from shared.clock import now_ns
from user_proc.perftest.completion_loops import Completions, Patience
from user_proc.perftest.endpoint import Endpoint
from user_proc.perftest.measured_window import Window
from user_proc.perftest.peer_link import PeerLink, field
from user_proc.perftest.tool_options import Options
from user_proc.verbs.wr import SendWR

BATCH: Final = 32
_ENDLESS: Final = sys.maxsize

CREDIT_BYTES: Final = 1  # of a message that says that there is room again


class BandwidthRun:
    """What a loop leaves: how many messages there were, and the stamps a peak is found by."""

    def __init__(self, window: Window | None, keep_posts: bool, begin: int) -> None:
        self.window: Final = window
        self.keep_posts: Final = keep_posts
        self.begin = begin  # of the receiver; the sender begins when it posts
        self.posts: Final[list[int]] = []
        self.completed: Final[list[tuple[int, int]]] = []
        self.count = 0
        self.last = begin

    def note(self, number: int) -> None:
        """Count messages that are done."""
        when = self.last = now_ns()
        self.count += number
        if self.keep_posts:
            self.completed.append((self.count, when))
        if self.window is not None:
            self.window.note(when, number)


class _Lane:
    """One queue pair's requests: a post is a chain, of which the last may be signaled."""

    def __init__(self, endpoint: Endpoint, index: int, opcode: str, size: int, chain: int) -> None:
        self.posted = 0
        self.done = 0
        self.goal = 0
        self.since_signal = 0
        self._qp: Final = endpoint.qps[index]
        self._chain: Final = chain
        self._silent: Final = _chain_of(endpoint, index, opcode, size, chain, False)
        self._signaled: Final = _chain_of(endpoint, index, opcode, size, chain, True)

    def post(self, moderation: int) -> None:
        """Post a chain; its completion, if it has one, names how many were posted by then."""
        self.posted += self._chain
        self.since_signal += self._chain
        if self.since_signal < moderation and self.posted < self.goal:
            self._qp.post_send(self._silent[0])
            return
        self.since_signal = 0
        self._signaled[-1].wr_id = self.posted
        self._qp.post_send(self._signaled[0])

    def finish(self) -> None:
        """Post no more than what makes the last completion stand for everything."""
        self.goal = self.posted + (self._chain if self.since_signal else 0)


def _chain_of(
    endpoint: Endpoint, index: int, opcode: str, size: int, length: int, signaled: bool
) -> list[SendWR]:
    made = [
        endpoint.request(index, opcode, size, signaled=signaled and number == length - 1)
        for number in range(length)
    ]
    for one, following in itertools.pairwise(made):
        one.next_wr = following
    return made


class BandwidthSender:
    """The side that posts what is measured."""

    def __init__(self, endpoint: Endpoint, link: PeerLink, options: Options, opcode: str) -> None:
        self._endpoint: Final = endpoint
        self._link: Final = link
        self._options: Final = options
        self._opcode: Final = opcode
        self._completions: Final = Completions(
            endpoint.send_cq, endpoint.receive_cq, link, endpoint.send_channel
        )
        needed = endpoint.loses_messages and options.takes_receives
        self._credits: Final = Credits(endpoint, link) if needed else None

    def run(self, size: int, run: BandwidthRun, number: int) -> None:
        """Send so many messages on each queue pair, and wait until all are done."""
        self.start(size, run, number)
        while self.step(wait=True):
            pass
        if run.window:
            self._link.send(sent=run.count)

    def start(self, size: int, run: BandwidthRun, number: int) -> None:
        """Be ready to send so many messages; with a window as many as there is time for."""
        chain = self._options.post_list
        self._lanes = [
            _Lane(self._endpoint, index, self._opcode, size, chain)
            for index in range(self._options.qps)
        ]
        for lane in self._lanes:
            lane.goal = _ENDLESS if run.window else number
        self._moderation = self._options.moderation_of(size)
        self._run = run
        run.begin = now_ns()

    def step(self, wait: bool) -> bool:
        """Post and take what there is; False once everything is done."""
        lanes, run = self._lanes, self._run
        if run.window and now_ns() >= run.window.stop and lanes[0].goal == _ENDLESS:
            for lane in lanes:
                lane.finish()
        posted = self._post(lanes, run)
        self._reap(lanes, run, wait=wait and not posted and self._credits is None)
        return any(lane.done < lane.goal for lane in lanes)

    def _post(self, lanes: list[_Lane], run: BandwidthRun) -> bool:
        """Post as much as there is room for; tell whether that was anything."""
        depth, chain = self._options.tx_depth, self._options.post_list
        credit, posts = self._credits, run.posts if run.keep_posts else None
        any_posted = False
        for index, lane in enumerate(lanes):
            while lane.posted < lane.goal and lane.posted - lane.done + chain <= depth:
                if credit is not None and not credit.take(index, chain):
                    break
                if posts is not None:
                    posts.extend([now_ns()] * chain)
                lane.post(self._moderation)
                any_posted = True
        return any_posted

    def _reap(self, lanes: list[_Lane], run: BandwidthRun, wait: bool) -> None:
        busy = any(lane.posted > lane.done for lane in lanes)
        take = self._completions.wait if wait and busy else self._completions.poll
        for one in take(BATCH):
            lane = lanes[self._endpoint.index_of[one.qp_num]]
            number, lane.done = one.wr_id - lane.done, one.wr_id
            run.note(number)


class Credits:
    """How many messages the receiver has room for, by queue pair."""

    def __init__(self, endpoint: Endpoint, link: PeerLink) -> None:
        self._endpoint: Final = endpoint
        self._arrivals: Final = Completions(endpoint.receive_cq, endpoint.send_cq, link)
        self._room: Final = [endpoint.receive_share] * len(endpoint.qps)
        endpoint.fill_receives()

    def take(self, index: int, number: int) -> bool:
        """Use room for so many, if there is so much."""
        if self._room[index] < number:
            for one in self._arrivals.poll(BATCH):
                found = self._endpoint.index_of[one.qp_num]
                self._room[found] += _half(self._endpoint)
                self._endpoint.post_receive(found)
        if self._room[index] < number:
            return False
        self._room[index] -= number
        return True


class BandwidthReceiver:
    """The side whose receives take the messages."""

    def __init__(self, endpoint: Endpoint, link: PeerLink) -> None:
        self._endpoint: Final = endpoint
        self._link: Final = link
        self._arrivals: Final = Completions(
            endpoint.receive_cq, endpoint.send_cq, link, endpoint.receive_channel
        )
        self._sends: Final = Completions(endpoint.send_cq, endpoint.receive_cq, link)
        self._owed: Final = [0] * len(endpoint.qps)
        self._under_way = 0
        endpoint.fill_receives()

    def run(self, run: BandwidthRun, total: int | None) -> None:
        """Take so many messages; without a number, until the sender says how many there were."""
        self.start(run, total)
        while self.step(wait=True):
            pass

    def start(self, run: BandwidthRun, total: int | None) -> None:
        """Be ready to take them."""
        self._run, self._total = run, total
        endpoint = self._endpoint
        self._credit = [
            endpoint.request(index, "SEND", CREDIT_BYTES) for index in range(len(endpoint.qps))
        ] if endpoint.loses_messages else None  # fmt: skip

    def step(self, wait: bool) -> bool:
        """Take what there is; False once everything has come."""
        endpoint, run, total = self._endpoint, self._run, self._total
        if total is not None and run.count >= total:
            return False
        if wait:
            found = self._arrivals.wait(BATCH, until_word=total is None)
        else:
            found = self._arrivals.poll(BATCH)
        if found:
            run.note(len(found))
        elif total is None and self._link.look():
            self._total = field(self._link.receive(), "sent", int)
        for one in found:
            index = endpoint.index_of[one.qp_num]
            endpoint.post_receive(index)
            if self._credit is not None:
                self._give_credit(index, self._credit[index])
        return True

    def _give_credit(self, index: int, message: SendWR) -> None:
        self._owed[index] += 1
        if self._owed[index] < _half(self._endpoint):
            return
        self._owed[index] = 0
        self._under_way -= len(self._sends.poll(BATCH))
        while self._under_way >= self._endpoint.plan.send_depth:
            self._under_way -= len(self._sends.wait(BATCH))
        self._endpoint.qps[index].post_send(message)
        self._under_way += 1


def both_ways(
    sender: BandwidthSender,
    receiver: BandwidthReceiver,
    sent: BandwidthRun,
    taken: BandwidthRun,
    link: PeerLink,
) -> None:
    """Send and take at once, both started before, until both are done."""
    patience = Patience()
    sends = receives = True
    while sends or receives:
        if sends:
            sends = sender.step(wait=not receives)
            if not sends and sent.window:
                link.send(sent=sent.count)
        if receives:
            receives = receiver.step(wait=not sends)
        patience.look(sent.count + taken.count)


def _half(endpoint: Endpoint) -> int:
    """Give how many messages one credit stands for."""
    return max(1, endpoint.receive_share // 2)
