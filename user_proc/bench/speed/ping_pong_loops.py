"""Loops that time single messages, one at a time, at both ends.

Rules: both ends do the same number of messages; the active one has the samples. Nothing is
allocated for keeping while something is timed.
"""

from array import array
from typing import Final

from shared.clock import now_ns
from user_proc.bench.speed.speed_waiting import poll, wait_for_word
from user_proc.bench.speed.transfer_end import SIGNALED_EVERY, UNTOUCHED, TransferEnd
from user_proc.bench.timed_loops import empty_samples

_ONE_OF: Final = SIGNALED_EVERY - 1


def complete_one_by_one(end: TransferEnd, count: int) -> "array[int]":
    """Post a request and wait for its completion, so many times."""
    post, wait, request = end.qps[0].post_send, end.wait_sent, end.send_requests(0, 1)
    samples, now = empty_samples(count), now_ns
    for index in range(count):
        begin = now()
        post(request)
        wait(1)
        samples[index] = now() - begin
    return samples


def ping_with_sends(end: TransferEnd, count: int) -> "array[int]":
    """Send and wait for the answer; a sample is half of a round trip."""
    qp, wait, receive = end.qps[0], end.wait_received, end.receive_requests(1)
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    samples, now = empty_samples(count), now_ns
    last = count - 1
    for index in range(count):
        signaled = index & _ONE_OF == _ONE_OF or index == last
        begin = now()
        qp.post_send(told if signaled else quiet)
        wait(1)
        samples[index] = (now() - begin) // 2
        qp.post_recv(receive)
        if signaled:
            poll(end.send_cq, 1)
    return samples


def pong_with_sends(end: TransferEnd, count: int) -> None:
    """Answer each message that comes with one."""
    qp, wait, receive = end.qps[0], end.wait_received, end.receive_requests(1)
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    last = count - 1
    for index in range(count):
        signaled = index & _ONE_OF == _ONE_OF or index == last
        wait(1)
        qp.post_send(told if signaled else quiet)
        qp.post_recv(receive)
        if signaled:
            poll(end.send_cq, 1)


def ping_with_writes(end: TransferEnd, count: int, spin: int) -> "array[int]":
    """Write, and wait until the peer has written; a sample is half of a round trip."""
    qp, view = end.qps[0], end.view
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    out, came = end.spec.bytes - 1, end.last_came_at
    samples, now = empty_samples(count), now_ns
    last = count - 1
    for index in range(count):
        value = (UNTOUCHED + 1 + index) & 0xFF
        signaled = index & _ONE_OF == _ONE_OF or index == last
        begin = now()
        view[out] = value
        qp.post_send(told if signaled else quiet)
        wait_for_word(view, came, value, spin)
        samples[index] = (now() - begin) // 2
        if signaled:
            poll(end.send_cq, 1)
    return samples


def pong_with_writes(end: TransferEnd, count: int, spin: int) -> None:
    """Answer each write with one of the same last byte."""
    qp, view = end.qps[0], end.view
    quiet, told = end.send_requests(0, 1, signaled=False), end.send_requests(0, 1)
    out, came = end.spec.bytes - 1, end.last_came_at
    last = count - 1
    for index in range(count):
        value = (UNTOUCHED + 1 + index) & 0xFF
        signaled = index & _ONE_OF == _ONE_OF or index == last
        wait_for_word(view, came, value, spin)
        view[out] = value
        qp.post_send(told if signaled else quiet)
        if signaled:
            poll(end.send_cq, 1)
