"""Loops that time single messages while everybody sleeps when one is sent.

Kernel and HCA look on for a while after their last work. So whoever is to send, a message of a row
or an echo of its floor, sleeps for longer than that beforehand: those who take part later are all
asleep by then, as they are when a message comes once in a while.

Rules: as of `ping_pong_loops`. The time somebody has slept before it sends is in no sample.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from shared.clock import now_ns
from user_proc.bench.speed.speed_waiting import poll
from user_proc.bench.speed.transfer_end import SIGNALED_EVERY, TransferEnd
from user_proc.bench.timed_loops import empty_samples

#: Longer than kernel and HCA look on (`spin_us`, `hca_spin_us`).
PAUSE_S: Final = 0.001

_ONE_OF: Final = SIGNALED_EVERY - 1


def one_by_one(operation: Callable[[], object], count: int) -> "array[int]":
    """Do something so many times, asleep in between; return the time of each."""
    samples, now, sleep = empty_samples(count), now_ns, time.sleep
    for index in range(count):
        sleep(PAUSE_S)
        begin = now()
        operation()
        samples[index] = now() - begin
    return samples


def complete_one_by_one(end: TransferEnd, count: int) -> "array[int]":
    """Post a request and wait for its completion, so many times."""
    post, wait, request = end.qps[0].post_send, end.wait_sent, end.send_requests(0, 1)

    def complete() -> None:
        post(request)
        wait(1)

    return one_by_one(complete, count)


def ping_with_sends(end: TransferEnd, count: int) -> "array[int]":
    """Send and wait for the answer; a sample is a round trip with the time the peer held it."""
    qp, wait, receive = end.qps[0], end.wait_received, end.receive_requests(1)
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    samples, now, sleep = empty_samples(count), now_ns, time.sleep
    last = count - 1
    for index in range(count):
        signaled = index & _ONE_OF == _ONE_OF or index == last
        sleep(PAUSE_S)
        begin = now()
        qp.post_send(told if signaled else quiet)
        wait(1)
        samples[index] = now() - begin
        qp.post_recv(receive)
        if signaled:
            poll(end.send_cq, 1)
    return samples


def pong_with_sends(end: TransferEnd, count: int) -> "array[int]":
    """Answer each message that comes with one, later; return how long each was held."""
    qp, wait, receive = end.qps[0], end.wait_received, end.receive_requests(1)
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    held, now, sleep = empty_samples(count), now_ns, time.sleep
    last = count - 1
    for index in range(count):
        signaled = index & _ONE_OF == _ONE_OF or index == last
        wait(1)
        came = now()
        qp.post_recv(receive)
        sleep(PAUSE_S)
        held[index] = now() - came
        qp.post_send(told if signaled else quiet)
        if signaled:
            poll(end.send_cq, 1)
    return held


def half_round_trips(round_trips: Sequence[int], held: Sequence[int]) -> "array[int]":
    """Return half of each round trip, without the time the peer held it."""
    return array("Q", [(trip - kept) // 2 for trip, kept in zip(round_trips, held, strict=True)])
